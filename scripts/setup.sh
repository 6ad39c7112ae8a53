#!/usr/bin/env bash
# Makes the environment that the other scripts work in; they source this file: `source scripts/setup.sh [EXTRA]`.
# It has what all commands of the README need: pages, tables, wandb, and weights to start from.
# Uses the active virtual or conda environment, or makes .venv in the checkout. Skipped in a second once it is done;
# a half-finished one is finished. ENVIRONMENT=folder and CONSTRAINTS=file change where and which versions.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
extra=${1:-}

fail() {
    echo "setup: $*" >&2
    exit 2
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python python3.14 python3.13 python3.12 python3.11 python3.10; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.10 or newer is needed and was not found; install it, or name it with PYTHON=/path/to/python3"
}

install() {
    local log=$1
    shift
    if ! "$environment/bin/python" -m pip install --disable-pip-version-check "$@" >>"$log" 2>&1; then
        local missing
        missing=$(sed -n 's/.*No matching distribution found for //p' "$log" | sort -u | paste -sd, -)
        if [ -n "$missing" ]; then
            fail "could not get: $missing. Is the package index reachable? Details: $log. Run this again to go on."
        elif grep -q "No space left" "$log"; then
            fail "the disk is full; PyTorch needs about 7 GB in $environment. Details: $log"
        fi
        tail -n 3 "$log" >&2
        fail "installing failed; details: $log. Run this again to go on."
    fi
}

environment=${ENVIRONMENT:-${VIRTUAL_ENV:-${CONDA_PREFIX:-$root/.venv}}}
stamp="$environment/.solo_hcsc-setup-${extra:-base}"
wanted=$(cat "$root"/{setup.cfg,pyproject.toml,scripts/setup.sh} ${CONSTRAINTS:-} | cksum; echo "$root")

# What the tests need includes every other extra.
if [ "$(cat "$environment/.solo_hcsc-setup-dev" 2>/dev/null)" = "$wanted" ]; then
    stamp="$environment/.solo_hcsc-setup-dev"
fi
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || ! "$environment/bin/python" -c '' 2>/dev/null; then
    if ! "$environment/bin/python" -m pip --version >/dev/null 2>&1; then
        if [ -e "$environment" ] && [ "$environment" != "$root/.venv" ] && [ ! -e "$environment/.solo_hcsc-made" ]; then
            fail "$environment has no working pip; run \"$environment/bin/python -m ensurepip\", or deactivate it"
        fi
        python=$(find_python)
        echo "setup: making a virtual environment in $environment ($("$python" --version))"
        "$python" -m venv --clear "$environment" >/dev/null 2>&1 || fail \
            "$python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"
        touch "$environment/.solo_hcsc-made" # ours: it may be made anew if it breaks
    fi
    common="report,tables,wandb,weights${extra:+,$extra}"
    if "$environment/bin/python" -c 'import faiss' 2>/dev/null; then
        extras="$common" # faiss-cpu and faiss-gpu exclude each other: keep the one that is there
    elif command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then
        extras="gpu,$common"
    else
        extras="cpu,$common"
    fi
    log="$environment/setup.log"
    : >"$log"
    echo "setup: installing PyTorch and what else is needed (about 3 minutes and 7 GB); log: $log"
    install "$log" ${CONSTRAINTS:+-c "$CONSTRAINTS"} -e "$root[$extras]"
    install "$log" --no-deps solo-learn==1.0.2
    "$environment/bin/python" -c 'import solo_hcsc.solo102' >>"$log" 2>&1 || {
        tail -n 3 "$log" >&2
        fail "the installed packages do not import; details: $log"
    }
    echo "$wanted" >"$stamp"
    echo "setup: done"
fi
export PATH="$environment/bin:$PATH"
cd "$root"
