#!/usr/bin/env bash
# Sets up, pretrains HCSC on scikit-learn's digits, and trains detectors of digits on textures: from the pretrained
# encoder, and from a random one, for as many iterations. Flags after the script's name go to both detectors.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" ""
folder=trained_models/detect_digits/$(date +%Y%m%d-%H%M%S)
scenes=datasets/digit-scenes
[ -d "$scenes" ] || python scripts/data/digit_scenes.py "$scenes"

# As scripts/quickstart.sh.
solo-hcsc pretrain \
    --dataset digits \
    --method hcsc \
    --encoder resnet18 \
    --max_epochs 15 \
    --batch_size 64 \
    --num_workers 2 \
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
    --num_prototypes 60 30 15 \
    --queue_size 128 \
    --temperature 0.1 \
    --base_tau_momentum 0.99 \
    --final_tau_momentum 0.99 \
    --proto_warmup_epochs 5 \
    --checkpoint_dir "$folder"

# Digits have no mirror images, and pictures of 128 pixels need small anchors and few regions.
for weights in "" --random_weights; do
    solo-hcsc detect "$folder" $weights \
        --dataset voc \
        --data_dir "$scenes" \
        --checkpoint_dir "$folder" \
        --num_workers 0 \
        --horizontal_flip_prob 0 \
        --min_size_train 160 \
        --min_size_test 160 \
        --anchor_sizes 28 40 56 \
        --rois_per_image 32 \
        --pool_size 4 \
        --batch_size 8 \
        --max_steps 100 \
        --lr 0.05 \
        --warmup_steps 30 \
        --precise_bn 30 \
        "$@"
done

echo
solo-hcsc summary "$folder"
