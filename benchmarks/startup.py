"""How long a command takes to show its help, beside the imports that any training with Lightning needs.

Every help in a fresh process, the commands taking turns. CPU time (user and system) counts, because other work on the
machine stretches the wall time; the goals are 1.3 times the imports for pretraining's help, 0.3 for all others.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure
from solo_hcsc.__main__ import known

IMPORTS = "import pytorch_lightning, torchvision"
PRETRAINING, OTHERS = 1.3, 0.3  # goals, in times of the imports
# Runs a command and prints its CPU seconds, wall seconds and peak bytes. A process of its own, and a small one: the
# kernel counts what a process was forked from in its peak, and this one has torch.
CLOCK = """
import json, os, subprocess, sys, time
started = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
wall = time.perf_counter() - started
print(json.dumps([used.ru_utime + used.ru_stime, wall, used.ru_maxrss * 1024]))
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Taken(NamedTuple):
    """What one process took."""

    cpu: float  # seconds
    wall: float
    peak: int  # bytes


def main() -> None:
    args = measure.parser(__doc__, repeats=5).parse_args()
    del args.threads  # each process has its own
    ways = ways_of(args.small)
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    for repeat in range(args.repeats):
        for name, command in ways.items():
            taken[name].append(run(command))
        print(f"round {repeat + 1}/{args.repeats}: {sum(all_[-1].wall for all_ in taken.values()):.0f} s", flush=True)
    rows = [row(name, found, taken["imports"]) for name, found in taken.items()]
    measure.show(
        ["command", "CPU s", "x imports", "goal", "wall s", "x imports", "peak MB"],
        [
            (
                r["way"],
                r["median_seconds"],
                r["ratio"],
                r["goal"],
                r["median_wall_seconds"],
                r["wall_ratio"],
                r["peak_bytes"] / 1e6,
            )
            for r in rows
        ],
    )
    missed = [r["way"] for r in rows if r["ratio"] > r["goal"]]
    print(f"over their goal: {', '.join(missed)}" if missed else "all within their goals")
    measure.write("startup", args, rows, imports=IMPORTS)


def ways_of(small: bool) -> dict[str, list[str]]:
    """The commands by the names that the table has for them; "imports" is what the others are compared with."""
    helps = ["--help", *(f"{name} --help" for name in known())]
    helps.insert(helps.index("pretrain --help") + 1, "pretrain --method hcsc --help")
    if small:
        helps = ["--help", "knn --help"]
    package = [sys.executable, "-m", "solo_hcsc"]
    return {"imports": [sys.executable, "-c", IMPORTS]} | {words: [*package, *words.split()] for words in helps}


def run(command: list[str]) -> Taken:
    out = subprocess.run(
        [sys.executable, "-S", "-c", CLOCK, *command],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    if out.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with code {out.returncode}: {out.stderr}")
    return Taken(*json.loads(out.stdout))


def row(name: str, taken: list[Taken], imports: list[Taken]) -> dict[str, Any]:
    """CPU seconds as every benchmark's, and wall seconds and the largest peak beside them."""
    wall = statistics.median(one.wall for one in taken)
    goal = 1.0 if name == "imports" else PRETRAINING if name.startswith("pretrain ") else OTHERS
    return measure.row(
        name,
        [one.cpu for one in taken],
        [one.cpu for one in imports],
        goal=goal,
        median_wall_seconds=wall,
        wall_seconds=[round(one.wall, 6) for one in taken],
        wall_ratio=wall / statistics.median(one.wall for one in imports),
        peak_bytes=max(one.peak for one in taken),
    )


if __name__ == "__main__":
    main()
