"""What compare and ablate share; no command itself."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.cli.commands import pretrain
from solo_hcsc.cli.flags import check_labelled
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.source import check_folder
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.settings import NOT_NEGATIVE, Settings, take
from solo_hcsc.training.settings import Wandb, check_wandb

if TYPE_CHECKING:
    from solo_hcsc.data.source import ImageSource
    from solo_hcsc.study.record import Comparison
    from solo_hcsc.study.runner import Evaluation, Variant
    from solo_hcsc.study.study import Study

EVALUATIONS = ("knn", "linear", "clustering", "analyse")
ON_REQUEST = ("fewlabels",)
LINEAR = "--cache_features --optimizer sgd --lr 0.01 --scheduler cosine --weight_decay 0 --max_epochs 50 --batch_size"
_SET_HERE = ("--method", "--seed", "--checkpoint_dir", "--auto_resume", "--resume_from_checkpoint")


@dataclass(frozen=True)
class CheckedRow:
    """A row and what its flags of pretraining mean."""

    variant: "Variant"
    flags: Settings


def refuse_rows(flags: Settings, rows: Mapping[str, Sequence[str]]) -> None:
    """Refuse rows with wrong names, values, files or folders before anything heavy is imported."""
    for name, words in rows.items():
        try:
            first = pretrain.refuse_early(words)
        except ArgumentError as error:
            raise ArgumentError(f"{name}: {error}") from error
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        if first is not None:
            check_test_images(flags, first)


def checked(name: str, words: Sequence[str]) -> CheckedRow:
    """Check a row: refuse before the first run what pretraining would refuse.

    Without --batch_size, images that are too few for pretraining's have a quarter of them in a batch.
    """
    from solo_hcsc.data.source import ImageSource
    from solo_hcsc.study.runner import Variant
    from solo_hcsc.training.pretraining import check
    from solo_hcsc.training.pretraining import check_images as check_pretraining_images

    try:
        flags = pretrain.parse(words)
        check_labelled(flags)
        check(flags)
        check_wandb(take(Wandb, flags))
        source = ImageSource.of_flags(flags).located(needs_val=True)
        if source.in_folders:  # others are never too few, and may have to be downloaded
            images = round(training_images(source) * flags.data_fraction)
            if images < flags.batch_size and "batch_size" not in flags.typed:
                words = [*words, "--batch_size", str(max(1, images // 4))]
                flags = pretrain.parse(words)
            check_pretraining_images(flags, images)
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from error
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    return CheckedRow(Variant(name, tuple(words), flags.max_epochs, name), flags)


def training_images(source: "ImageSource") -> int:
    """Return how many training images there are."""
    from solo_hcsc.data.sets import one_split

    with redirect_stdout(StringIO()):  # each run says what it finds in the folders
        return len(one_split(source, "train"))  # type: ignore[arg-type]


def check_early(flags: Settings, rows: Sequence[CheckedRow]) -> None:
    """Refuse what `shared_plan` would, apart from the folder's content, before a search gives rows their last flags."""
    from solo_hcsc.study.study import check_alike

    check_alike({row.variant.name: row.flags for row in rows})
    check_test_images(flags, rows[0].flags)
    check_images(flags, rows[0].flags)
    evaluations(flags, rows[0].flags)


def shared_plan(kind: str, flags: Settings, rows: Sequence[CheckedRow]) -> dict[str, Any]:
    """Return the fields of a plan that a comparison and an ablation have alike; refuse rows that are not alike."""
    from solo_hcsc.study.runner import finished_runs
    from solo_hcsc.study.study import SETTINGS, check_alike, check_beside, said

    variants = tuple(row.variant for row in rows)
    check_beside(flags.out, kind, variants)
    before = {run.name: pretrain.parse(run.flags) for run in finished_runs(flags.out) if run.name == run.base}
    check_alike({**before, **{row.variant.name: row.flags for row in rows}})
    first = rows[0].flags
    check_test_images(flags, first)
    check_images(flags, first)
    commands = evaluations(flags, first)
    settings = {name: said(first, name) for name in SETTINGS}
    if flags.test_dir is not None:
        settings["test_dir"] = str(flags.test_dir)
    return {
        "kind": kind,
        "data": first.data_dir.name if first.dataset == "custom" else first.dataset,
        "out": flags.out,
        "seeds": tuple(flags.seeds),
        "variants": variants,
        "evaluations": tuple(commands),
        "settings": settings,
    }


def conclude(study: "Study", first: Settings) -> "Comparison":
    """Run everything, make the report, and list what failed; `first`: the first row's flags."""
    from solo_hcsc.report import page, to_wandb
    from solo_hcsc.report.text import comparison_table

    comparison, out = study.run(), study.plan.out
    file = page.make(out)
    if first.wandb:
        print(f"wandb: {to_wandb.log_comparison(comparison, replace(take(Wandb, first), name=None), out)}")
    print()
    print(comparison_table(comparison))
    for label in study.experiments.elsewhere():
        print(f"another process works on {label}; the same command again adds it")
    failed = study.experiments.failed
    if failed:
        print(f"report without them: {file}")
        reasons = "; ".join(f"{label}: {reason}" for label, reason in failed.items())
        raise UserError(f"{len(failed)} runs failed, and the same command again repeats them: {reasons}")
    print(f"report: {file}")
    return comparison


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
        usual = f"; if not given, {' '.join(words)}, or less for fewer images" if (words := usually(name)) else ""
        group.add_argument(f"--{name}", metavar='"FLAGS"', help=f"for solo-hcsc {name}{usual}")


