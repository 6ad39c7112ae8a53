#!/usr/bin/env bash
# Sets up, pretrains HCSC on scikit-learn's digits, and runs every evaluation of the paper that digits allow.
# Flags after the script's name go to pretraining, e.g. --max_epochs 30 or --preset paper.
# CUB=folder, VOC=folder, PLACES=folder, VOCDEVKIT=folder and COCO=folder add the evaluations on other data sets, where
# you have them; the last two train detectors.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" ""
folder=trained_models/evaluate_all/$(date +%Y%m%d-%H%M%S)
encoder="--pretrained_feature_extractor $folder"
digits="--dataset digits --crop_size 32 --num_workers 2"

# As scripts/quickstart.sh, with half of its epochs.
solo-hcsc pretrain $digits \
    --method hcsc \
    --encoder resnet18 \
    --max_epochs 8 \
    --batch_size 64 \
    --optimizer sgd \
    --scheduler warmup_cosine \
    --warmup_epochs 1 \
    --lr 0.25 \
    --classifier_lr 0.03 \
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
    --proto_warmup_epochs 3 \
    --checkpoint_dir "$folder" \
    "$@"

echo; echo "== knn =="
solo-hcsc knn $encoder $digits

echo; echo "== clustering =="
solo-hcsc clustering $encoder $digits --k 10 60

# 10 epochs at a lower learning rate than the paper's, which has 100 and 1,000 times the images.
echo; echo "== linear =="
solo-hcsc linear $encoder $digits --checkpoint_dir "$folder" --config adco --lr 0.1 --batch_size 64 --max_epochs 10

echo; echo "== linear, many learning rates, cached features =="
solo-hcsc linear $encoder $digits --checkpoint_dir "$folder" --config pcl --cache_features --lr_sweep

# Digits have no mirror images: no flips would be better, but this is the protocol.
for share in 0.01 0.1; do
    echo; echo "== semisup, $share of the labels =="
    solo-hcsc semisup $encoder $digits --checkpoint_dir "$folder" --label_fraction $share --head_lr 0.1 \
        --max_epochs 20 --lr_decay_steps 10 15 --check_val_every_n_epoch 5
done

if [ -n "${CUB:-}" ]; then
    echo; echo "== zeroshot on CUB =="
    solo-hcsc zeroshot $encoder --dataset cub --data_dir "$CUB" --crop_size 32
fi
if [ -n "${VOC:-}" ]; then
    echo; echo "== voc =="
    solo-hcsc voc $encoder --data_dir "$VOC" --crop_size 32 --checkpoint_dir "$folder"
fi
if [ -n "${PLACES:-}" ]; then
    echo; echo "== places =="
    solo-hcsc places $encoder --data_dir "$PLACES" --crop_size 32 --checkpoint_dir "$folder"
fi
if [ -n "${VOCDEVKIT:-}" ]; then
    echo; echo "== detect on VOC07+12 =="
    solo-hcsc detect "$folder" --dataset voc0712 --data_dir "$VOCDEVKIT" --checkpoint_dir "$folder"
fi
if [ -n "${COCO:-}" ]; then
    echo; echo "== detect on COCO =="
    solo-hcsc detect "$folder" --dataset coco --data_dir "$COCO" --checkpoint_dir "$folder"
fi

echo
solo-hcsc summary "$folder"
