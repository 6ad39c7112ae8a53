#!/usr/bin/env bash
# Sets up, pretrains HCSC on scikit-learn's digits, evaluates it with KNN and a linear classifier.
# Flags after the script's name go to pretraining, e.g. --max_epochs 30 or --preset paper.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" ""
folder=trained_models/quickstart/$(date +%Y%m%d-%H%M%S)

# Digits are small and grey: mild crops, no flips, no colours.

solo-hcsc pretrain \
    --encoder resnet18 \
    --batch_size 64 \
    --optimizer sgd \
    --scheduler warmup_cosine \
    --warmup_epochs 1 \
    --lr 0.25 \
    --classifier_lr 0.03 \
    --crop_size 32 \
    --min_scale 0.7 \
    --horizontal_flip_prob 0 \
    --brightness 0.2 \
    --contrast 0.2 \
    --saturation 0 \
    --hue 0 \
    --gray_scale_prob 0 \
    --gaussian_prob 0 \
    --dataset digits \
    --method hcsc \
    --max_epochs 15 \
    --num_workers 2 \
    --num_prototypes 60 30 15 \
    --queue_size 128 \
    --temperature 0.1 \
    --base_tau_momentum 0.99 \
    --final_tau_momentum 0.99 \
    --proto_warmup_epochs 5 \
    --checkpoint_dir "$folder" \
    "$@"

# Both take the images, their size and colours from the run.
solo-hcsc knn --pretrained_feature_extractor "$folder" --num_workers 2

solo-hcsc linear \
    --pretrained_feature_extractor "$folder" \
    --checkpoint_dir "$folder" \
    --num_workers 2 \
    --cache_features \
    --max_epochs 50 \
    --optimizer sgd \
    --lr 0.01 \
    --scheduler cosine \
    --weight_decay 0 \
    --batch_size 256

echo
solo-hcsc summary "$folder"
echo
echo "checkpoints and logs: $folder"
