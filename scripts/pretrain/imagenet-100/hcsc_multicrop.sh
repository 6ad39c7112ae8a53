#!/usr/bin/env bash
# HCSC on ImageNet-100 with six views as the paper has them, two GPUs:
# bash scripts/pretrain/imagenet-100/hcsc_multicrop.sh [flags]
solo-hcsc pretrain \
    --dataset imagenet100 \
    --encoder resnet18 \
    --data_dir ./datasets \
    --train_dir imagenet-100/train \
    --val_dir imagenet-100/val \
    --max_epochs 400 \
    --gpus 0,1 \
    --accelerator ddp \
    --sync_batchnorm \
    --precision 16 \
    --batch_size 128 \
    --num_workers 4 \
    --dali \
    --optimizer sgd \
    --lr 0.3 \
    --classifier_lr 0.3 \
    --weight_decay 1e-4 \
    --brightness 0.4 \
    --contrast 0.4 \
    --saturation 0.4 \
    --hue 0.1 \
    --crop_size 224 192 160 128 96 \
    --num_crops_per_aug 2 1 1 1 1 \
    --min_scale 0.2 0.172 0.143 0.114 0.086 \
    --max_scale 1.0 0.86 0.715 0.571 0.429 \
    --method hcsc \
    --scheduler cosine \
    --temperature 0.2 \
    --proj_output_dim 128 \
    --momentum_classifier \
    --name hcsc-multicrop-400ep-imagenet100 \
    --num_prototypes 1000 500 200 \
    --queue_size 16384 \
    --proto_warmup_epochs 40 \
    --base_tau_momentum 0.99 \
    --final_tau_momentum 0.99 \
    "$@"
