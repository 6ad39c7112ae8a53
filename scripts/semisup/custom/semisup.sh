#!/usr/bin/env bash
# Fine-tuning on few labels of your own images:
# bash scripts/semisup/custom/semisup.sh DATA_DIR TRAIN_DIR VAL_DIR CHECKPOINT --label_fraction 0.1 [flags]
# CHECKPOINT is a file, or a run's folder.
solo-hcsc semisup \
    --dataset custom \
    --data_dir "$1" \
    --train_dir "$2" \
    --val_dir "$3" \
    --pretrained_feature_extractor "$4" \
    --max_epochs 70 \
    --optimizer sgd \
    --scheduler step \
    --lr_decay_steps 30 60 \
    --lr 0.005 \
    --head_lr 0.005 \
    --weight_decay 0 \
    --batch_size 256 \
    --num_workers 4 \
    "${@:5}"
