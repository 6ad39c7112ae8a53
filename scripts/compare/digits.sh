#!/usr/bin/env bash
# Sets up and compares HCSC, MoCo v2+ and SwAV on scikit-learn's digits: bash scripts/compare/digits.sh [flags]
# 9 minutes on two cores. Ends with the report's path; started again, it goes on where it was interrupted, and with
# --seeds 0 1 2 it adds runs.
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" umap

# Digits are small and grey: mild crops, no flips, no colours.

solo-hcsc compare \
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
    --methods hcsc mocov2plus swav \
    --seeds 0 \
    --out trained_models/compare/digits \
    --dataset digits \
    --max_epochs 8 \
    --num_workers 2 \
    --num_crops_per_aug 2 \
    --knn_eval \
    --linear "--cache_features --optimizer sgd --lr 0.1 --scheduler cosine --weight_decay 0 --max_epochs 30 --batch_size 64" \
    --hcsc "--num_prototypes 60 30 15 --queue_size 128 --symmetric true --temperature 0.2 --proto_warmup_epochs 2
        --base_tau_momentum 0.9 --final_tau_momentum 0.99" \
    --mocov2plus "--queue_size 128 --temperature 0.2 --base_tau_momentum 0.99 --final_tau_momentum 0.999" \
    --swav "--num_prototypes 60 --queue_size 0" \
    "$@"
