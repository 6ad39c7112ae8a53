#!/usr/bin/env bash
# HCSC on ImageNet with the paper's sizes and schedule, eight GPUs: bash scripts/pretrain/imagenet/hcsc.sh [flags]
# Batch 256 over all GPUs, lr 0.03 (the released code's; the paper gives none), 200 epochs, 20 of them warm-up.
# The preset is `recommended`; --preset official computes what the authors' released code does, --preset paper the
# paper's equations to the letter.
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
    --optimizer sgd \
    --scheduler cosine \
    --lr 0.03 \
    --classifier_lr 0.3 \
    --weight_decay 1e-4 \
    --batch_size 32 \
    --num_workers 5 \
    --dali \
    --brightness 0.4 \
    --contrast 0.4 \
    --saturation 0.4 \
    --hue 0.1 \
    --min_scale 0.2 \
    --name hcsc-resnet50-imagenet-200ep \
    --auto_resume \
    --method hcsc \
    --num_prototypes 3000 2000 1000 \
    --queue_size 16384 \
    --temperature 0.2 \
    --proj_output_dim 128 \
    --proto_warmup_epochs 20 \
    --base_tau_momentum 0.999 \
    --final_tau_momentum 0.999 \
    --momentum_classifier \
    "$@"