def usually(name: str, images: int = 2**31) -> list[str]:
    """Return the words of an evaluation of so many training images that nobody gave."""
    usual = {"knn": f"--k {min(20, images)}", "linear": f"{LINEAR} {256 if images >= 256 else max(1, images // 4)}"}
    return usual.get(name, "").split()


def asked_of(flags: Settings, name: str, images: int) -> list[str]:
    """Return the words of an evaluation, as given in quotes or as usual."""
    return usually(name, images) if getattr(flags, name) is None else in_quotes(flags, name)


def split(parser: Parser, argv: Sequence[str], quoted: Iterable[str]) -> tuple[Settings, list[str]]:
    """Split a command line into the comparison's own flags and the words of pretraining."""
    quoted = [f"--{name}" for name in (*quoted, *EVALUATIONS, *ON_REQUEST)]
    words = list(argv)
    for place in range(len(words) - 2, -1, -1):
        if words[place] in quoted:  # else argparse takes "--lr" in quotes for a flag of its own
            words[place : place + 2] = [f"{words[place]}={words[place + 1]}"]
    flags, others = parser.parse_part(words)
    refuse_set_here(others)
    if len(set(flags.seeds)) < len(flags.seeds):
        raise UserError(f"--seeds {' '.join(map(str, flags.seeds))}: names a seed twice")
    return flags, others


def refuse_set_here(words: Iterable[str]) -> None:
    for word in words:
        if word.partition("=")[0] in _SET_HERE:
            raise UserError(f"{word}: is set for each run; leave it out (--methods, --seeds and --out are there)")


def in_quotes(flags: Settings, name: str) -> list[str]:
    """Return the words that are given in quotes for a method or an evaluation."""
    try:
        return shlex.split(getattr(flags, name))
    except ValueError as error:
        raise UserError(f"--{name} {getattr(flags, name)}: cannot be read as flags ({error})") from error


def check_test_images(flags: Settings, first: Settings) -> None:
    if flags.test_dir is None:
        return
    if first.dataset != "custom":
        raise UserError(
            f"--test_dir {flags.test_dir}: is for --dataset custom; {first.dataset} has test images of its own"
        )
    check_folder("test_dir", first.data_dir / flags.test_dir)


def check_images(flags: Settings, first: Settings) -> None:
    """Refuse other images than those of the folder's runs, before any training."""
    from solo_hcsc.data.folders import fingerprint
    from solo_hcsc.data.sets import one_split
    from solo_hcsc.data.source import ImageSource
    from solo_hcsc.study.runner import check_same_images

    source = ImageSource.of_flags(first).located(needs_val=True)
    if source.in_folders:  # others are always the same
        check_same_images(flags.out, fingerprint(one_split(source, "train"), source.folder("train")))


def check_enough(command: str, flags: Settings, images: int) -> None:
    """Refuse an evaluation that needs more training images than there are."""
    from solo_hcsc.cli.commands.analyse import FEWEST
    from solo_hcsc.evaluation.budgets import drawn_from

    there = f"there are only {images} training images"
    if command == "knn" and max(flags.k) > images:
        raise UserError(f"--k {max(flags.k)}: {there}; lower it")
    if command == "linear" and flags.batch_size > images and ("batch_size" in flags.typed or flags.config):
        raise UserError(f"--batch_size {flags.batch_size}: {there}; lower it")
    if command == "clustering" and flags.split == "train" and max(flags.k or [0]) > images:
        raise UserError(f"--k {max(flags.k)}: {there}; lower it")
    if command == "fewlabels" and "budgets" in flags.typed and max(flags.budgets) > drawn_from(images):
        raise UserError(f"--budgets {max(flags.budgets)}: {there}, and a draw takes {drawn_from(images)}; lower it")
    if command == "analyse" and flags.split == "train" and images < FEWEST:
        raise UserError(f"{there}, and it needs {FEWEST}; leave it out of --evaluations")


def evaluations(flags: Settings, first: Settings) -> "list[Evaluation]":
    """Return the commands that each run goes through, on the images it was pretrained on; refuse what cannot be."""
    from solo_hcsc.data.source import ImageSource
    from solo_hcsc.study.runner import Evaluation

    source = ImageSource.of_flags(first).located(needs_val=True)
    many = training_images(source) if source.in_folders else 2**31
    images = ["--num_workers", first.num_workers]  # all else is as in pretraining
    if flags.test_dir is not None:
        images += ["--val_dir", flags.test_dir]
    images += ["--skip_unreadable"] if first.skip_unreadable else []
    if first.accelerator in ("cpu", "gpu"):
        images += ["--accelerator", first.accelerator]
    pictures = ["--wandb", "--project", first.project] if first.wandb else []
    pictures += ["--offline"] if first.offline else []
    pictures += ["--entity", first.entity] if first.entity else []
    commands = {
        "knn": Evaluation("knn", "knn-*.json"),
        "linear": Evaluation("linear", "linear.json", into=("--checkpoint_dir", "linear")),
        "clustering": Evaluation("clustering", "clustering-*.json"),
        "fewlabels": Evaluation("fewlabels", "fewlabels.json", into=("--out", "fewlabels"), run_comes_first=True),
        "analyse": Evaluation("analyse", "analysis.json", into=("--out", "analysis"), first_seed_only=True),
    }
    found = [
        replace(commands[name], flags=(*map(str, images), *asked_of(flags, name, many), *more))
        for name, more in ((name, pictures if name == "analyse" else []) for name in flags.evaluations)
    ]
    for evaluation in found:
        try:
            parsed = import_module(f"solo_hcsc.cli.commands.{evaluation.command}").parse(evaluation.of(flags.out))
            check_enough(evaluation.command, parsed, many)
        except UserError as error:
            raise UserError(f"--{evaluation.command}: {error}") from error
    return found
