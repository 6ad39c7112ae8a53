#!/usr/bin/env bash
# Linear evaluation on ImageNet: bash scripts/linear/imagenet/linear.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. solo-learn's own settings use --lr 0.1 to 30, depending on the method.
python -m solo_hcsc.linear \
    --dataset imagenet \
    --data_dir ./datasets \
    --train_dir imagenet/train \
    --val_dir imagenet/val \
    --pretrained_feature_extractor "$1" \
    --max_epochs 100 \
    --gpus 0 \
    --precision 16 \
    --optimizer sgd \
    --scheduler step \
    --lr_decay_steps 60 80 \
    --lr 3.0 \
    --weight_decay 0 \
    --batch_size 256 \
    --num_workers 4 \
    --dali \
    "${@:2}"
