"""Equal search: each method gets the same number of trials of the same kind before the methods are compared.

A trial is a short or a whole pretraining with settings drawn at random from the method's own ranges, judged by the
online KNN accuracy on held-out training images. Trials that are below the median of the earlier ones at the same epoch
are stopped (optuna's `MedianPruner`). `OUT/search/METHOD/trial-N/trial.json` has a trial once it has ended; what has
ended is not repeated, and an interrupted trial goes on.
"""

import json
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from solo_hcsc.errors import MissingPackage, UserError, on_one_line
from solo_hcsc.files import read_json, write_whole
from solo_hcsc.hcsc.options import levels_for
from solo_hcsc.progress import say
from solo_hcsc.runs.results import read_metrics
from solo_hcsc.study import runner
from solo_hcsc.study.job import Job, plain, words
from solo_hcsc.study.record import Search, Trial
from solo_hcsc.study.runner import RESUMED, RunFailed, RunTakenElsewhere, shown, taking
from solo_hcsc.tables import clock

if TYPE_CHECKING:
    import optuna

METRIC = "val_knn_acc1"
TRIALS_FIRST = 4  # that are never stopped, so that there is a median
EPOCHS_FIRST = 2  # before which no trial is stopped: a rate's warm-up is over


@dataclass(frozen=True)
class Between:
    """A number that is drawn between two others, evenly in its logarithm."""

    low: float
    high: float

    def draw(self, trial: "optuna.Trial", name: str) -> float:
        """Draw a number, of four digits."""
        return float(f"{trial.suggest_float(name, self.low, self.high, log=True):.4g}")

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}, evenly in the logarithm"


@dataclass(frozen=True)
class OneOf:
    """One of some values; one that is a tuple is of a setting that has several."""

    values: tuple[Any, ...]

    def draw(self, trial: "optuna.Trial", name: str) -> Any:
        """Draw a value."""
        by_text = {_text(value): value for value in self.values}
        return by_text[str(trial.suggest_categorical(name, tuple(by_text)))]

    def __str__(self) -> str:
        return ", ".join(map(_text, self.values))


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


Space = Mapping[str, Between | OneOf]  # by the name of the setting


@dataclass(frozen=True)
class TrialScale:
    """The sizes of a trial that its ranges depend on.

    Args:
        batch: images of a step.
        images: how many are trained with.
        lars: whether the rate is scaled by layer, which needs larger ones.
    """

    batch: int
    images: int
    lars: bool = False


def _rates(scale: TrialScale) -> Between:
    return Between(0.1, 2.0) if scale.lars else Between(0.01, 0.3)


