"""Many runs side by side, each pretrained and evaluated by the commands that a user would type.

`OUT/NAME/seed-N` has a run: `row.json`, the row as it was asked for, its log, what the commands wrote, and `run.json`
once pretraining is finished. What is finished is not repeated, and what was interrupted goes on. Several processes may
work on one folder: each run is taken by one of them, which alone writes there.
"""

import fcntl
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from solo_hcsc.encoders.recorded import PRETRAINING, recorded_flags, role_of
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import read_json, write_whole
from solo_hcsc.runs.results import read_metrics, read_results
from solo_hcsc.tables import clock

SECONDS_BETWEEN_LOOKS = 1.0  # at a command that may be ended early


@dataclass(frozen=True)
class Variant:
    """One row of a comparison: a method, or a form of it."""

    name: str
    flags: tuple[str, ...]  # of pretraining, without --seed
    epochs: int
    base: str  # the row at equal epochs of which this is a longer one; its own name if it is none

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.+-]+", "-", self.name).strip("-")

    def longer(self, epochs: int) -> "Variant":
        """The same with more epochs, as a row of its own."""
        flags = (*self.flags, "--max_epochs", str(epochs))
        return Variant(f"{self.name}, {epochs} epochs", flags, epochs, self.name)

    def begun_longer(self, out: Path) -> int | None:
        """The epochs of such a row that the folder has, finished or not."""
        rows = [read_row(file) for file in out.glob("*/seed-*/row.json")]
        return max((row.epochs for row in rows if row.base == self.name != row.name), default=None)


@dataclass(frozen=True)
class Evaluation:
    """A command on a finished run."""

    command: str
    result: str  # the name, or a pattern of it, of the file that it writes below the run's folder
    flags: tuple[str, ...] = ()
    into: tuple[str, ...] = ()  # a flag and the folder for it below the run's; others write beside the checkpoint
    first_seed_only: bool = False
    run_comes_first: bool = False  # where the command takes the run as its first word, without a flag

    def of(self, run: Path) -> list[str]:
        where = [self.into[0], str(run / self.into[1])] if self.into else []
        named = [] if self.run_comes_first else ["--pretrained_feature_extractor"]
        return [*named, str(run), *self.flags, *where]

    def flags_of_result(self, run: Path) -> tuple[str, ...] | None:
        """The flags that the run's newest result was made with, but for those that name places; None without one."""
        files = sorted(run.rglob(self.result), key=lambda file: file.stat().st_mtime)
        if not files:
            return None
        content = read_json(files[-1])
        if not isinstance(content, dict) or not isinstance(content.get("flags"), list):
            raise UserError(f"{files[-1]}: not a result of solo-hcsc {self.command}; remove it to repeat that")
        words = iter(content["flags"][self.run_comes_first :])
        places = ("--pretrained_feature_extractor", *self.into[:1])
        return tuple(word for word in words if word not in places or next(words, None) is None)


@dataclass(frozen=True)
class Finished:
    """A pretrained run; `run.json` has it."""

    name: str
    base: str
    epochs: int
    seed: int
    flags: list[str]
    folder: Path

    @property
    def command(self) -> str:
        return f"solo-hcsc pretrain {shlex.join([*self.flags, '--seed', str(self.seed)])}"

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The evaluations' results by name."""
        return {result["evaluation"]: result for result in read_results(self.folder)}

    @cached_property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """What was logged once per epoch, by its name in metrics.csv: pairs of epoch and value."""
        found: dict[str, dict[int, float]] = {}
        # A run that was interrupted has a folder for each of its parts; the later one counts.
        for file in sorted(self._pretraining_metrics(), key=lambda file: file.stat().st_mtime):
            for name, values in read_metrics(file, _once_per_epoch).items():
                found.setdefault(name, {}).update(values)
        return {name: sorted(values.items()) for name, values in found.items()}

    def _pretraining_metrics(self) -> Iterator[Path]:
        """The metrics.csv of pretraining, as opposed to those of classifiers on its encoder."""
        for file in self.folder.rglob("metrics.csv"):
            flags = recorded_flags(file)
            if flags and role_of(flags) == PRETRAINING:
                yield file

    @property
    def images(self) -> set[str]:
        """Fingerprints of the images that it was trained on; none where a run did not record any."""
        found = (recorded_flags(file).get("images") for file in self._pretraining_metrics())
        return {one for one in found if one}

    @property
    def cost(self) -> dict[str, Any]:
        """Epochs, seconds in all and of the median epoch, and the most memory in bytes, of the GPU if there is one."""
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


