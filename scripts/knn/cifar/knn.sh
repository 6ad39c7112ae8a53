#!/usr/bin/env bash
# KNN evaluation on CIFAR: bash scripts/knn/cifar/knn.sh cifar10|cifar100 CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder.
solo-hcsc knn \
    --k 10 20 100 200 \
    --temperature 0.07 \
    --batch_size 256 \
    --num_workers 4 \
    --dataset "$1" \
    --data_dir ./datasets \
    --pretrained_feature_extractor "$2" \
    --crop_size 32 \
    "${@:3}"
