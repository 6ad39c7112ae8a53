#!/usr/bin/env bash
# Sets up and compares HCSC, MoCo v2+ and SwAV on 10,000 images of CIFAR-10: bash scripts/compare/cifar10.sh [flags]
# A run takes 20 minutes on a CPU core that computes in bf16; on one that does not, add --precision 32. Ends with the
# report's path; started again, it goes on where it was interrupted, and started twice, the two share the runs
# (OMP_NUM_THREADS=1 gives each a core).
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" umap
python scripts/data/cifar10.py --train_images 10000 --val_images 5000

# Settings were chosen by val, 5,000 training images that are held out; test is only for the evaluations.

solo-hcsc compare \
    --dataset custom \
    --data_dir datasets/cifar10-10000 \
    --train_dir train \
    --val_dir val \
    --encoder resnet18 \
    --max_epochs 20 \
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
    --check_val_every_n_epoch 2 \
    --weight_decay 1e-4 \
    --proj_hidden_dim 2048 \
    --methods hcsc mocov2plus swav \
    --seeds 0 1 2 \
    --out trained_models/compare/cifar10 \
    --test_dir test \
    --clustering "--label_hierarchy solo_hcsc/data/label_hierarchies/cifar10.txt" \
    --analyse "--label_hierarchy solo_hcsc/data/label_hierarchies/cifar10.txt" \
    --hcsc "--lr 0.12 --queue_size 256 --symmetric true --temperature 0.2 --base_tau_momentum 0.9 --final_tau_momentum
        0.99 --num_prototypes 200 100 50 --proto_warmup_epochs 3" \
    --mocov2plus "--lr 0.02 --queue_size 2048 --temperature 0.2 --base_tau_momentum 0.99 --final_tau_momentum 0.999" \
    --swav "--lars --grad_clip_lars --eta_lars 0.02 --exclude_bias_n_norm --lr 0.6 --min_lr 0.0006 --weight_decay 1e-6
        --proj_output_dim 128 --num_prototypes 3000 --queue_size 3840 --epoch_queue_starts 50
        --freeze_prototypes_epochs 2" \
    "$@"
