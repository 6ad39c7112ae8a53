#!/usr/bin/env bash
# Linear evaluation on Places205, with the paper's settings: bash scripts/places/places.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. The lists' paths (a/abbey/...) start from --data_dir.
solo-hcsc places \
    --data_dir ./datasets/places205/data/vision/torralba/deeplearning/images256 \
    --train_list ./datasets/places205/trainvalsplit_places205/train_places205.csv \
    --val_list ./datasets/places205/trainvalsplit_places205/val_places205.csv \
    --pretrained_feature_extractor "$1" \
    --max_epochs 100 \
    --gpus 0 \
    --precision 16 \
    --optimizer sgd \
    --scheduler cosine \
    --lr 3.0 \
    --weight_decay 0 \
    --batch_size 256 \
    --num_workers 4 \
    --dali \
    "${@:2}"
