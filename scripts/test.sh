#!/usr/bin/env bash
# Sets up and runs every check: lint, format, types, the floor plan's imports, tests.
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
    if python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then # import-linter needs Python 3.11
        lint-imports --no-cache | tail -n +12
    fi
fi
if ! command -v chromium chromium-browser google-chrome >/dev/null; then # the report is tested in a browser
    if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
        fail "the report's tests need a browser; install Chromium (on Debian: apt install chromium), then run this again"
    fi
    echo "test: installing Chromium, which the report is tested in"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-liberation; } >/dev/null 2>&1 ||
        fail "Chromium could not be installed; install it by hand, then run this again"
fi
# Two test processes share two cores: more threads in each only get in each other's way.
OMP_NUM_THREADS=1 python -m pytest -n 2 --dist worksteal "$@"
