#!/usr/bin/env bash
# KNN evaluation on ImageNet-100: bash scripts/knn/imagenet-100/knn.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder.
solo-hcsc knn \
    --dataset imagenet100 \
    --data_dir ./datasets \
    --train_dir imagenet-100/train \
    --val_dir imagenet-100/val \
    --pretrained_feature_extractor "$1" \
    --k 10 20 100 200 \
    --temperature 0.07 \
    --batch_size 256 \
    --num_workers 4 \
    "${@:2}"
