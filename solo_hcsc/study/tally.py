"""What a folder of runs comes to: mean and spread over seeds, cost and curves, in `comparison.json`."""

import json
import os
import platform
import shlex
import statistics
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from solo_hcsc.study.record import MEASURES
from solo_hcsc.study.runner import Finished, finished_runs
from solo_hcsc.evaluation.results import versions, write_whole

_CURVES = ("val_knn_acc1", "val_acc1", "left_out")  # beginnings of names in metrics.csv


def write(out: Path, about: dict[str, Any], names: Sequence[str], failed: dict[str, str]) -> None:
    """Reads the runs of the rows `names` below `out` and writes what they come to."""
    runs = finished_runs(out)
    by_name = {name: list(group) for name, group in groupby(runs, key=lambda run: run.name)}
    comparison = {
        **about,
        "machine": machine(),
        "versions": versions(),
        "rows": [row_of(name, by_name[name], out) for name in names],
        "failed": failed,
    }
    write_whole(out / "comparison.json", json.dumps(comparison, indent=1) + "\n")


def row_of(name: str, runs: Sequence[Finished], out: Path) -> dict[str, Any]:
    described = [describe(run, out) for run in runs]
    measures = {}
    for measure in MEASURES:
        values = [one["measures"][measure] for one in described if measure in one["measures"]]
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else None
            measures[measure] = {"mean": statistics.mean(values), "spread": spread, "values": values}
    fastest = min(described, key=lambda one: one["epoch_seconds"])  # other work on the machine only adds
    cost = {key: fastest[key] for key in ("epochs", "epoch_seconds", "seconds")}
    cost["peak_memory"] = max(one["peak_memory"] for one in described)
    return {
        "name": name,
        "flags": shlex.join(runs[0].flags),
        "measures": measures,
        "cost": cost,
        "runs": described,
    }


def describe(run: Finished, out: Path) -> dict[str, Any]:
    results = run.results
    measures = {
        name: results[kind.evaluation]["metrics"][kind.metric]
        for name, kind in MEASURES.items()
        if kind.evaluation in results
    }
    return {
        "seed": run.seed,
        "folder": run.folder.relative_to(out).as_posix(),
        "command": run.command,
        "evaluation_commands": [result["command"] for result in results.values()],
        "measures": measures,
        **run.cost,
        "checkpoint_sha256": next((result["checkpoint_sha256"] for result in results.values()), ""),
        "curves": {name: curve for name, curve in run.curves.items() if name.startswith(_CURVES)},
    }


def machine() -> dict[str, Any]:
    """What the seconds were measured on."""
    import torch

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": names,
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
