"""The flags of compare and ablate, and from their words to values; no command itself."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.cli.commands import pretrain
from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.methods.names import METHODS, method_names
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import NOT_NEGATIVE, POSITIVE, Settings, take
from solo_hcsc.study.asked import (
    EVALUATIONS,
    ON_REQUEST,
    ORACLE,
    check_test_images,
    refuse_repeated,
    refuse_set_here,
    usual,
)
from solo_hcsc.study.job import plain, words
from solo_hcsc.training.settings import Wandb

if TYPE_CHECKING:
    from solo_hcsc.study.record import Comparison


def add_study_flags(parser: Parser) -> None:
    """Add the flags that every comparison has of its own."""
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--seeds", nargs="+", type=int, default=[0], bound=NOT_NEGATIVE, help="one run of each with each seed"
    )
    group.add_argument(
        "--out", type=Path, default=Path("trained_models/comparison"), help="folder of the runs and the report"
    )
    group.add_argument(
        "--test_dir",
        type=Path,
        help="folder below --data_dir whose images judge the finished runs (KNN and linear accuracy); --val_dir if not "
        "given. Give it where settings were chosen by the images of --val_dir",
    )
    group.add_argument(
        "--evaluations",
        nargs="+",
        choices=(*EVALUATIONS, *ON_REQUEST),
        default=list(EVALUATIONS),
        help=f"what is done with each run; {', '.join(ON_REQUEST)} on request",
    )
    group = parser.add_argument_group("flags of the evaluations, in quotes")
    for name in (*EVALUATIONS, *ON_REQUEST):
        typed = " ".join(words(usual(name)))
        told = f"; if not given, {typed}, or less for fewer images" if typed else ""
        group.add_argument(f"--{name}", metavar='"FLAGS"', help=f"for solo-hcsc {name}{told}")


def comparison_parser() -> Parser:
    """Build the parser of `compare`."""
    known = ", ".join(method_names())
    parser = Parser(
        "compare",
        "Pretrains methods on the same images with several seeds, evaluates each run, and makes a report. Flags that "
        "are not listed here are pretraining's and go to every method. The same command again goes on after an "
        "interruption, and does not repeat what is finished; beside a running one it takes over part of the runs.",
        "--methods NAME NAME ... --dataset NAME [flags] [flags of solo-hcsc pretrain]",
    )
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--methods",
        nargs="+",
        required=True,
        metavar="NAME",
        help=f"of {known}; {ORACLE}: HCSC with the true labels as its tree, a ceiling and no method",
    )
    group.add_argument(
        "--budget",
        choices=["epochs", "seconds"],
        default="epochs",
        help="equal epochs for all; or, beyond that, more epochs for the faster ones until they take as long",
    )
    add_study_flags(parser)
    group = parser.add_argument_group("equal search")
    group.add_argument(
        "--search",
        type=int,
        default=0,
        bound=NOT_NEGATIVE,
        metavar="N",
        help="first N trials of every method: settings drawn from its documented ranges (docs/comparison.md), but for "
        "the flags that are given, judged by the online KNN accuracy on --val_dir; hopeless trials are stopped. The "
        "best of each method is then run with all seeds and judged on --test_dir",
    )
    group.add_argument("--search_epochs", type=int, bound=POSITIVE, help="of a trial; --max_epochs if not given")
    group.add_argument(
        "--search_seed", type=int, default=1000, bound=NOT_NEGATIVE, help="of the draws and of the trials' runs"
    )
    group = parser.add_argument_group("a method's own flags, in quotes")
    for name in method_names():
        group.add_argument(f"--{name}", metavar='"FLAGS"', default="", help=f"for {name} only")
    return parser


def split(parser: Parser, argv: Sequence[str], quoted: Iterable[str]) -> tuple[Settings, list[str]]:
    """Split a command line into the comparison's own flags and the words of pretraining."""
    quoted = [f"--{name}" for name in (*quoted, *EVALUATIONS, *ON_REQUEST)]
    typed = list(argv)
    for place in range(len(typed) - 2, -1, -1):
        if typed[place] in quoted:  # else argparse takes "--lr" in quotes for a flag of its own
            typed[place : place + 2] = [f"{typed[place]}={typed[place + 1]}"]
    flags, others = parser.parse_part(typed)
    refuse_set_here(names_in(others))
    refuse_repeated("seeds", flags.seeds, "a seed")
    return flags, others


