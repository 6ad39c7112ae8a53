#!/usr/bin/env bash
# Linear evaluation on CIFAR: bash scripts/linear/cifar/linear.sh cifar10|cifar100 CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. The best learning rate depends on the method: --lr_sweep trains a classifier
# for each of many at once.
solo-hcsc linear \
    --max_epochs 100 \
    --optimizer sgd \
    --scheduler step \
    --lr_decay_steps 60 80 \
    --weight_decay 0 \
    --batch_size 256 \
    --num_workers 4 \
    --dataset "$1" \
    --data_dir ./datasets \
    --pretrained_feature_extractor "$2" \
    --gpus 0 \
    --precision 16 \
    --lr 0.3 \
    --crop_size 32 \
    "${@:3}"
