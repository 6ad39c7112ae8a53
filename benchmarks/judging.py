"""Measures without labels: what they cost of an epoch, and how they moved along with KNN in the runs of a folder.

Cost: CPU time in the callback that judges, hooks included, over that of the whole epoch, in one-sided HCSC, whose epoch
is the shortest. Runs: Spearman's rank correlation with KNN on held-out images, over the epochs of each run, with
and without its first, over the changes from epoch to epoch of all runs, and over the runs as they ended.
"""

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pytorch_lightning import Callback, LightningModule, Trainer
from scipy import stats

from benchmarks import measure
from benchmarks.epoch import UNTIMED, Pretraining, flags_of, make_images, sizes_of
from solo_hcsc.runs.results import JUDGED, read_metrics
from solo_hcsc.training.convolutions import FastConvolutions
from solo_hcsc.training.judging import JudgeEpoch

KNN = "val_knn_acc1"
RESAMPLED = 1999


class TimedJudge(JudgeEpoch):
    """Knows the seconds that the processor spent on judging."""

    seconds = 0.0

    def on_train_batch_start(self, *args: Any) -> None:
        self._time(super().on_train_batch_start, *args)

    def _take(self, *args: Any) -> None:
        self._time(super()._take, *args)

    def on_train_epoch_end(self, *args: Any) -> None:
        self._time(super().on_train_epoch_end, *args)

    def _time(self, method: Any, *args: Any) -> None:
        started = time.process_time()
        method(*args)
        self.seconds += time.process_time() - started


class TimedEpoch(Callback):
    """The processor's seconds of an epoch, from before the clustering."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.process_time()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds = time.process_time() - self._started


def main() -> None:
    flags = measure.parser(__doc__, repeats=3)
    flags.add_argument("--runs", type=Path, help="a folder with runs that had --knn_eval")
    flags.add_argument("--images", type=int, nargs="+", default=[1400, 10_000], help="of the epochs to time")
    args = flags.parse_args()
    args.threads = args.threads[:1]
    costs = [cost(args, images) for images in args.images]
    measure.show(
        ["images", "seconds per epoch", "judging", "%"],
        [(c["images"], c["epoch_seconds"], c["judging_seconds"], 100 * c["share"]) for c in costs],
    )
    runs = [] if args.runs is None else read_runs(args.runs)
    measures = [correlations(name, runs, args.seed) for name in JUDGED] if runs else []
    if runs:
        measure.show(["run", "epochs", "KNN", *JUDGED], [(r["run"], r["epochs"], *r["last"].values()) for r in runs])
        measure.show(
            ["measure", "within runs", "after epoch 1", "of changes", "at the end", "low", "high", "p"],
            [shown(m) for m in measures],
        )
    measure.write("judging", args, costs, runs=runs, measures=measures)


def cost(args: Namespace, images: int) -> dict[str, Any]:
    """The medians of an epoch and of judging it."""
    with tempfile.TemporaryDirectory() as name, measure.threads(args.threads[0]):
        folder = Path(name)
        make_images(folder, images, args.seed)
        run = Pretraining(flags_of("HCSC", folder, args, sizes_of(args)))
        judge, epoch = TimedJudge(), TimedEpoch()
        run.trainer.callbacks[:0] = [FastConvolutions(), judge]
        run.trainer.callbacks.append(epoch)
        judging, epochs = [], []
        for _ in range(UNTIMED + args.repeats):
            judge.seconds = 0.0
            run.epoch()
            judging.append(judge.seconds)
            epochs.append(epoch.seconds)
    shares = [part / whole for part, whole in zip(judging, epochs, strict=True)][UNTIMED:]
    medians = {"epoch_seconds": epochs[UNTIMED:], "judging_seconds": judging[UNTIMED:], "share": shares}
    return {"images": images, **{name: statistics.median(values) for name, values in medians.items()}}


def read_runs(folder: Path) -> list[dict[str, Any]]:
    """Of each run its last figures and its curves, at the epochs that have all; shorter runs are not finished."""
    found = []
    for file in sorted(folder.rglob("metrics.csv")):
        curves = read_metrics(file, (KNN, *JUDGED).__contains__)
        shared = sorted(set.intersection(*(set(curves.get(name, {})) for name in (KNN, *JUDGED))))
        if len(shared) > 1:
            values = {name: [curves[name][epoch] for epoch in shared] for name in (KNN, *JUDGED)}
            last = {name: series[-1] for name, series in values.items()}
            name = file.relative_to(folder).parts[0]
            found.append({"run": name, "epochs": len(shared), "last": last, "curves": values})
    return [run for run in found if run["epochs"] == max(other["epochs"] for other in found)]


def correlations(name: str, runs: Sequence[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Spearman's rank correlation of a measure with KNN; None where one of them does not vary."""
    curves = [run["curves"] for run in runs]
    within, later = ([spearman(one[name][first:], one[KNN][first:]) for one in curves] for first in (0, 1))
    changes = [np.concatenate([np.diff(one[which]) for one in curves]) for which in (name, KNN)]
    ends = [np.array([run["last"][which] for run in runs]) for which in (name, KNN)]
    result = {"measure": name, "runs": len(runs), "within": known(within), "later": known(later)}
    result |= {"changes": spearman(*changes), "number_of_changes": len(changes[0])}
    result |= {"at_end": spearman(*ends), "low": None, "high": None, "p": None}
    if result["at_end"] is not None and len(runs) > 3:
        random = np.random.default_rng(seed)
        drawn = [spearman(*(e[pick] for e in ends)) for pick in random.integers(len(runs), size=(RESAMPLED, len(runs)))]
        low, high = np.quantile(known(drawn), [0.025, 0.975])
        shuffled = [abs(spearman(random.permutation(ends[0]), ends[1]) or 0.0) for _ in range(RESAMPLED)]
        reached = sum(rho >= abs(result["at_end"]) - 1e-12 for rho in shuffled)
        result |= {"low": float(low), "high": float(high), "p": (reached + 1) / (RESAMPLED + 1)}
    return result


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    return None if np.ptp(x) == 0 or np.ptp(y) == 0 else float(stats.spearmanr(x, y).statistic)


def known(rhos: Sequence[float | None]) -> list[float]:
    return [rho for rho in rhos if rho is not None]


def shown(found: dict[str, Any]) -> tuple[str, ...]:
    spreads = [
        f"{statistics.median(rhos):.2f} ({min(rhos):.2f} to {max(rhos):.2f})" if (rhos := found[which]) else ""
        for which in ("within", "later")
    ]
    rest = [found[name] for name in ("changes", "at_end", "low", "high", "p")]
    return (found["measure"], *spreads, *("" if value is None else f"{value:.2f}" for value in rest))


if __name__ == "__main__":
    main()
