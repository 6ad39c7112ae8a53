#!/usr/bin/env bash
# Builds the sdist and the wheel into dist/, installs the wheel into an empty environment, and tries it there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/build"
"$work/build/bin/pip" install --quiet --disable-pip-version-check build twine
rm -rf dist build
"$work/build/bin/python" -m build --outdir dist . >"$work/build.log" || { tail -n 20 "$work/build.log" >&2; exit 1; }
"$work/build/bin/twine" check --strict dist/*

python3 -m venv "$work/empty"
"$work/empty/bin/pip" install --quiet --disable-pip-version-check \
    "$(ls "$PWD"/dist/*.whl)[cpu,report,tables,weights]"
sed -n '/^```python/,/^```/{/^```/d; p}' README.md >"$work/quickstart.py"
cd "$work" # away from the source
export PATH="$work/empty/bin:$PATH"
python - <<'PYTHON'
from pathlib import Path

import numpy as np
from PIL import Image

Path("photos").mkdir()
for number in range(40):
    pixels = np.random.default_rng(number).integers(0, 255, (48, 64, 3), dtype="uint8")
    Image.fromarray(pixels).save(f"photos/{number}.jpg")
PYTHON
cat >>quickstart.py <<'PYTHON'
from pathlib import Path

assert photos.vectors.shape == (40, 1280) and len(picks) == 20 and Path("page/index.html").is_file()
print(f"solo_hcsc {sh.__version__}: README's quickstart made a tree of {tree.levels.shape[1]} levels, and its page")
PYTHON
python quickstart.py
solo-hcsc --help >/dev/null
solo-hcsc pretrain --help >/dev/null 2>&1 || echo "pretraining needs solo-learn: pip install --no-deps solo-learn==1.0.2"
cd - >/dev/null
ls -l dist
