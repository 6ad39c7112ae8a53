#!/usr/bin/env bash
# Sets up, pretrains a small model on scikit-learn's digits, evaluates it with KNN and a linear classifier.
# Flags after the script's name go to pretraining, e.g. --method swav --max_epochs 20.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" ""
folder=trained_models/quickstart/$(date +%Y%m%d-%H%M%S)

python -m solo_hcsc.pretrain \
    --dataset digits \
    --method mocov2plus \
    --encoder resnet18 \
    --max_epochs 10 \
    --batch_size 64 \
    --num_workers 2 \
    --optimizer sgd \
    --lr 0.3 \
    --classifier_lr 0.03 \
    --scheduler warmup_cosine \
    --warmup_epochs 1 \
    --crop_size 32 \
    --min_scale 0.4 \
    --horizontal_flip_prob 0 \
    --queue_size 1024 \
    --temperature 0.2 \
    --checkpoint_dir "$folder" \
    "$@"

python -m solo_hcsc.knn \
    --dataset digits \
    --crop_size 32 \
    --num_workers 2 \
    --pretrained_feature_extractor "$folder"

python -m solo_hcsc.linear \
    --dataset digits \
    --crop_size 32 \
    --num_workers 2 \
    --max_epochs 10 \
    --optimizer sgd \
    --lr 0.1 \
    --scheduler cosine \
    --weight_decay 0 \
    --batch_size 64 \
    --pretrained_feature_extractor "$folder" \
    --checkpoint_dir "$folder"

echo
python -m solo_hcsc.summary "$folder"
echo
echo "checkpoints and logs: $folder"
