#!/usr/bin/env bash
# Detection and masks on COCO, with the paper's settings: bash scripts/detect/coco.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. The data's folder has annotations, train2017 and val2017.
solo-hcsc detect "$1" \
    --dataset coco \
    --data_dir ./datasets/coco \
    --gpus 0,1,2,3,4,5,6,7 \
    --batch_size 16 \
    --max_steps 180000 \
    --lr 0.02 \
    --lr_steps 120000 160000 \
    --warmup_steps 100 \
    --num_workers 4 \
    --checkpoint_every_n_steps 2000 \
    "${@:2}"
