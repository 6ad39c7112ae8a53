"""Aggregate finished runs: mean and spread over seeds, cost and curves."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from solo_hcsc.runs.results import JUDGED, versions
from solo_hcsc.study.job import words
from solo_hcsc.study.record import MEASURES, Comparison, Cost, Evaluated, Measure, Row, SeedRun
from solo_hcsc.study.runner import Finished

_CURVES = ("val_knn_acc1", "val_acc1", "left_out", *JUDGED)  # beginnings of names in metrics.csv


def tally(
    out: Path, runs: Sequence[Finished], order: Sequence[str], about: Mapping[str, Any], failed: Mapping[str, str]
) -> Comparison:
    """Aggregate the runs below a folder.

    Args:
        out: The folder.
        runs: All that are finished.
        order: The names of the rows, each of which has a run.
        about: The other fields of a `Comparison`: title, kind, budget, command, settings, reference, elsewhere.
        failed: Runs that failed, and why.
    """
    rows = [row_of([run for run in runs if run.name == name], out) for name in order]
    return Comparison(**about, machine=machine(), versions=versions(), rows=rows, failed=dict(failed))


def row_of(runs: Sequence[Finished], out: Path) -> Row:
    """Aggregate all seeds of one variant."""
    found = [seed_run(run, out) for run in runs]
    measures = {}
    for name in MEASURES:
        values = [run.measures[name] for run in found if name in run.measures]
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else None
            counts = {run.evaluations[MEASURES[name].evaluation].images for run in found if name in run.measures}
            images = counts.pop() if len(counts) == 1 else None
            measures[name] = Measure(mean=statistics.mean(values), spread=spread, values=values, images=images)
    fastest = min(runs, key=lambda run: run.cost["epoch_seconds"])  # other work on the machine only adds
    peak = max(run.cost["peak_memory"] for run in runs)
    first = runs[0]
    return Row(
        name=first.name,
        base=first.base,
        epochs=first.epochs,
        flags=words(first.settings),
        settings=first.settings,
        measures=measures,
        cost=Cost.model_validate({**fastest.cost, "peak_memory": peak}),
        runs=found,
    )


def seed_run(run: Finished, out: Path) -> SeedRun:
    """Return what is recorded of one run."""
    results = run.results
    return SeedRun(
        seed=run.seed,
        folder=run.folder.relative_to(out).as_posix(),
        command=run.command,
        flags=words(run.settings),
        settings=run.settings,
        evaluations={
            name: Evaluated(
                command=result["command"],
                split=result["settings"].get("split"),
                images=result["data"].get(f"{result['settings'].get('split', 'val')}_images"),
            )
            for name, result in results.items()
        },
        measures={
            name: results[kind.evaluation]["metrics"][kind.metric]
            for name, kind in MEASURES.items()
            if kind.evaluation in results
        },
        cost=Cost.model_validate(run.cost),
        checkpoint_sha256=next((result["checkpoint_sha256"] for result in results.values()), ""),
        warnings=next((result.get("warnings", []) for result in results.values()), []),
        curves={name: list(curve) for name, curve in run.curves.items() if name.startswith(_CURVES)},
    )


def machine() -> dict[str, Any]:
    """Return what the seconds were measured on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
    }


def processor() -> str:
    """Return the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
