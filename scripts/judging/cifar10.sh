#!/usr/bin/env bash
# Sets up and trains five methods in three settings each on 5,000 images of CIFAR-10, with KNN on 2,000 held-out
# training images after every epoch, and says how the measures without labels moved along with it:
# bash scripts/judging/cifar10.sh [flags]. Takes about 40 minutes on a CPU core; run again, it goes on where it stopped.
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""
python scripts/data/cifar10.py --train_images 5000 --val_images 2000

folder=trained_models/judging/cifar10
train() { # NAME METHOD FLAGS: the test images are not read
    [ -n "$(find "$folder/$1" -name '*-ep=7.ckpt' 2>/dev/null)" ] && return
    solo-hcsc pretrain \
        --method "$2" \
        --name "$1" \
        --dataset custom \
        --data_dir datasets/cifar10-5000 \
        --train_dir train \
        --val_dir val \
        --encoder resnet18 \
        --max_epochs 8 \
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
        --weight_decay 1e-4 \
        --proj_hidden_dim 512 \
        --proj_output_dim 128 \
        --checkpoint_dir "$folder/$1" \
        --auto_resume \
        "${@:3}"
}
hcsc="--queue_size 256 --base_tau_momentum 0.9 --final_tau_momentum 0.99 --proto_warmup_epochs 2"
moco="--queue_size 2048 --base_tau_momentum 0.99 --final_tau_momentum 0.99"
swav="--num_prototypes 300 --queue_size 3840 --epoch_queue_starts 50"
train hcsc hcsc $hcsc --lr 0.12
train mocov2plus mocov2plus $moco --lr 0.06
train swav swav $swav --lr 0.3
train simclr simclr --lr 0.1
train vicreg vicreg --lr 0.05
train hcsc-slow hcsc $hcsc --lr 0.006
train mocov2plus-slow mocov2plus $moco --lr 0.003
train swav-slow swav $swav --lr 0.015
train simclr-slow simclr --lr 0.005
train vicreg-no-variance vicreg --lr 0.05 --var_loss_weight 0
train hcsc-warm hcsc $hcsc --lr 0.12 --temperature 1
train mocov2plus-warm mocov2plus $moco --lr 0.06 --temperature 1
train swav-warm swav $swav --lr 0.3 --temperature 1
train simclr-warm simclr --lr 0.1 --temperature 1
train vicreg-slow vicreg --lr 0.0025
python -m benchmarks.judging --runs "$folder" "$@"
