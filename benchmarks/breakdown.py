"""Where the time of an HCSC epoch goes, as a table and as the picture in docs/performance.md."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from pytorch_lightning.profilers import SimpleProfiler
from torch import nn

from benchmarks import measure
from benchmarks.epoch import UNTIMED, Pretraining, flags_of, make_images, sizes_of

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "solo_hcsc"  # the same numbers give the same file

PICTURE = Path(__file__).parent.parent / "docs" / "epoch.svg"


class Stopwatch:
    """Seconds in a module's forward passes while it trains, and in calls of methods, of it or of its parts."""

    def __init__(self, module: nn.Module, *methods: tuple[nn.Module, str]) -> None:
        self.seconds = 0.0
        started: list[float] = []
        module.register_forward_pre_hook(lambda *_: started.append(time.perf_counter()))
        module.register_forward_hook(lambda *_: self._add(started.pop(), counts=module.training))
        for owner, name in methods:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, method: Callable) -> Callable:
        def timed(*args: Any) -> Any:
            started = time.perf_counter()
            result = method(*args)
            self._add(started)
            return result

        return timed

    def _add(self, started: float, counts: bool = True) -> None:
        self.seconds += counts * (time.perf_counter() - started)


def main() -> None:
    flags = measure.parser(__doc__, repeats=3)
    flags.add_argument("--picture", type=Path, default=PICTURE)
    args = flags.parse_args()
    args.threads = args.threads[-1:]
    sizes = sizes_of(args)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder, sizes["images"], args.seed)
        with measure.threads(args.threads[0]):
            parts = measured(Pretraining(flags_of("HCSC", folder, args, sizes)), args.repeats)
    total = sum(parts.values())
    rows = [{"part": name, "seconds": seconds, "share": seconds / total} for name, seconds in parts.items()]
    measure.show(["part", "seconds", "%"], [(r["part"], r["seconds"], 100 * r["share"]) for r in rows])
    draw(rows, args.picture)
    measure.write("breakdown", args, rows, sizes=sizes)
    print(f"picture: {args.picture}")


def measured(run: Pretraining, repeats: int) -> dict[str, float]:
    """Mean seconds of each part of an epoch."""
    for _ in range(UNTIMED):
        run.epoch()
    coding = run.model.coding
    watches = {
        "encoder, forward": Stopwatch(run.model.encoder),
        "momentum encoder, forward": Stopwatch(run.model.momentum_encoder),
        "selection and losses": Stopwatch(coding, (coding, "enqueue"), (coding.memory, "remember")),
    }
    profiler = run.trainer.profiler = SimpleProfiler()
    for _ in range(repeats):
        run.epoch()

    def of(action: str) -> float:
        return sum(sum(taken) for name, taken in profiler.recorded_durations.items() if name.endswith(action))

    step, backward = of("Strategy.training_step"), of("Strategy.backward")
    parts = {
        "reading and augmenting images": of("train_dataloader_next"),
        **{name: watch.seconds for name, watch in watches.items()},
        "backward": backward,
        "optimiser": of("HCSC.optimizer_step") - step - backward,
        "momentum update": of("HCSC.on_train_batch_end"),
        "clustering": of("HCSC.on_train_epoch_start"),
    }
    parts["logging and the rest"] = of("run_training_epoch") + parts["clustering"] - sum(parts.values())
    return {name: seconds / repeats for name, seconds in parts.items()}


def draw(rows: list[dict[str, Any]], picture: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.4 * len(rows) + 0.8))
    names = [row["part"] for row in rows]
    bars = axes.barh(names, [100 * row["share"] for row in rows], color="#4878a8")
    axes.bar_label(bars, [f"{100 * row['share']:.1f} %" for row in rows], padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("% of an epoch")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
