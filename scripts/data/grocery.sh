#!/usr/bin/env bash
# Sets up and gets the Grocery Store data set: bash scripts/data/grocery.sh [FOLDER|ARCHIVE]. It is 5,421 photos of 81
# kinds of food in 43 groups (MIT licence), from GitHub, or from a clone or an archive that is given, and is laid out
# below ./datasets/grocery.
given=${1:+$(realpath -m "$1")}
source "$(dirname "${BASH_SOURCE[0]}")/../setup.sh" ""
python scripts/data/grocery.py ${given:+"$given"} "${@:2}"
