#!/usr/bin/env bash
# Linear evaluation on ImageNet-100: bash scripts/linear/imagenet-100/linear.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. solo-learn's own settings use --lr 0.1 to 30, depending on the method.
python -m solo_hcsc.linear \
    --dataset imagenet100 \
    --data_dir ./datasets \
    --train_dir imagenet-100/train \
    --val_dir imagenet-100/val \
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
