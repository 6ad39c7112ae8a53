#!/usr/bin/env bash
# Sets up and runs one of the ablations on part of CIFAR-10, judged by held-out training images:
# bash scripts/ablate/cifar10.sh components|levels|prototypes|choices [flags]
# The settings are those of scripts/compare/cifar10.sh, but for --min_cluster_size, which the largest trees need:
# 20 minutes a row on a CPU core that computes in bf16.
table=${1:-}
if [ -z "$table" ]; then echo "error: say which table: components, levels, prototypes or choices" >&2; exit 2; fi
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""
python scripts/data/cifar10.py --train_images 10000 --val_images 5000

solo-hcsc ablate \
    --dataset custom \
    --data_dir datasets/cifar10-10000 \
    --train_dir train \
    --val_dir val \
    --encoder resnet18 \
    --max_epochs 20 \
    --batch_size 128 \
    --num_workers 0 \
    --precision bf16 \
    --optimizer sgd \
    --scheduler warmup_cosine \
    --warmup_epochs 1 \
    --classifier_lr 0.1 \
    --crop_size 32 \
    --num_crops_per_aug 2 \
    --min_scale 0.2 \
    --gaussian_prob 0 \
    --knn_eval \
    --check_val_every_n_epoch 2 \
    --weight_decay 1e-4 \
    --proj_hidden_dim 2048 \
    --lr 0.12 \
    --queue_size 256 \
    --symmetric true \
    --temperature 0.2 \
    --base_tau_momentum 0.9 \
    --final_tau_momentum 0.99 \
    --num_prototypes 200 100 50 \
    --proto_warmup_epochs 3 \
    --table "$table" \
    --seeds 0 \
    --out "trained_models/ablate/cifar10-$table" \
    --clustering "--label_hierarchy solo_hcsc/data/label_hierarchies/cifar10.txt" \
    --min_cluster_size 4 \
    "${@:2}"