def _queues(scale: TrialScale) -> OneOf:
    """Return two batches, which is one step's keys of both views, up to 32; not more than half of the images."""
    most = max(2, scale.images // 2 // scale.batch)
    return OneOf(tuple(count * scale.batch for count in dict.fromkeys(min(n, most) for n in (2, 4, 8, 16, 32))))


MOMENTA = OneOf((0.9, 0.99, 0.996, 0.999))
TEMPERATURES = OneOf((0.1, 0.15, 0.2, 0.3))


def _of_hcsc(scale: TrialScale) -> Space:
    bottom = levels_for(scale.images)[0]
    trees = [tuple(max(2, round(bottom * share * part)) for part in (1, 2 / 3, 1 / 3)) for share in (0.25, 0.5, 1)]
    fitting = dict.fromkeys(tuple(sorted(set(tree), reverse=True)) for tree in trees)
    return {
        "lr": _rates(scale),
        "queue_size": _queues(scale),
        "base_tau_momentum": MOMENTA,
        "temperature": TEMPERATURES,
        "num_prototypes": OneOf(tuple(fitting)),
        "proto_weight": Between(0.05, 2.0),
    }


def _of_moco(scale: TrialScale) -> Space:
    return {
        "lr": _rates(scale),
        "queue_size": _queues(scale),
        "base_tau_momentum": MOMENTA,
        "temperature": TEMPERATURES,
    }


def _of_swav(scale: TrialScale) -> Space:
    return {
        "lr": _rates(scale),
        "num_prototypes": OneOf((30, 100, 300, 1000, 3000)),
        "temperature": TEMPERATURES,
        "freeze_prototypes_epochs": OneOf((0, 1)),
        "proj_output_dim": OneOf((128, 256)),
    }


def _of_simclr(scale: TrialScale) -> Space:
    return {"lr": _rates(scale), "temperature": TEMPERATURES}


def _of_byol(scale: TrialScale) -> Space:
    return {"lr": _rates(scale), "base_tau_momentum": MOMENTA}


SPACES: dict[str, Callable[[TrialScale], Space]] = {
    "hcsc": _of_hcsc,
    "mocov2plus": _of_moco,
    "swav": _of_swav,
    "simclr": _of_simclr,
    "byol": _of_byol,
}


def space_of(method: str, scale: TrialScale, fixed: Container[str]) -> Space:
    """Return what is drawn for a method: its ranges but for the settings that were given.

    Args:
        method: its name.
        scale: what the ranges depend on.
        fixed: names of settings that the user chose for the method.

    Example:
        >>> list(space_of("mocov2plus", TrialScale(batch=128, images=5000), fixed=["temperature"]))
        ['lr', 'queue_size', 'base_tau_momentum']
    """
    if method not in SPACES:
        raise UserError(f"`search`: {method} has no documented ranges; compare of {', '.join(SPACES)}")
    return {name: values for name, values in SPACES[method](scale).items() if name not in fixed}


@dataclass(frozen=True)
class Searched:
    """A method and what its trials are made of."""

    name: str
    settings: Mapping[str, Any]  # of pretraining, as JSON has them, without `seed`
    space: Space


class EqualSearch:
    """The trials of several methods below one folder.

    Args:
        out: the comparison's folder.
        methods: each with its ranges.
        trials: of each method.
        epochs: of a trial; its settings are judged at the last of them.
        seed: of the draws and of the trials' runs.
        images: held out, which judge the trials.
    """

    def __init__(
        self, out: Path, methods: Sequence[Searched], trials: int, epochs: int, seed: int, images: int
    ) -> None:
        self.out, self.methods, self.trials, self.epochs, self.seed = out, methods, trials, epochs, seed
        self.images = images

    def run(self) -> Search:
        """Do all trials that have not ended yet, method by method in turn; return the record of all."""
        studies = {method.name: _study(self.ended(method)) for method in self.methods}
        for number in range(self.trials):
            for method in self.methods:
                if number >= len(studies[method.name].trials):
                    self._one(method, number, studies[method.name])
        return self.record()

    def record(self) -> Search:
        """Return the record of all trials."""
        return Search(
            metric=METRIC,
            trials=self.trials,
            epochs=self.epochs,
            seed=self.seed,
            images=self.images,
            ranges={one.name: {name: str(values) for name, values in one.space.items()} for one in self.methods},
            of_methods={method.name: self.ended(method) for method in self.methods},
        )

    def ended(self, method: Searched) -> list[Trial]:
        """Read the trials of a method that have ended, in order; refuse those of another search."""
        found = []
        for number in range(self.trials):
            file = self._folder(method, number) / "trial.json"
            if not file.is_file():
                break
            try:
                trial = Trial.model_validate(read_json(file))
            except ValidationError as error:
                raise UserError(f"{file}: not a trial's record ({on_one_line(str(error))}); remove it") from error
            if trial.seed != self.seed or trial.common != dict(method.settings) or trial.epochs_asked != self.epochs:
                raise UserError(f"{file}: is of another search; give another `out`, or remove {file.parent.parent}")
            found.append(trial)
        return found

    def _folder(self, method: Searched, number: int) -> Path:
        return self.out / "search" / method.name / f"trial-{number}"

    def _one(self, method: Searched, number: int, study: "optuna.Study") -> None:
        """Do one trial, from its draws to its record."""
        study.sampler = _sampler(self.seed, number)
        trial = study.ask()
        drawn = plain({name: values.draw(trial, name) for name, values in method.space.items()})
        folder = self._folder(method, number)
        folder.mkdir(parents=True, exist_ok=True)
        say(f"[search {number + 1}/{self.trials}] {method.name} {shown(drawn)} ...")
        started = time.monotonic()
        judged = {"max_epochs": self.epochs, "knn_eval": True, "check_val_every_n_epoch": 1, "seed": self.seed}
        job = Job("pretrain", {**method.settings, **drawn, **judged}, {"checkpoint_dir": str(folder), **RESUMED})
        watching = _Watching(folder, trial, self.epochs)
        state: Literal["finished", "stopped", "failed"] = "finished"
        why = None
        with _held(folder) as lock:
            try:
                runner.call(job, folder, lock, stop=watching.is_hopeless)
                state = "stopped" if watching.stopped else state
            except RunFailed as error:
                state, why = "failed", str(error)
            curve = watching.look()
            value = curve[-1][1] if curve else None
            if state == "finished" and value is None:
                state, why = "failed", f"its metrics.csv has no {METRIC}"
            ended = Trial(
                number=number,
                seed=self.seed,
                base=words(method.settings),
                flags=words(drawn),
                common=dict(method.settings),
                settings=drawn,
                drawn={name: _text(value) for name, value in drawn.items()},
                epochs_asked=self.epochs,
                state=state,
                why=why,
                value=value if state == "finished" else None,
                curve=curve,
                seconds=time.monotonic() - started,
            )
            write_whole(folder / "trial.json", json.dumps(ended.model_dump(), indent=1) + "\n")
        _tell(study, trial, ended)
        reached = f"{value:.2f}" if value is not None else "no accuracy"
        told = {"finished": reached, "stopped": f"stopped at {reached}", "failed": f"failed: {why}"}[state]
        say(f"    {told}, {clock(ended.seconds)}")


class _Watching:
    """Read a running trial's accuracies as they are written, and ask the pruner; not after the last epoch."""

    def __init__(self, folder: Path, trial: "optuna.Trial", epochs: int) -> None:
        self.folder, self.trial, self.epochs, self.stopped = folder, trial, epochs, False
        self._told: set[int] = set()

    def look(self) -> list[tuple[int, float]]:
        """Return the accuracies so far: pairs of epoch and value."""
        files = sorted(self.folder.rglob("metrics.csv"), key=lambda file: file.stat().st_mtime)
        found: dict[int, float] = {}
        for file in files:
            found.update(read_metrics(file, lambda name: name == METRIC).get(METRIC, {}))
        return sorted(found.items())

    def is_hopeless(self) -> bool:
        """Return whether the pruner would stop the trial now."""
        for epoch, value in self.look():
            if epoch not in self._told:
                self._told.add(epoch)
                self.trial.report(value, epoch)
                is_over = epoch + 1 >= self.epochs
                self.stopped = self.stopped or (not is_over and self.trial.should_prune())
        return self.stopped


def _sampler(seed: int, number: int) -> "optuna.samplers.BaseSampler":
    """Return the sampler of one trial, by its number: a resumed search draws as one that was never interrupted."""
    optuna = import_optuna()
    return optuna.samplers.RandomSampler(seed=1_000 * seed + number)


def _study(ended: Sequence[Trial]) -> "optuna.Study":
    """Make a study that knows the trials that have ended.

    Trials are kept in files of ours rather than in optuna's storage. There a trial that was killed stays running, so
    that it would have to be found and gone on with by hand, and all that a record has beside it would be attributes.
    """
    optuna = import_optuna()
    pruner = optuna.pruners.MedianPruner(n_startup_trials=TRIALS_FIRST, n_warmup_steps=EPOCHS_FIRST)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for trial in ended:
        study.add_trial(_frozen(trial))
    return study


def _frozen(trial: Trial) -> Any:
    optuna = import_optuna()
    states = {"finished": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState[states[trial.state]],
        value=trial.value,
        intermediate_values=dict(trial.curve),
    )


def _tell(study: "optuna.Study", trial: "optuna.Trial", ended: Trial) -> None:
    optuna = import_optuna()
    states = {"finished": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}
    study.tell(trial, ended.value, optuna.trial.TrialState[states[ended.state]])


@contextmanager
def _held(folder: Path) -> Iterator[int]:
    """Hold a trial's folder, which no other process may share: the trials' order decides what is stopped."""
    try:
        with taking(folder) as lock:
            yield lock
    except RunTakenElsewhere:
        raise UserError(f"`search`: another process works on {folder}; wait for it to end") from None


def import_optuna() -> Any:
    """Import the package and quieten it; or say in one line how to get it."""
    try:
        import optuna
    except ImportError:
        raise MissingPackage("`search` needs optuna: pip install 'solo_hcsc[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
