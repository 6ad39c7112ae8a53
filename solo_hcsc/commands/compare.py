"""`python -m solo_hcsc.compare`: pretrains and evaluates methods with several seeds, and shows them side by side."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.cli.errors import UserError, command
from solo_hcsc.cli.flags import Parser, refuse_unlabelled
from solo_hcsc.cli.quiet import quiet

if TYPE_CHECKING:
    from solo_hcsc.study.runner import Evaluation, Variant

EVALUATIONS = ("knn", "linear", "clustering", "analyse")
LINEAR = (
    "--cache_features --optimizer sgd --lr 0.01 --scheduler cosine --weight_decay 0 --max_epochs 50 --batch_size 256"
)
# What a fair comparison has in common, beside the augmentations.
_COMMON = (
    *("dataset", "data_dir", "train_dir", "val_dir", "data_fraction", "skip_unreadable", "mean", "std"),
    *("encoder", "zero_init_residual", "batch_size", "accumulate_grad_batches", "devices", "precision"),
    *("max_epochs", "limit_train_batches"),
)
_SET_HERE = ("--method", "--seed", "--checkpoint_dir", "--auto_resume", "--resume_from_checkpoint")


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    own, variants = parse(argv)
    study = Study("compare", own, variants)
    study.begin(variants)
    if own.budget == "epochs":
        study.experiments.run(variants, own.seeds)
    else:
        study.experiments.run(variants, own.seeds[:1])  # tells the time of an epoch
        study.experiments.run(study.at_equal_time(), own.seeds)
    study.conclude()


def parse(argv: Sequence[str]) -> "tuple[Namespace, list[Variant]]":
    """The comparison's own flags, and the methods with theirs."""
    from solo_hcsc.framework.registry import method_names

    known = method_names()
    parser = Parser(
        prog="solo_hcsc.compare",
        usage="%(prog)s --methods NAME NAME ... --dataset NAME [flags] [flags of solo_hcsc.pretrain]",
        description="Pretrains methods on the same images with several seeds, evaluates each run, and makes a report. "
        "Flags that are not listed here are pretraining's and go to every method. The same command again goes on after "
        "an interruption, and does not repeat what is finished; beside a running one it takes over part of the runs.",
    )
    group = parser.add_argument_group("comparison")
    group.add_argument("--methods", nargs="+", required=True, metavar="NAME", help=f"of {', '.join(known)}")
    group.add_argument(
        "--budget",
        choices=["epochs", "seconds"],
        default="epochs",
        help="equal epochs for all; or, beyond that, more epochs for the faster ones until they take as long",
    )
    add_flags(parser)
    group = parser.add_argument_group("a method's own flags, in quotes")
    for name in known:
        group.add_argument(f"--{name}", metavar='"FLAGS"', default="", help=f"for {name} only")
    own, flags = split(parser, argv, known)
    for name in own.methods:
        if name not in known:
            raise UserError(f"--methods {name}: unknown; choose from {', '.join(known)}")
    for name in known:
        if getattr(own, name) and name not in own.methods:
            raise UserError(f"--{name}: is not among --methods {' '.join(own.methods)}")

    from solo_hcsc.study.runner import Variant

    own_flags = {name: in_quotes(own, name) for name in own.methods}
    for more in own_flags.values():
        _refuse_set_here(more)
    return own, [Variant(name, ("--method", name, *flags, *more)) for name, more in own_flags.items()]


