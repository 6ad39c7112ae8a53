#!/usr/bin/env bash
# MoCo v2+ on ImageNet, eight GPUs: bash scripts/pretrain/imagenet/mocov2plus.sh [flags]
${LAUNCH:-python} -m solo_hcsc pretrain \
    --dataset imagenet \
    --encoder resnet50 \
    --data_dir ./datasets \
    --train_dir imagenet/train \
    --val_dir imagenet/val \
    --max_epochs 200 \
    --gpus 0,1,2,3,4,5,6,7 \
    --accelerator ddp \
    --sync_batchnorm \
    --precision 16 \
    --batch_size 32 \
    --num_workers 5 \
    --dali \
    --auto_resume \
    --method mocov2plus \
    --optimizer sgd \
    --scheduler warmup_cosine \
    --proj_hidden_dim 2048 \
    --temperature 0.2 \
    --base_tau_momentum 0.99 \
    --final_tau_momentum 0.999 \
    --momentum_classifier \
    --lr 0.3 \
    --classifier_lr 0.4 \
    --weight_decay 3e-5 \
    --num_crops_per_aug 1 1 \
    --brightness 0.4 \
    --contrast 0.4 \
    --saturation 0.2 \
    --hue 0.1 \
    --gaussian_prob 1.0 0.1 \
    --solarization_prob 0.0 0.2 \
    --name mocov2plus-resnet50-imagenet-200ep \
    --queue_size 65536 \
    "$@"
