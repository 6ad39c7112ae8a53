#!/usr/bin/env bash
# Sets up and measures what --image_backend does to accuracy on the Grocery Store photos, from ImageNet's weights at
# 48 px: the same runs with pil and with fast, five seeds, judged on the test photos.
# bash scripts/images/grocery.sh [flags of ablate]. Two minutes a run on a CPU core of its own.
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""
[ -d datasets/grocery ] || python scripts/data/grocery.py ${GROCERY:+"$GROCERY"}
bash scripts/data/weights.sh datasets/weights

solo-hcsc ablate \
    --dataset custom \
    --data_dir datasets/grocery \
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
    --max_epochs 3 \
    --num_workers 0 \
    --accelerator cpu \
    --num_crops_per_aug 2 \
    --min_scale 0.2 \
    --optimizer sgd \
    --scheduler cosine \
    --lr 0.05 \
    --classifier_lr 0.1 \
    --weight_decay 1e-4 \
    --queue_size 880 \
    --base_tau_momentum 0.99 \
    --final_tau_momentum 0.99 \
    --checkpoint_frequency 100 \
    --table images \
    --seeds 0 1 2 3 4 \
    --out trained_models/images/grocery \
    --test_dir test \
    --evaluations knn \
    "$@"
