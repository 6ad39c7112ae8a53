#!/usr/bin/env bash
# Zero-shot classification on CUB-200-2011: bash scripts/zeroshot/cub.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder; datasets/CUB_200_2011 is the unpacked archive. The paper takes the best K.
solo-hcsc zeroshot \
    --dataset cub \
    --data_dir ./datasets \
    --pretrained_feature_extractor "$1" \
    --k 10 20 100 200 \
    --temperature 0.07 \
    --batch_size 256 \
    --num_workers 4 \
    "${@:2}"