class Study:
    """A comparison from its flags to its report."""

    reference: str | None = None  # the row that the others are seen against

    def __init__(self, kind: str, own: Namespace, variants: "Sequence[Variant]") -> None:
        from solo_hcsc.study.record import method_of
        from solo_hcsc.study.runner import Experiments, check_judged_alike, check_unchanged

        self.kind, self.own, self.variants = kind, own, list(variants)
        self.arguments = {variant.name: checked(variant) for variant in variants}
        self.first = next(iter(self.arguments.values()))
        if own.out.exists() and not own.out.is_dir():
            raise UserError(f"--out {own.out}: is a file; give a folder")
        self.order = rows_before(own.out, kind)  # of the report's rows; others follow
        check_unchanged(own.out, variants)
        check_alike({**self.of_before(), **self.arguments})
        check_test_images(own, self.first)
        self.experiments: Experiments = Experiments(own.out, evaluations(own, self.first))
        names = [variant.name for variant in variants]
        check_judged_alike(
            own.out,
            self.experiments.evaluations,
            again=lambda run: run.seed in own.seeds and (method_of(run.name) if self.gives_time else run.name) in names,
        )

    @property
    def gives_time(self) -> bool:
        """Whether the faster methods get more epochs."""
        return self.kind == "compare" and self.own.budget == "seconds"

    def of_before(self) -> dict[str, Namespace]:
        """The arguments of the folder's runs at equal epochs."""
        from solo_hcsc.study.record import method_of
        from solo_hcsc.study.runner import finished_runs
        from solo_hcsc.commands.pretrain import parse

        runs = finished_runs(self.own.out)
        return {run.name: parse(run.flags) for run in runs if run.name == method_of(run.name)}

    def begin(self, variants: "Sequence[Variant]") -> None:
        runs = len(variants) * len(self.own.seeds)
        names = " | ".join(variant.name for variant in variants)  # an ablation's have commas
        seeds = f"{len(self.own.seeds)} seed{'s' * (len(self.own.seeds) > 1)}"
        print(f"{names}; {seeds}, {runs} runs; results in {self.own.out}", flush=True)

    def at_equal_time(self) -> "list[Variant]":
        """The variants with the epochs that come nearest to the slowest one's time, or that were begun for it."""
        from solo_hcsc.study.runner import finished_runs

        runs = sorted(finished_runs(self.own.out), key=lambda run: -run.cost["epoch_seconds"])
        seconds = {run.name: run.cost["epoch_seconds"] for run in runs}  # of the fastest seed, as in the report
        missing = [variant.name for variant in self.variants if variant.name not in seconds]
        if missing:
            raise UserError(f"--budget seconds: {', '.join(missing)} did not finish, which tells the time of an epoch")
        slowest = max(self.variants, key=lambda variant: seconds[variant.name]).name
        longer = []
        for variant in self.variants:
            nearest = round(self.first.max_epochs * seconds[slowest] / seconds[variant.name])
            begun = variant.begun_longer(self.own.out)
            epochs = begun or nearest
            told = f"{nearest} epochs in {slowest}'s time" + (f", {begun} as begun" if begun else "")
            print(f"{variant.name}: {seconds[variant.name]:.1f} s per epoch, {told}")
            longer.append(variant if epochs == self.first.max_epochs else variant.longer(epochs))
        self.variants += [variant for variant in longer if variant not in self.variants]
        return longer

    def conclude(self) -> None:
        """Writes comparison.json and the report, and says what failed."""
        from solo_hcsc.study import record as comparison
        from solo_hcsc.commands import report
        from solo_hcsc.study import tally
        from solo_hcsc.study.runner import finished_runs

        finished = {run.name for run in finished_runs(self.own.out)}
        if not finished:
            raise UserError(f"no run was finished; {'; '.join(self.experiments.failed.values())}")
        order = dict.fromkeys([*self.order, *(variant.name for variant in self.variants), *sorted(finished)])
        rows = [name for name in order if name in finished]
        tally.write(self.own.out, self.about(rows), rows, self.experiments.failed)
        file = report.make(self.own.out)
        found = comparison.read(self.own.out)
        if self.first.wandb:
            print(f"wandb: {report.log_to_wandb(Namespace(**{**vars(self.first), 'name': None}), found, file)}")
        print()
        print(report.text_table(found))
        for label in self.experiments.elsewhere():
            print(f"another process works on {label}; the same command again adds it")
        failed = self.experiments.failed
        if failed:
            print(f"report without them: {file}")
            reasons = "; ".join(f"{label}: {reason}" for label, reason in failed.items())
            raise UserError(f"{len(failed)} runs failed, and the same command again repeats them: {reasons}")
        print(f"report: {file}")

    def about(self, rows: Sequence[str]) -> dict[str, Any]:
        from solo_hcsc.study.record import method_of

        settings = {flag: _said(self.first, flag) for flag in settings_of(self.first)}
        if self.own.test_dir is not None:
            settings["test_dir"] = str(self.own.test_dir)
        methods = [row for row in rows if row == method_of(row)]
        what = ", ".join(methods) if self.kind == "compare" else f"HCSC's {self.own.table}"
        return {
            "title": f"{what} on {_data(self.first)}",
            "kind": self.kind,
            "budget": "epochs" if len(methods) == len(rows) else "seconds",
            "command": f"python -m solo_hcsc.{self.kind} {shlex.join(sys.argv[1:])}",
            "settings": settings,
            "reference": self.reference,
        }


def add_flags(parser: Parser) -> None:
    """What every comparison has of its own."""
    group = parser.add_argument_group("comparison")
    group.add_argument("--seeds", nargs="+", type=int, default=[0], help="one run of each with each seed")
    group.add_argument(
        "--out", type=Path, default=Path("trained_models/comparison"), help="folder of the runs and the report"
    )
    group.add_argument(
        "--test_dir",
        type=Path,
        help="folder below --data_dir whose images KNN and linear accuracy are of, where those of --val_dir, which the "
        "learning curves are of, served to choose settings; if not given, --val_dir",
    )
    group.add_argument(
        "--evaluations", nargs="+", choices=EVALUATIONS, default=list(EVALUATIONS), help="what is done with each run"
    )
    group = parser.add_argument_group("flags of the evaluations, in quotes")
    for name, default in (("knn", "--k 20"), ("linear", LINEAR), ("clustering", ""), ("analyse", "")):
        group.add_argument(f"--{name}", metavar='"FLAGS"', default=default, help=f"for solo_hcsc.{name}")