def names_in(typed: Iterable[str]) -> list[str]:
    """Return the names of the flags among words."""
    return [word[2:].partition("=")[0] for word in typed if word.startswith("--")]


def in_quotes(flags: Settings, name: str) -> list[str]:
    """Return the words that are given in quotes for a method or an evaluation."""
    try:
        return shlex.split(getattr(flags, name))
    except ValueError as error:
        raise UserError(f"--{name} {getattr(flags, name)}: cannot be read as flags ({error})") from error


def values(flags: Settings, *but: str) -> dict[str, Any]:
    """Return the settings that were typed, as JSON has them."""
    return plain({name: value for name, value in vars(flags).items() if name in flags.typed and name not in but})


def pretraining(row: str, typed: Sequence[str], test_dir: Path | None) -> Settings:
    """Parse a row's flags of pretraining; refuse wrong names, values and folders before anything heavy is imported."""
    try:
        flags = pretrain.refuse_early(typed)
        if flags is None or pretrain.method_in(typed) not in METHODS:  # of another package, which may have any flag
            flags = pretrain.parse(typed)
    except ArgumentError as error:
        raise ArgumentError(f"{row}: {error}") from error
    except UserError as error:
        raise UserError(f"{row}: {error}") from error
    check_test_images(test_dir, flags)
    return flags


def evaluations(flags: Settings) -> dict[str, dict[str, Any] | None]:
    """Return the evaluations that are asked for with the settings in quotes; None for the usual ones."""
    return {name: None if getattr(flags, name) is None else _evaluation(flags, name) for name in flags.evaluations}


def _evaluation(flags: Settings, name: str) -> dict[str, Any]:
    typed, run = in_quotes(flags, name), str(flags.out / "run")  # which is not there yet
    placed = [run, *typed, "--out", run] if name == "fewlabels" else ["--pretrained_feature_extractor", run, *typed]
    try:
        found = import_module(f"solo_hcsc.cli.commands.{name}").parse(placed)
    except UserError as error:
        raise UserError(f"--{name}: {error}") from error
    return values(found, "pretrained_feature_extractor", "checkpoint_dir" if name == "linear" else "out")


def conclude(found: "Comparison", out: Path, first: Settings) -> None:
    """Make the report, print the table, and list what failed; `first`: the first row's settings."""
    from solo_hcsc.report.page import make_report
    from solo_hcsc.report.to_wandb import log_comparison

    report = make_report(out)
    file = report.save()
    if first.wandb:
        print(f"wandb: {log_comparison(found, replace(take(Wandb, first), name=None), out)}")
    print(f"\n{report.table()}")
    for label in found.elsewhere:
        print(f"another process works on {label}; the same command again adds it")
    if found.failed:
        print(f"report without them: {file}")
        reasons = "; ".join(f"{label}: {reason}" for label, reason in found.failed.items())
        raise UserError(f"{len(found.failed)} runs failed, and the same command again repeats them: {reasons}")
    print(f"report: {file}")


def pair_of(flags: Settings, found: "Comparison") -> str:
    """Return the command that runs HCSC with a search's settings, for as many epochs, without and with its tree."""
    rows = [row for row in found.rows if row.base == "hcsc"]
    settings = {name: value for name, value in rows[0].settings.items() if name not in ("method", "max_epochs")}
    own = ["--table", "tree", "--seeds", *map(str, flags.seeds), "--test_dir", str(flags.test_dir)]
    own += ["--evaluations", *flags.evaluations]
    own += [f"--{name}={getattr(flags, name)}" for name in flags.evaluations if getattr(flags, name)]
    epochs = max(row.epochs or 0 for row in rows)
    return Invocation("ablate", (*own, *words({**settings, "max_epochs": epochs}))).line
