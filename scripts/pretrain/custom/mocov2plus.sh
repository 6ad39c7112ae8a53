#!/usr/bin/env bash
# MoCo v2+ on your own images: bash scripts/pretrain/custom/mocov2plus.sh DATA_DIR TRAIN_DIR [flags]
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
    --optimizer sgd \
    --lr 0.3 \
    --classifier_lr 0.3 \
    --weight_decay 1e-4 \
    --brightness 0.4 \
    --contrast 0.4 \
    --saturation 0.4 \
    --hue 0.1 \
    --method mocov2plus \
    --scheduler warmup_cosine \
    --proj_hidden_dim 2048 \
    --temperature 0.2 \
    --base_tau_momentum 0.99 \
    --final_tau_momentum 0.999 \
    --momentum_classifier \
    --name mocov2plus-custom \
    --queue_size 65536 \
    "${@:3}"
