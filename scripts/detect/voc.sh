#!/usr/bin/env bash
# Detection on PASCAL VOC 2007 and 2012, with the paper's settings: bash scripts/detect/voc.sh CHECKPOINT [flags]
# CHECKPOINT is a file, or a run's folder. VOCdevkit is what the archives of both years' trainval and 2007's test unpack to.
solo-hcsc detect "$1" \
    --dataset voc0712 \
    --data_dir ./datasets/VOCdevkit \
    --gpus 0,1,2,3,4,5,6,7 \
    --batch_size 16 \
    --max_steps 24000 \
    --lr 0.02 \
    --lr_steps 18000 22000 \
    --warmup_steps 100 \
    --num_workers 4 \
    --checkpoint_every_n_steps 500 \
    "${@:2}"
