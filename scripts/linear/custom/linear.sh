#!/usr/bin/env bash
# Linear evaluation on your own images: bash scripts/linear/custom/linear.sh DATA_DIR TRAIN_DIR VAL_DIR CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. The best learning rate depends on the method: --lr_sweep trains a classifier
# for each of many at once.
solo-hcsc linear \
    --dataset custom \
    --data_dir "$1" \
    --train_dir "$2" \
    --val_dir "$3" \
    --pretrained_feature_extractor "$4" \
    --max_epochs 100 \
    --optimizer sgd \
    --scheduler step \
    --lr_decay_steps 60 80 \
    --weight_decay 0 \
    --batch_size 256 \
    --num_workers 4 \
    --lr 3.0 \
    "${@:5}"