class Taken(Exception):
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
        """All runs, seed by seed, so that every variant has a figure early."""
        todo = [(variant, seed) for seed in seeds for variant in variants]
        for number, (variant, seed) in enumerate(todo):
            label, started = f"{variant.name}, seed {seed}", time.monotonic()
            whole = sum(not (self._folder(*one) / "run.json").is_file() for one in todo[number:])
            left = f"; about {clock(statistics.mean(self._took) * whole)} left" if self._took and whole else ""
            print(f"[{number + 1}/{len(todo)}] {label}{left}", flush=True)
            try:
                pretrained = self._one(variant, seed, seed == seeds[0])
            except RunFailed as error:
                self.failed[label] = str(error)
                print(f"    failed: {error}", flush=True)
            except Taken:
                self._taken[label] = variant, seed, seed == seeds[0]
                print("    another process works on it", flush=True)
            else:
                if pretrained:
                    self._took.append(time.monotonic() - started)

    def _one(self, variant: Variant, seed: int, first: bool) -> bool:
        """A run from pretraining to its last evaluation, or what is left of it; False if it was pretrained before."""
        folder = self._folder(variant, seed)
        folder.mkdir(parents=True, exist_ok=True)
        log, record = folder / "log.txt", folder / "run.json"
        with taking(folder) as lock:
            write_whole(folder / "row.json", json.dumps(asdict(variant), indent=2) + "\n")
            steps = self._steps(variant, seed, first)
            for command, flags in steps:
                print(f"    {command} ...", end="", flush=True)
                seconds = call(command, flags, log, lock)
                print(f" {clock(seconds)}", flush=True)
                if command == "pretrain":
                    write_whole(record, json.dumps(asdict(variant) | {"seed": seed}, indent=2) + "\n")
        found = read_run(record)
        shown = ", ".join(f"{name} {_headline(result)}" for name, result in found.results.items())
        print(f"    {'' if steps else 'finished before: '}{shown}", flush=True)
        return any(command == "pretrain" for command, _ in steps)

    def _steps(self, variant: Variant, seed: int, first: bool) -> list[tuple[str, list[str]]]:
        """The commands that a run still needs, and their flags."""
        folder = self._folder(variant, seed)
        steps = []
        if not (folder / "run.json").is_file():
            again = ["--auto_resume", "--auto_resumer_max_hours", "100000"]
            flags = [*variant.flags, "--seed", str(seed), "--checkpoint_dir", str(folder), *again]
            steps.append(("pretrain", flags))
        steps += [
            (evaluation.command, evaluation.of(folder))
            for evaluation in self.evaluations
            if (first or not evaluation.first_seed_only) and evaluation.flags_of_result(folder) != evaluation.flags
        ]
        return steps

    def elsewhere(self) -> list[str]:
        """The runs that another process had taken and has not finished since."""
        return [label for label, run in self._taken.items() if self._steps(*run)]

    def _folder(self, variant: Variant, seed: int) -> Path:
        return self.out / variant.folder / f"seed-{seed}"


def finished_runs(out: Path) -> list[Finished]:
    """All runs of the folder that are pretrained, also those of earlier commands."""
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
    """Refuses to add runs with other flags under a name that the folder has."""
    flags = {variant.name: variant.flags for variant in variants}
    for run in finished_runs(out):
        if run.name in flags and tuple(run.flags) != flags[run.name]:
            raise UserError(
                f"`out` {out}: {run.name} {_other_flags(run.flags, flags[run.name])}; give another folder, or remove "
                f"{run.folder.parent}"
            )


def check_same_images(out: Path, images: str) -> None:
    """Refuses to stand beside runs that were trained on other images."""
    for run in finished_runs(out):
        if run.images - {images}:
            raise UserError(
                f"`out` {out}: {run.name}, seed {run.seed} was trained on other images (names, sizes or classes "
                "of files differ from those there now); give another folder"
            )


def check_judged_alike(out: Path, evaluations: Sequence[Evaluation], again: Callable[[Finished], bool]) -> None:
    """Refuses to stand beside runs that were evaluated with other flags, but for those that are evaluated again."""
    others = [run for run in finished_runs(out) if not again(run)]
    for run, evaluation in product(others, (one for one in evaluations if not one.first_seed_only)):
        before = evaluation.flags_of_result(run.folder)
        if before is not None and before != evaluation.flags:
            raise UserError(
                f"`out` {out}: {evaluation.command} of {run.name}, seed {run.seed} "
                f"{_other_flags(before, evaluation.flags)}; name that run too, which repeats it, or give another folder"
            )


def _other_flags(before: Sequence[str], now: Sequence[str]) -> str:
    old, new = (" ".join(sorted(set(a) - set(b))) for a, b in ((before, now), (now, before)))
    return f"was run with other flags ({on_one_line(old) or 'fewer'}, now {on_one_line(new) or 'fewer'})"


@contextmanager
def taking(folder: Path) -> Iterator[int]:
    """Holds a run's folder. The commands inherit the lock: it ends with the last process that works there."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Taken from None
        yield lock
    finally:
        os.close(lock)


def call(command: str, flags: Sequence[str], log: Path, lock: int, stop: Callable[[], bool] | None = None) -> float:
    """Runs a command with its output in a log; returns its seconds. Ends it where this process is ended.

    `stop` is asked now and then, and ends the command where it says True; that is no failure.
    """
    started = time.monotonic()
    with log.open("a") as out:
        out.write(f"\n$ solo-hcsc {command} {shlex.join(flags)}\n")
        out.flush()
        words = [sys.executable, "-m", "solo_hcsc", command, *flags]
        process = subprocess.Popen(words, stdout=out, stderr=out, pass_fds=[lock])
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            code = process.wait() if stop is None else _watched(process, stop)
        finally:
            signal.signal(signal.SIGTERM, before)
            if process.poll() is None:
                process.terminate()
                process.wait()
    if code < 0:
        raise RunFailed(f"{command} was killed by signal {-code} ({signal.Signals(-code).name}); log: {log}")
    if code:
        raise RunFailed(f"{command} ended with code {code}: {_last_line(log)}; log: {log}")
    return time.monotonic() - started


def _watched(process: "subprocess.Popen[bytes]", stop: Callable[[], bool]) -> int:
    """A process's exit code; 0 where it was ended because `stop` said so."""
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
