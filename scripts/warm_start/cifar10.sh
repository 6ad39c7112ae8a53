#!/usr/bin/env bash
# Sets up, and goes with HCSC, MoCo v2+ and SwAV from ImageNet's weights to a model and embeddings for others, on 5,000
# images of CIFAR-10 at 64 px: bash scripts/warm_start/cifar10.sh [flags of pretraining]. An hour on one CPU core.
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""
python scripts/data/cifar10.py --train_images 5000 --val_images 3000
bash scripts/data/weights.sh datasets/weights
weights=datasets/weights/efficientnet_lite0.pth
folder=trained_models/warm_start/$(date +%Y%m%d-%H%M%S)
images="--dataset custom --data_dir datasets/cifar10-5000 --train_dir train --val_dir val --crop_size 64 --num_workers 0"
colours="--mean 0.5 0.5 0.5 --std 0.5 0.5 0.5" # as the weights were trained
linear="--cache_features --max_epochs 50 --batch_size 128 --optimizer sgd --scheduler cosine --lr 0.1 --weight_decay 0"

echo "---- before any training"
solo-hcsc knn --pretrained_feature_extractor "$weights" --encoder timm/tf_efficientnet_lite0 $images $colours --k 20
for method in hcsc mocov2plus swav; do
    echo "---- $method"
    case $method in
    hcsc) own="--queue_size 256 --symmetric true --num_prototypes 100 50 20 --base_tau_momentum 0.99" ;;
    mocov2plus) own="--queue_size 1280 --base_tau_momentum 0.99 --proj_hidden_dim 1280" ;;
    swav) own="--queue_size 0 --num_prototypes 300 --proj_output_dim 128 --proj_hidden_dim 1280" ;;
    esac
    solo-hcsc pretrain $images $colours \
        --method $method \
        --encoder timm/tf_efficientnet_lite0 \
        --init_weights "$weights" \
        --max_epochs 1 \
        --batch_size 128 \
        --optimizer sgd \
        --scheduler cosine \
        --lr 0.1 \
        --classifier_lr 0.1 \
        --num_crops_per_aug 2 \
        --min_scale 0.2 \
        --gaussian_prob 0 \
        --checkpoint_dir "$folder" \
        $own "$@"
    run=$folder/$method
    solo-hcsc knn --pretrained_feature_extractor "$run" --num_workers 0 --k 20
    solo-hcsc linear --pretrained_feature_extractor "$run" --num_workers 0 $linear --checkpoint_dir "$run/linear"
    solo-hcsc export "$run" --format timm --out "$run/encoder.safetensors"
    python -c "
import sys, timm
model = timm.create_model('tf_efficientnet_lite0', num_classes=0, checkpoint_path=sys.argv[1])
print(f'timm loaded {sys.argv[1]}: {model.num_features} features')" "$run/encoder.safetensors"
    solo-hcsc embed "$run" --num_workers 0 --map pca --neighbours 10 --out "$run/embeddings"
done
solo-hcsc summary "$folder"
