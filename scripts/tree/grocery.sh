#!/usr/bin/env bash
# Sets up and measures what the tree is worth on the Grocery Store photos, from ImageNet's weights at 48 px: the same
# runs without the tree, with it, and with the true labels as the tree, with five seeds, judged on the test photos.
# bash scripts/tree/grocery.sh [tree|ceiling|components] [flags of ablate]. Two minutes a run on a CPU core of its own.
table=${1:-tree}
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""
[ -d datasets/grocery-96 ] || python scripts/data/grocery.py ${GROCERY:+"$GROCERY"} --side 96
bash scripts/data/weights.sh datasets/weights

solo-hcsc ablate \
    --dataset custom \
    --data_dir datasets/grocery-96 \
    --train_dir train \
    --val_dir val \
    --crop_size 48 \
    --batch_size 88 \
    --encoder timm/tf_efficientnet_lite0 \
    --init_weights datasets/weights/efficientnet_lite0.pth \
    --mean 0.5 0.5 0.5 \
    --std 0.5 0.5 0.5 \
    --freeze_batchnorm \
    --freeze_encoder_epochs 1 \
    --gradient_clip_val 1 \
    --max_epochs 4 \
    --num_workers 0 \
    --accelerator cpu \
    --num_crops_per_aug 2 \
    --min_scale 0.2 \
    --gaussian_prob 0 \
    --solarization_prob 0 \
    --optimizer sgd \
    --scheduler cosine \
    --classifier_lr 0.1 \
    --weight_decay 1e-4 \
    --checkpoint_frequency 100 \
    --clustered_space encoder \
    --clustered_features images \
    --proto_warmup_epochs 0 \
    --proto_weight 1 \
    --proto_ramp_epochs 0 \
    --table "$table" \
    --seeds 0 1 2 3 4 \
    --out trained_models/tree/grocery \
    --test_dir test \
    --evaluations knn clustering \
    --lr 0.05 \
    --queue_size 88 \
    --base_tau_momentum 0.99 \
    --final_tau_momentum 0.99 \
    "${@:2}"
