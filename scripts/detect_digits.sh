#!/usr/bin/env bash
# Sets up, pretrains HCSC on scikit-learn's digits, and trains detectors of digits on textures: from the pretrained
# encoder, and from a random one, for as many iterations. Flags after the script's name go to both detectors.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" ""
folder=trained_models/detect_digits/$(date +%Y%m%d-%H%M%S)
scenes=datasets/digit-scenes
[ -d "$scenes" ] || python scripts/data/digit_scenes.py "$scenes"
