#!/usr/bin/env bash
# KNN evaluation on your own images: bash scripts/knn/custom/knn.sh DATA_DIR TRAIN_DIR VAL_DIR CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder.
solo-hcsc knn \
    --dataset custom \
    --data_dir "$1" \
    --train_dir "$2" \
    --val_dir "$3" \
    --pretrained_feature_extractor "$4" \
    --k 10 20 100 200 \
    --temperature 0.07 \
    --batch_size 256 \
    --num_workers 4 \
    "${@:5}"
