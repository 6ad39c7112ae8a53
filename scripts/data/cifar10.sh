#!/usr/bin/env bash
# Sets up and gets CIFAR-10: bash scripts/data/cifar10.sh [flags]. It is laid out below ./datasets/cifar10.
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""
python scripts/data/cifar10.py "$@"
