#!/usr/bin/env bash
# Linear evaluation on ImageNet: bash scripts/linear/imagenet/linear.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. These are the paper's settings (its PCL configuration); --config adco and
# --config moco are its other two, and --lr_sweep trains a classifier for each of many learning rates at once.
solo-hcsc linear \
    --dataset imagenet \
    --data_dir ./datasets \
    --train_dir imagenet/train \
    --val_dir imagenet/val \
    --pretrained_feature_extractor "$1" \
    --config pcl \
    --gpus 0 \
    --precision 16 \
    --num_workers 4 \
    --dali \
    "${@:2}"
