"""Measurements, each one command: `python -m benchmarks.step`. README.md has the tables."""

import os

from solo_hcsc.quiet import quiet

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler reports every start and stop
quiet()

import solo_hcsc.solo102  # noqa: E402, F401  repairs solo-learn, of which a benchmark may import anything
