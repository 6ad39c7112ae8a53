"""A job: a function of the library and its settings in a JSON file, run in a process of its own.

`python -m solo_hcsc.study.job FILE` runs one. Studies write such files and compare their settings as values.
"""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from solo_hcsc.errors import Ended, UserError
from solo_hcsc.files import read_json, write_whole
from solo_hcsc.interrupts import is_interrupt, raise_again_what_finalisers_swallow
from solo_hcsc.launch import end_of, is_main_process
from solo_hcsc.progress import Reporter, listen
from solo_hcsc.quiet import quiet
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings

# The functions that a job may call. Each module has `settle(function, settings)`, which fills in defaults and refuses
# what is wrong, and `call(function, settings)`, which does the work and writes what it found.
FUNCTIONS = {
    "pretrain": "solo_hcsc.study.pretraining",
    "knn": "solo_hcsc.study.evaluating",
    "linear": "solo_hcsc.study.evaluating",
    "clustering": "solo_hcsc.study.evaluating",
    "fewlabels": "solo_hcsc.report.few_labels",
    "analyse": "solo_hcsc.report.analysis",
}


@dataclass(frozen=True)
class Job:
    """A call of a function.

    Args:
        function: its name, one of `FUNCTIONS`.
        settings: what decides what it finds, by name, as JSON has it; all else has its default.
        here: further settings that decide nothing, since they name folders or how it goes on after a kill.
    """

    function: str
    settings: Mapping[str, Any]
    here: Mapping[str, Any] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Write the job's file, in a folder that need not be there yet."""
        file.parent.mkdir(exist_ok=True)
        write_whole(file, json.dumps(asdict(self), indent=2) + "\n")

    def settle(self) -> Settings:
        """Return all settings with defaults filled in; refuse wrong ones."""
        found: Settings = _module(self.function).settle(self.function, {**self.settings, **self.here})
        return found

    def call(self) -> None:
        """Do the work in this process."""
        _module(self.function).call(self.function, {**self.settings, **self.here})


def read_job(file: Path) -> Job:
    """Read a job's file; refuse one that is none."""
    try:
        job = Job(**read_json(file))
    except TypeError as error:
        raise UserError(f"{file}: not a job ({error}); remove it") from error
    if job.function not in FUNCTIONS or not isinstance(job.settings, dict) or not isinstance(job.here, dict):
        raise UserError(f"{file}: not a job of {', '.join(FUNCTIONS)}; remove it")
    return job


def _module(function: str) -> Any:
    return import_module(FUNCTIONS[function])


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON has them: lists for tuples, text for paths.

    Example:
        >>> plain({"crop_size": (96, 48), "data_dir": Path("photos")})
        {'crop_size': [96, 48], 'data_dir': 'photos'}
    """
    found: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
    return found


def words(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as a reader would type them. This is text for a report; nothing reads it back.

    Example:
        >>> " ".join(words({"k": [3, 5], "knn_eval": True, "hierarchy": False})).replace("--", "+")
        '+k 3 5 +knn_eval +hierarchy false'
    """
    found = []
    for name, value in settings.items():
        values = [] if value is True else value if isinstance(value, list) else ["false" if value is False else value]
        found += [f"--{name}", *map(str, values)]
    return found


def line(function: str, settings: Mapping[str, Any]) -> str:
    """Return the command that a reader would type for a job."""
    return f"solo-hcsc {function} {shlex.join(words(settings))}".rstrip()


def invocation(function: str, settings: Mapping[str, Any]) -> Invocation:
    """Return the same for a result's record; the run comes first where the command has no flag for it."""
    named = dict(settings)
    run = [str(named.pop("pretrained_feature_extractor"))] if function == "fewlabels" else []
    return Invocation(function, (*run, *words(named)))


class _Printed(Reporter):
    """Prints what a job tells, for its log."""

    def say(self, line: str) -> None:
        if is_main_process():
            print(line, flush=True)

    def epoch(self, line: str) -> None:
        self.say(line)

    def note(self, line: str) -> None:
        if is_main_process():
            print(f"note: {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the job in the file that is named; end with one line and exit code 2 where its settings are wrong."""
    raise_again_what_finalisers_swallow()
    quiet()
    listen(_Printed())
    try:
        return read_job(Path(sys.argv[1])).call()
    except UserError as error:
        end = error
    except BaseException as error:
        if isinstance(error, SystemExit) or not is_interrupt(error):
            raise
        end = Ended("interrupted", 130)
    sys.exit(end_of(end, str(end)))


if __name__ == "__main__":
    main()
