#!/usr/bin/env bash
# Clustering evaluation on CIFAR's training images: bash scripts/clustering/cifar.sh cifar10|cifar100 CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. k-means makes as many clusters as there are classes; --k asks for others.
solo-hcsc clustering \
    --dataset "$1" \
    --data_dir ./datasets \
    --pretrained_feature_extractor "$2" \
    --batch_size 256 \
    --num_workers 4 \
    --crop_size 32 \
    "${@:3}"
