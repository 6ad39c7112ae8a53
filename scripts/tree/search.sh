#!/usr/bin/env bash
# Sets up and compares HCSC, MoCo v2+ and SwAV on the Grocery Store photos after equal search, from ImageNet's weights
# at 48 px: as many trials of each on held-out photos, then the winners with all seeds, at equal time, on the test photos.
# bash scripts/tree/search.sh [flags of compare]. Two minutes a run on a CPU core of its own.
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" search
[ -d datasets/grocery-96 ] || python scripts/data/grocery.py ${GROCERY:+"$GROCERY"} --side 96
bash scripts/data/weights.sh datasets/weights

solo-hcsc compare \
    --dataset custom \
    --data_dir datasets/grocery-96 \
    --train_dir train \
    --val_dir val \
    --crop_size 48 \
    --batch_size 88 \
    --encoder timm/tf_efficientnet_lite0 \
    --init_weights datasets/weights/efficientnet_lite0.pth \
    --mean 0.5 0.5 0.5 \
    --std 0.5 0.5 0.5 \
    --freeze_batchnorm \
    --freeze_encoder_epochs 1 \
    --gradient_clip_val 1 \
    --max_epochs 4 \
    --num_workers 0 \
    --accelerator cpu \
    --num_crops_per_aug 2 \
    --min_scale 0.2 \
    --gaussian_prob 0 \
    --solarization_prob 0 \
    --optimizer sgd \
    --scheduler cosine \
    --classifier_lr 0.1 \
    --weight_decay 1e-4 \
    --checkpoint_frequency 100 \
    --methods hcsc mocov2plus swav \
    --search 8 \
    --budget seconds \
    --seeds 0 1 2 3 4 \
    --out trained_models/tree/search \
    --test_dir test \
    --evaluations knn clustering \
    --hcsc "--clustered_space encoder --clustered_features images --proto_warmup_epochs 0 --proto_ramp_epochs 0
        --final_tau_momentum 0.999" \
    --mocov2plus "--proj_hidden_dim 1280 --proj_output_dim 128 --final_tau_momentum 0.999" \
    --swav "--proj_hidden_dim 1280 --queue_size 0" \
    "$@"
