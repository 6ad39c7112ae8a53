#!/usr/bin/env bash
# Fine-tuning on few labels of ImageNet: bash scripts/semisup/imagenet/semisup.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. --label_fraction 0.1 takes 10 % of each class, --label_list FILE the images
# that a list names, as the usual lists of 1 % and 10 %; leave out the other flag then.
solo-hcsc semisup \
    --dataset imagenet \
    --data_dir ./datasets \
    --train_dir imagenet/train \
    --val_dir imagenet/val \
    --pretrained_feature_extractor "$1" \
    --max_epochs 70 \
    --optimizer sgd \
    --scheduler step \
    --lr_decay_steps 30 60 \
    --lr 0.005 \
    --head_lr 0.005 \
    --weight_decay 0 \
    --batch_size 256 \
    --num_workers 4 \
    --gpus 0 \
    --precision 16 \
    "${@:2}"
