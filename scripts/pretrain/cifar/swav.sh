#!/usr/bin/env bash
# SwAV on CIFAR with two large and six small crops, one GPU: bash scripts/pretrain/cifar/swav.sh cifar10|cifar100 [flags]
solo-hcsc pretrain \
    --dataset "$1" \
    --encoder resnet18 \
    --data_dir ./datasets \
    --max_epochs 1000 \
    --gpus 0 \
    --precision 16 \
    --batch_size 256 \
    --num_workers 4 \
    --brightness 0.8 \
    --contrast 0.8 \
    --saturation 0.8 \
    --hue 0.2 \
    --crop_size 32 18 \
    --num_crops_per_aug 2 6 \
    --min_scale 0.2 0.08 \
    --max_scale 1.0 0.5 \
    --gaussian_prob 0.0 \
    --method swav \
    --optimizer sgd \
    --lars \
    --grad_clip_lars \
    --eta_lars 0.02 \
    --exclude_bias_n_norm \
    --scheduler warmup_cosine \
    --lr 0.6 \
    --min_lr 0.0006 \
    --classifier_lr 0.1 \
    --weight_decay 1e-6 \
    --proj_hidden_dim 2048 \
    --proj_output_dim 128 \
    --num_prototypes 3000 \
    --queue_size 3840 \
    --freeze_prototypes_epochs 2 \
    --name "swav-$1" \
    --epoch_queue_starts 50 \
    "${@:2}"
