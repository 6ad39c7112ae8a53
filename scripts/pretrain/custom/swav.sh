#!/usr/bin/env bash
# SwAV on your own images: bash scripts/pretrain/custom/swav.sh DATA_DIR TRAIN_DIR [flags]
# TRAIN_DIR, below DATA_DIR, has one folder per class; for images without classes add --no_labels.
# --val_dir DIR (labelled, below DATA_DIR) adds validation; --dali and --gpus 0,1 work as for ImageNet.
solo-hcsc pretrain \
    --dataset custom \
    --encoder resnet18 \
    --data_dir "$1" \
    --train_dir "$2" \
    --max_epochs 400 \
    --batch_size 128 \
    --num_workers 4 \
    --brightness 0.8 \
    --contrast 0.8 \
    --saturation 0.8 \
    --hue 0.2 \
    --crop_size 224 96 \
    --num_crops_per_aug 2 6 \
    --min_scale 0.14 0.05 \
    --max_scale 1.0 0.14 \
    --method swav \
    --optimizer sgd \
    --lars \
    --grad_clip_lars \
    --eta_lars 0.02 \
    --exclude_bias_n_norm \
    --scheduler warmup_cosine \
    --lr 0.6 \
    --min_lr 0.0006 \
    --classifier_lr 0.1 \
    --weight_decay 1e-6 \
    --proj_hidden_dim 2048 \
    --proj_output_dim 128 \
    --num_prototypes 3000 \
    --queue_size 3840 \
    --freeze_prototypes_epochs 2 \
    --name swav-custom \
    --epoch_queue_starts 50 \
    "${@:3}"