def split(parser: Parser, argv: Sequence[str], quoted: Sequence[str]) -> tuple[Namespace, list[str]]:
    """A comparison's own flags, and those of pretraining."""
    quoted = [f"--{name}" for name in (*quoted, *EVALUATIONS)]
    words = list(argv)
    for place in range(len(words) - 2, -1, -1):
        if words[place] in quoted:  # else argparse takes "--lr" in quotes for a flag of its own
            words[place : place + 2] = [f"{words[place]}={words[place + 1]}"]
    own, flags = parser.parse_known_args(words)
    _refuse_set_here(flags)
    if len(set(own.seeds)) < len(own.seeds):
        raise UserError(f"--seeds {' '.join(map(str, own.seeds))}: names a seed twice")
    if min(own.seeds) < 0:
        raise UserError(f"--seeds {min(own.seeds)}: must not be negative")
    return own, flags


def _refuse_set_here(flags: Sequence[str]) -> None:
    for flag in flags:
        if flag.partition("=")[0] in _SET_HERE:
            raise UserError(f"{flag}: is set for each run; leave it out (--methods, --seeds and --out are there)")


def in_quotes(own: Namespace, name: str) -> list[str]:
    """The flags that are given in quotes for a method or an evaluation."""
    try:
        return shlex.split(getattr(own, name))
    except ValueError as error:
        raise UserError(f"--{name} {getattr(own, name)}: cannot be read as flags ({error})") from error


def rows_before(out: Path, kind: str) -> list[str]:
    """The names of the rows that the folder's last report has, in its order."""
    from solo_hcsc.study import record as comparison

    try:
        found = comparison.read(out)
    except UserError:  # there is none yet, or what there is will be made anew from the runs
        return []
    if found.kind != kind:
        raise UserError(f"--out {out}: has what solo_hcsc.{found.kind} made; give another folder")
    return [row.name for row in found.rows]


def checked(variant: "Variant") -> Namespace:
    """A variant's arguments of pretraining, refused before the first run if pretraining would refuse them."""
    from solo_hcsc.data import folders as data
    from solo_hcsc.training import run as training
    from solo_hcsc.commands.pretrain import check_flags, parse
    from solo_hcsc.framework.registry import load_methods

    try:
        args = parse(variant.flags)
        refuse_unlabelled(args)
        check_flags(args, load_methods()[args.method])
        training.check_wandb(args)
        data.resolve_folders(deepcopy(args), needs_val=True)
    except UserError as error:
        raise UserError(f"{variant.name}: {error}") from error
    return args


def check_alike(arguments: dict[str, Namespace]) -> None:
    """Refuses flags of one method that make it another task."""
    first, *others = arguments
    for name in others:
        for flag in settings_of(arguments[name]):
            here, there = _said(arguments[name], flag), _said(arguments[first], flag)
            if here != there:
                raise UserError(
                    f"--{flag} is {here} for {name} and {there} for {first}; a comparison needs it to be the "
                    "same: give it once for all, or give another --out"
                )


def check_test_images(own: Namespace, args: Namespace) -> None:
    from solo_hcsc.data.folders import check_folder

    if own.test_dir is None:
        return
    if args.dataset != "custom":
        raise UserError(
            f"--test_dir {own.test_dir}: is for --dataset custom; {args.dataset} has test images of its own"
        )
    check_folder("--test_dir", args.data_dir / own.test_dir)


def evaluations(own: Namespace, args: Namespace) -> "list[Evaluation]":
    """The commands that each run goes through, on the images that it was pretrained on."""
    from solo_hcsc.study.runner import Evaluation

    images = ["--dataset", args.dataset, "--data_dir", args.data_dir]
    for flag, folder in (("--train_dir", args.train_dir), ("--val_dir", own.test_dir or args.val_dir)):
        if folder is not None:
            images += [flag, folder]
    images += ["--crop_size", args.crop_size[0], "--num_workers", args.num_workers]
    images += ["--mean", *args.mean, "--std", *args.std]
    if args.accelerator in ("cpu", "gpu"):
        images += ["--accelerator", args.accelerator]
    pictures = ["--wandb", "--project", args.project] if args.wandb else []
    pictures += ["--offline"] if args.offline else []
    pictures += ["--entity", args.entity] if args.entity else []
    commands = {
        "knn": Evaluation("knn", "knn-*.json"),
        "linear": Evaluation("linear", "linear.json", into=("--checkpoint_dir", "linear")),
        "clustering": Evaluation("clustering", "clustering-*.json"),
        "analyse": Evaluation("analyse", "analysis.json", into=("--out", "analysis"), first_seed_only=True),
    }
    found = [
        replace(commands[name], flags=(*map(str, images), *in_quotes(own, name), *more))
        for name, more in ((name, pictures if name == "analyse" else []) for name in own.evaluations)
    ]
    for evaluation in found:
        try:
            import_module(f"solo_hcsc.{evaluation.module}").parse(evaluation.of(own.out))
        except UserError as error:
            raise UserError(f"--{evaluation.module}: {error}") from error
    return found


def settings_of(args: Namespace) -> list[str]:
    from solo_hcsc.commands.pretrain import AUGMENTATIONS

    return [*_COMMON, "num_crops_per_aug", *AUGMENTATIONS]


def _said(args: Namespace, flag: str) -> str:
    value = getattr(args, flag)
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _data(args: Namespace) -> str:
    return args.data_dir.name if args.dataset == "custom" else args.dataset


if __name__ == "__main__":
    main()
