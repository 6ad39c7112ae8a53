"""Many runs side by side, each pretrained and evaluated by jobs in processes of their own.

`OUT/NAME/seed-N` has a run: `row.json`, the row as it was asked for, `jobs/` with the last job of each function, their
log, what they wrote, and `run.json` once pretraining is finished. What is finished is not repeated, and what was
interrupted goes on. Several processes may work on one folder: each run is taken by one of them, which alone writes
there.
"""

import fcntl
import hashlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from solo_hcsc.encoders.recorded import PRETRAINING, recorded_flags, role_of
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import read_json, write_whole
from solo_hcsc.progress import say
from solo_hcsc.runs.results import read_metrics, read_results
from solo_hcsc.study.job import Job, line
from solo_hcsc.tables import clock

SECONDS_BETWEEN_LOOKS = 1.0  # at a job that may be ended early
RESUMED = {"auto_resume": True, "auto_resumer_max_hours": 100_000}


@dataclass(frozen=True)
class Variant:
    """One row of a comparison: a method, or a form of it."""

    name: str
    settings: Mapping[str, Any]  # of pretraining, as JSON has them, without `seed`
    epochs: int
    base: str  # the row at equal epochs of which this is a longer one; its own name if it is none

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.+-]+", "-", self.name).strip("-")

    def longer(self, epochs: int) -> "Variant":
        """Return the same with more epochs, as a row of its own."""
        settings = {**self.settings, "max_epochs": epochs}
        return Variant(f"{self.name}, {epochs} epochs", settings, epochs, self.name)

    def begun_longer(self, out: Path) -> int | None:
        """Return the epochs of such a row that the folder has, finished or not."""
        rows = [read_row(file) for file in out.glob("*/seed-*/row.json")]
        return max((row.epochs for row in rows if row.base == self.name != row.name), default=None)


@dataclass(frozen=True)
class Evaluation:
    """A job on a finished run."""

    function: str
    result: str  # the name, or a pattern of it, of the file that it writes below the run's folder
    settings: Mapping[str, Any] = field(default_factory=dict)  # as JSON has them
    into: tuple[str, str] | None = None  # a setting and the folder for it below the run's; else beside the checkpoint
    first_seed_only: bool = False

    def of(self, run: Path) -> Job:
        """Return the job for the run in a folder."""
        where = {self.into[0]: str(run / self.into[1])} if self.into else {}
        return Job(self.function, self.settings, {"pretrained_feature_extractor": str(run), **where})

    def record(self, run: Path) -> None:
        """Note that the newest result is of these settings."""
        made = {"settings": self.settings, "result_sha256": _sha256(self._newest(run))}
        self._record(run).parent.mkdir(exist_ok=True)
        write_whole(self._record(run), json.dumps(made, indent=2) + "\n")

    def settings_of_result(self, run: Path) -> dict[str, Any] | None:
        """Return the settings of the run's newest result; None without one, nothing where another hand made it."""
        newest, file = self._newest(run), self._record(run)
        if newest is None:
            return None
        made = read_json(file) if file.is_file() else {}
        if not isinstance(made, dict) or not isinstance(made.get("settings", {}), dict):
            raise UserError(f"{file}: not the record of an evaluation; remove it to repeat that")
        settings: dict[str, Any] = made.get("settings", {}) if made.get("result_sha256") == _sha256(newest) else {}
        return settings

    def _newest(self, run: Path) -> Path | None:
        return max(run.rglob(self.result), key=lambda file: file.stat().st_mtime, default=None)

    def _record(self, run: Path) -> Path:
        return run / "jobs" / f"done-{self.function}.json"


