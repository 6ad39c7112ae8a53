#!/usr/bin/env bash
# Linear evaluation on PASCAL VOC 2007, with the paper's settings: bash scripts/voc/voc.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. VOCdevkit/VOC2007 is what the archives of trainval and test unpack to.
solo-hcsc voc \
    --data_dir ./datasets/VOCdevkit/VOC2007 \
    --pretrained_feature_extractor "$1" \
    --max_epochs 100 \
    --gpus 0 \
    --precision 16 \
    --optimizer sgd \
    --scheduler cosine \
    --lr 0.05 \
    --weight_decay 0 \
    --batch_size 16 \
    --num_workers 4 \
    "${@:2}"
