#!/usr/bin/env bash
# Sets up and measures what few labels of CIFAR-10 are worth, picked or random, with the features of three encoders:
# HCSC's own run on 10,000 images, HCSC from ImageNet's weights on 5,000, and these weights as they are:
# bash scripts/fewlabels/cifar10.sh [flags of fewlabels]. Takes 50 minutes on two CPU cores.
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""
python scripts/data/cifar10.py --train_images 10000 --val_images 5000
python scripts/data/cifar10.py --train_images 5000 --val_images 3000
bash scripts/data/weights.sh datasets/weights
weights=datasets/weights/efficientnet_lite0.pth
folder=trained_models/fewlabels/cifar10
large="--dataset custom --data_dir datasets/cifar10-10000 --train_dir train --val_dir val"
small="--dataset custom --data_dir datasets/cifar10-5000 --train_dir train --val_dir val"
lite0="--encoder timm/tf_efficientnet_lite0 --crop_size 64 --mean 0.5 0.5 0.5 --std 0.5 0.5 0.5"
hcsc="--method hcsc --queue_size 256 --symmetric true --batch_size 128 --num_workers 0 --optimizer sgd
    --classifier_lr 0.1 --num_crops_per_aug 2 --min_scale 0.2 --gaussian_prob 0"

# As in scripts/compare/cifar10.sh.
solo-hcsc pretrain $large $hcsc \
    --encoder resnet18 \
    --max_epochs 20 \
    --precision bf16 \
    --scheduler warmup_cosine \
    --warmup_epochs 1 \
    --lr 0.12 \
    --weight_decay 1e-4 \
    --crop_size 32 \
    --knn_eval \
    --check_val_every_n_epoch 2 \
    --proj_hidden_dim 2048 \
    --temperature 0.2 \
    --base_tau_momentum 0.9 \
    --final_tau_momentum 0.99 \
    --num_prototypes 200 100 50 \
    --proto_warmup_epochs 3 \
    --checkpoint_dir "$folder/own"
# As in scripts/warm_start/cifar10.sh.
solo-hcsc pretrain $small $hcsc $lite0 \
    --init_weights "$weights" \
    --max_epochs 1 \
    --scheduler cosine \
    --lr 0.1 \
    --num_prototypes 100 50 20 \
    --base_tau_momentum 0.99 \
    --checkpoint_dir "$folder/warm"

# Settings were chosen by val, training images that are held out; the test images are for these figures only.
measure() { solo-hcsc fewlabels "$@" --val_dir test --num_workers 0; }
measure "$folder/own" --out "$folder/own/fewlabels" "$@"
measure "$folder/warm" --out "$folder/warm/fewlabels" "$@"
measure "$weights" $small $lite0 --out "$folder/imagenet" "$@"