def _sha256(file: Path | None) -> str | None:
    return None if file is None else hashlib.sha256(file.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Finished:
    """A pretrained run; `run.json` has it."""

    name: str
    base: str
    epochs: int
    seed: int
    settings: dict[str, Any]
    folder: Path

    @property
    def command(self) -> str:
        """Return what a reader would type for this run."""
        return line("pretrain", {**self.settings, "seed": self.seed})

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Return the evaluations' results by name."""
        return {result["evaluation"]: result for result in read_results(self.folder)}

    @cached_property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Read what was logged once per epoch, by its name in metrics.csv: pairs of epoch and value."""
        found: dict[str, dict[int, float]] = {}
        # A run that was interrupted has a folder for each of its parts; the later one counts.
        for file in sorted(self._pretraining_metrics(), key=lambda file: file.stat().st_mtime):
            for name, values in read_metrics(file, _once_per_epoch).items():
                found.setdefault(name, {}).update(values)
        return {name: sorted(values.items()) for name, values in found.items()}

    def _pretraining_metrics(self) -> Iterator[Path]:
        """Yield the metrics.csv of pretraining, as opposed to those of classifiers on its encoder."""
        for file in self.folder.rglob("metrics.csv"):
            flags = recorded_flags(file)
            if flags and role_of(flags) == PRETRAINING:
                yield file

    @property
    def images(self) -> set[str]:
        """Return fingerprints of the images that it was trained on; none where a run did not record any."""
        found = (recorded_flags(file).get("images") for file in self._pretraining_metrics())
        return {one for one in found if one}

    @property
    def cost(self) -> dict[str, Any]:
        """Return epochs, seconds in all and of the median epoch, and the peak memory in bytes (the GPU's if any)."""
        curves = self.curves
        missing = [name for name in ("epoch_seconds", "memory_mb") if name not in curves]
        if missing:
            raise UserError(f"{self.folder}: its metrics.csv has no {' and no '.join(missing)}; remove it to repeat it")
        seconds = [value for _, value in curves["epoch_seconds"]]
        memory = [value for _, value in curves.get("gpu_memory_mb", curves["memory_mb"])]
        return {
            "epochs": len(seconds),
            "seconds": sum(seconds),
            "epoch_seconds": statistics.median(seconds),
            "peak_memory": max(memory) * 1e6,
        }


def _once_per_epoch(column: str) -> bool:
    return column not in ("epoch", "step") and not column.endswith("_step")


class RunFailed(Exception):
    """One run could not be finished; the others go on."""


class RunTakenElsewhere(Exception):
    """Another process works on this run."""


class Experiments:
    """Runs of several variants with several seeds below one folder."""

    def __init__(self, out: Path, evaluations: Sequence[Evaluation]) -> None:
        self.out = out
        self.evaluations = evaluations
        self.failed: dict[str, str] = {}
        self._taken: dict[str, tuple[Variant, int, bool]] = {}
        self._took: list[float] = []

    def run(self, variants: Sequence[Variant], seeds: Sequence[int]) -> None:
        """Do all runs, seed by seed, so that every variant has a figure early."""
        todo = [(variant, seed) for seed in seeds for variant in variants]
        for number, (variant, seed) in enumerate(todo):
            label, started = f"{variant.name}, seed {seed}", time.monotonic()
            whole = sum(not (self._folder(*one) / "run.json").is_file() for one in todo[number:])
            left = f"; about {clock(statistics.mean(self._took) * whole)} left" if self._took and whole else ""
            say(f"[{number + 1}/{len(todo)}] {label}{left}")
            try:
                pretrained = self._one(variant, seed, seed == seeds[0])
            except RunFailed as error:
                self.failed[label] = str(error)
                say(f"    failed: {error}")
            except RunTakenElsewhere:
                self._taken[label] = variant, seed, seed == seeds[0]
                say("    another process works on it")
            else:
                if pretrained:
                    self._took.append(time.monotonic() - started)

    def _one(self, variant: Variant, seed: int, first: bool) -> bool:
        """Do what is left of a run, up to its last evaluation; return False if it was pretrained before."""
        folder = self._folder(variant, seed)
        folder.mkdir(parents=True, exist_ok=True)
        record, took = folder / "run.json", {}
        with taking(folder) as lock:
            write_whole(folder / "row.json", json.dumps(asdict(variant), indent=2) + "\n")
            if not record.is_file():
                here = {"checkpoint_dir": str(folder), **RESUMED}
                say("    pretrain ...")
                took["pretrain"] = call(Job("pretrain", {**variant.settings, "seed": seed}, here), folder, lock)
                write_whole(record, json.dumps(asdict(variant) | {"seed": seed}, indent=2) + "\n")
            for evaluation in self._missing(folder, first):
                say(f"    {evaluation.function} ...")
                took[evaluation.function] = call(evaluation.of(folder), folder, lock)
                evaluation.record(folder)
        found = ", ".join(f"{name} {_headline(result)}" for name, result in read_run(record).results.items())
        times = ", ".join(f"{function} {clock(seconds)}" for function, seconds in took.items())
        say(f"    took {times}: {found}" if took else f"    finished before: {found}")
        return "pretrain" in took

    def _missing(self, folder: Path, first: bool) -> list[Evaluation]:
        """Return the evaluations that a run still needs."""
        return [
            one
            for one in self.evaluations
            if (first or not one.first_seed_only) and one.settings_of_result(folder) != one.settings
        ]

    def elsewhere(self) -> list[str]:
        """Return the runs that another process had taken and has not finished since."""
        found = []
        for label, (variant, seed, first) in self._taken.items():
            folder = self._folder(variant, seed)
            if not (folder / "run.json").is_file() or self._missing(folder, first):
                found.append(label)
        return found

    def _folder(self, variant: Variant, seed: int) -> Path:
        return self.out / variant.folder / f"seed-{seed}"


def finished_runs(out: Path) -> list[Finished]:
    """Return all runs of the folder that are pretrained, also those of earlier calls."""
    runs = [read_run(file) for file in sorted(out.glob("*/seed-*/run.json"))]
    return sorted(runs, key=lambda run: (run.folder.parent.name, run.seed))


def read_row(file: Path) -> Variant:
    try:
        return Variant(**read_json(file))
    except (UserError, TypeError) as error:
        raise UserError(f"{file}: not a row's record ({error}); remove it") from error


def read_run(file: Path) -> Finished:
    try:
        return Finished(**read_json(file), folder=file.parent)
    except (UserError, TypeError) as error:
        raise UserError(f"{file}: not a run's record ({error}); remove it to repeat the run") from error


def check_unchanged(out: Path, variants: Sequence[Variant]) -> None:
    """Refuse to add runs with other settings under a name that the folder has."""
    settings = {variant.name: variant.settings for variant in variants}
    for run in finished_runs(out):
        if run.name in settings and run.settings != settings[run.name]:
            raise UserError(
                f"`out` {out}: {run.name} {_changed(run.settings, settings[run.name])}; give another folder, or remove "
                f"{run.folder.parent}"
            )


def check_same_images(out: Path, images: str) -> None:
    """Refuse to stand beside runs that were trained on other images."""
    for run in finished_runs(out):
        if run.images - {images}:
            raise UserError(
                f"`out` {out}: {run.name}, seed {run.seed} was trained on other images (names, sizes or classes "
                "of files differ from those there now); give another folder"
            )


def check_judged_alike(out: Path, evaluations: Sequence[Evaluation], again: Callable[[Finished], bool]) -> None:
    """Refuse to stand beside runs that were evaluated with other settings, but for those that are evaluated again."""
    others = [run for run in finished_runs(out) if not again(run)]
    for run, evaluation in product(others, (one for one in evaluations if not one.first_seed_only)):
        before = evaluation.settings_of_result(run.folder)
        if before is not None and before != evaluation.settings:
            raise UserError(
                f"`out` {out}: {evaluation.function} of {run.name}, seed {run.seed} "
                f"{_changed(before, evaluation.settings)}; name that run too, which repeats it, or give another folder"
            )


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say which settings differ."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    old, new = (shown({name: one[name] for name in names if name in one}) for one in (before, now))
    return f"was run with other settings ({old}, now {new})"


def shown(settings: Mapping[str, Any]) -> str:
    """Return settings as text that names them as arguments."""
    texts = {name: " ".join(map(str, one)) if isinstance(one, list) else str(one) for name, one in settings.items()}
    return on_one_line(" ".join(f"`{name}` {text}" for name, text in texts.items())) or "fewer"


@contextmanager
def taking(folder: Path) -> Iterator[int]:
    """Hold a run's folder. The jobs inherit the lock: it ends with the last process that works there."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunTakenElsewhere from None
        yield lock
    finally:
        os.close(lock)


def call(job: Job, folder: Path, lock: int, stop: Callable[[], bool] | None = None) -> float:
    """Run a job of the run in a folder, with its output in `log.txt`; return its seconds.

    Ends the job where this process is ended. `stop` is asked now and then, and ends the job where it returns True; that
    is no failure.
    """
    started, log, file = time.monotonic(), folder / "log.txt", folder / "jobs" / f"job-{job.function}.json"
    job.write(file)
    with log.open("a") as out:
        out.write(f"\n$ python -m solo_hcsc.study.job {file}\n")
        out.flush()
        words = [sys.executable, "-m", "solo_hcsc.study.job", str(file)]
        process = subprocess.Popen(words, stdout=out, stderr=out, pass_fds=[lock])
        try:
            with _ended_by_sigterm():
                code = process.wait() if stop is None else _watched(process, stop)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if code < 0:
        raise RunFailed(f"{job.function} was killed by signal {-code} ({signal.Signals(-code).name}); log: {log}")
    if code:
        raise RunFailed(f"{job.function} ended with code {code}: {_last_line(log)}; log: {log}")
    return time.monotonic() - started


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process as an exception does; only a main thread may choose that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _watched(process: "subprocess.Popen[bytes]", stop: Callable[[], bool]) -> int:
    """Wait for a process; return its exit code, 0 where it was ended because `stop` said so."""
    while True:
        try:
            return process.wait(SECONDS_BETWEEN_LOOKS)
        except subprocess.TimeoutExpired:
            if stop():
                process.terminate()
                process.wait()
                return 0


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _headline(result: dict[str, Any]) -> str:
    if result["evaluation"] == "clustering":
        return f"AMI {result['metrics']['ami']:.3f}"
    return f"{result['metrics']['picked' if result['evaluation'] == 'fewlabels' else 'acc1']:.2f}"
