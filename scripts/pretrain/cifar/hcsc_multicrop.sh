#!/usr/bin/env bash
# HCSC on CIFAR with two large and six small crops, one GPU:
# bash scripts/pretrain/cifar/hcsc_multicrop.sh cifar10|cifar100 [flags]
solo-hcsc pretrain \
    --dataset "$1" \
    --encoder resnet18 \
    --data_dir ./datasets \
    --max_epochs 1000 \
    --gpus 0 \
    --precision 16 \
    --batch_size 256 \
    --num_workers 4 \
    --optimizer sgd \
    --lr 0.3 \
    --classifier_lr 0.3 \
    --weight_decay 1e-4 \
    --brightness 0.4 \
    --contrast 0.4 \
    --saturation 0.4 \
    --hue 0.1 \
    --crop_size 32 18 \
    --num_crops_per_aug 2 6 \
    --min_scale 0.2 0.08 \
    --max_scale 1.0 0.5 \
    --gaussian_prob 0.0 \
    --method hcsc \
    --scheduler cosine \
    --temperature 0.2 \
    --proj_output_dim 128 \
    --momentum_classifier \
    --name "hcsc-multicrop-$1" \
    --num_prototypes 500 250 100 \
    --queue_size 32768 \
    --proto_warmup_epochs 100 \
    --base_tau_momentum 0.99 \
    --final_tau_momentum 0.99 \
    "${@:2}"
