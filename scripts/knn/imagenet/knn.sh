#!/usr/bin/env bash
# KNN evaluation on ImageNet: bash scripts/knn/imagenet/knn.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder.
solo-hcsc knn \
    --dataset imagenet \
    --data_dir ./datasets \
    --train_dir imagenet/train \
    --val_dir imagenet/val \
    --pretrained_feature_extractor "$1" \
    --k 10 20 100 200 \
    --temperature 0.07 \
    --batch_size 256 \
    --num_workers 4 \
    "${@:2}"
