#!/usr/bin/env bash
# Sets up and runs every check: lint, format, types, tests.
# `--oldest` does so in .venv-oldest with the oldest versions that setup.cfg allows; other arguments go to pytest.
here=$(dirname "${BASH_SOURCE[0]}")
if [ "${1:-}" = --oldest ]; then
    shift
    export ENVIRONMENT="$(cd "$here/.." && pwd)/.venv-oldest" CONSTRAINTS="$(cd "$here/.." && pwd)/tests/oldest.txt"
    tools=
fi
source "$here/setup.sh" dev
if [ "${tools-run}" = run ]; then # what they find does not depend on the packages' versions
    ruff check .
    ruff format --check .
    mypy
fi
# Two test processes share two cores: more threads in each only get in each other's way.
OMP_NUM_THREADS=1 python -m pytest -n 2 --dist worksteal "$@"
