#!/usr/bin/env bash
# Clustering evaluation on ImageNet's training images: bash scripts/clustering/imagenet.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. The paper's 25,000 and 1,000 clusters: of HCSC it takes the bottom level of a
# run with --num_prototypes 25000 10000 1000 and the top level of one with 3000 2000 1000, of other methods k-means.
solo-hcsc clustering \
    --dataset imagenet \
    --data_dir ./datasets \
    --train_dir imagenet/train \
    --pretrained_feature_extractor "$1" \
    --k 25000 1000 \
    --batch_size 256 \
    --num_workers 4 \
    "${@:2}"
