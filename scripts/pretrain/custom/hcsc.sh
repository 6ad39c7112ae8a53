#!/usr/bin/env bash
# HCSC on your own images: bash scripts/pretrain/custom/hcsc.sh DATA_DIR TRAIN_DIR [flags]
# TRAIN_DIR, below DATA_DIR, has one folder per class (--class_level chooses among folders in folders); for images
# without classes add --no_labels. The size of the tree follows the number of images; --num_prototypes sets it.
# --val_dir DIR (labelled, below DATA_DIR) adds validation; --dali and --gpus 0,1 work as for ImageNet.
solo-hcsc pretrain \
    --dataset custom \
    --encoder resnet18 \
    --data_dir "$1" \
    --train_dir "$2" \
    --max_epochs 400 \
    --batch_size 128 \
    --num_workers 4 \
    --optimizer sgd \
    --lr 0.3 \
    --classifier_lr 0.3 \
    --weight_decay 1e-4 \
    --brightness 0.4 \
    --contrast 0.4 \
    --saturation 0.4 \
    --hue 0.1 \
    --method hcsc \
    --scheduler cosine \
    --temperature 0.2 \
    --proj_output_dim 128 \
    --momentum_classifier \
    --min_scale 0.2 \
    --name hcsc-custom \
    --queue_size 16384 \
    --proto_warmup_epochs 40 \
    --base_tau_momentum 0.99 \
    --final_tau_momentum 0.99 \
    "${@:3}"
