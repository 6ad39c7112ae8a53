#!/usr/bin/env bash
# The published HCSC on ImageNet with six views, eight GPUs: bash scripts/pretrain/imagenet/hcsc_multicrop.sh [flags]
# Two views of 224 px, query and key, and further queries of 192, 160, 128 and 96 px. The values are those of the authors'
# configs/multi_crop_200eps_bs256.yaml, which gave 73.3 % linear accuracy; hcsc.sh says what else there is to know.
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
    --preset official \
    --num_prototypes 3000 2000 1000 \
    --queue_size 16384 \
    --proto_warmup_epochs 20 \
    --base_tau_momentum 0.999 \
    --final_tau_momentum 0.999 \
    --lr 0.03 \
    --optimizer sgd \
    --classifier_lr 0.3 \
    --weight_decay 1e-4 \
    --name hcsc-multicrop-resnet50-imagenet-200ep \
    --local_selection true \
    "$@"
