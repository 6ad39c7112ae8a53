#!/usr/bin/env bash
# Sets up and runs one of the ablations on scikit-learn's digits:
# bash scripts/ablate/digits.sh components|levels|prototypes|choices [flags]
# The settings are those of scripts/compare/digits.sh with a smaller tree: 2 to 3 minutes a row and seed on a CPU core.
table=${1:-}
if [ -z "$table" ]; then echo "error: say which table: components, levels, prototypes or choices" >&2; exit 2; fi
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""

solo-hcsc ablate \
    --encoder resnet18 \
    --batch_size 64 \
    --optimizer sgd \
    --scheduler warmup_cosine \
    --warmup_epochs 1 \
    --lr 0.25 \
    --classifier_lr 0.03 \
    --crop_size 32 \
    --min_scale 0.7 \
    --horizontal_flip_prob 0 \
    --brightness 0.2 \
    --contrast 0.2 \
    --saturation 0 \
    --hue 0 \
    --gray_scale_prob 0 \
    --gaussian_prob 0 \
    --table "$table" \
    --seeds 0 1 2 \
    --out "trained_models/ablate/digits-$table" \
    --dataset digits \
    --max_epochs 8 \
    --num_workers 2 \
    --num_prototypes 30 20 10 \
    --min_cluster_size 3 \
    --queue_size 128 \
    --symmetric true \
    --temperature 0.2 \
    --base_tau_momentum 0.9 \
    --final_tau_momentum 0.99 \
    --proto_warmup_epochs 2 \
    --linear "--cache_features --optimizer sgd --lr 0.1 --scheduler cosine --weight_decay 0 --max_epochs 30 --batch_size 64" \
    "${@:2}"
