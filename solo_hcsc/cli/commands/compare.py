"""`solo-hcsc compare`: pretrains and evaluates methods with several seeds, and shows them side by side."""

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from solo_hcsc.cli.commands._studies import (
    add_study_flags,
    conclude,
    evaluations,
    in_quotes,
    names_in,
    pretraining,
    split,
    values,
)
from solo_hcsc.cli.flags import check_method
from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import UserError
from solo_hcsc.methods.names import method_names
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import NOT_NEGATIVE, POSITIVE
from solo_hcsc.study.asked import ORACLE, ORACLES_ROW, refuse_oracle, refuse_repeated, refuse_set_here
from solo_hcsc.study.job import words

if TYPE_CHECKING:
    from solo_hcsc.study.record import Comparison


def run(argv: Sequence[str]) -> None:
    flags, methods = parse(argv)
    names = {name: ORACLES_ROW if name == ORACLE else name for name in methods}
    parsed = {name: pretraining(names[name], typed, flags.test_dir) for name, typed in methods.items()}
    judged = evaluations(flags)

    from solo_hcsc.study.compare import compare

    found = compare(
        {name: values(settings, "method", "oracle_labels") for name, settings in parsed.items()},
        seeds=flags.seeds,
        out=flags.out,
        evaluations=judged,
        test_dir=flags.test_dir,
        budget=flags.budget,
        search=flags.search,
        search_epochs=flags.search_epochs,
        search_seed=flags.search_seed,
        command=Invocation("compare", tuple(argv)).line,
    )
    conclude(found, flags.out, next(iter(parsed.values())))
    if flags.search and "hcsc" in methods:
        print(f"to measure what the tree contributes to hcsc: {pair_of(flags, found)}")


def pair_of(flags: Namespace, found: "Comparison") -> str:
    """Return the command that runs HCSC with a search's settings, for as many epochs, without and with its tree."""
    rows = [row for row in found.rows if row.base == "hcsc"]
    settings = {name: value for name, value in rows[0].settings.items() if name not in ("method", "max_epochs")}
    own = ["--table", "tree", "--seeds", *map(str, flags.seeds), "--test_dir", str(flags.test_dir)]
    own += ["--evaluations", *flags.evaluations]
    own += [f"--{name}={getattr(flags, name)}" for name in flags.evaluations if getattr(flags, name)]
    epochs = max(row.epochs or 0 for row in rows)
    return Invocation("ablate", (*own, *words({**settings, "max_epochs": epochs}))).line


def parse(argv: Sequence[str]) -> tuple[Namespace, dict[str, list[str]]]:
    """Split a command line into the comparison's own flags and each method's words of pretraining."""
    known = method_names()
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
        help=f"of {', '.join(known)}; {ORACLE}: HCSC with the true labels as its tree, a ceiling and no method",
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
    for name in known:
        group.add_argument(f"--{name}", metavar='"FLAGS"', default="", help=f"for {name} only")
    flags, common = split(parser, argv, known)
    refuse_repeated("methods", flags.methods, "a method")
    for name in flags.methods:
        if name != ORACLE:
            check_method(name, "--methods")
    for name in known:
        of_oracle = name == "hcsc" and ORACLE in flags.methods
        if getattr(flags, name) and name not in flags.methods and not of_oracle:
            raise UserError(f"--{name}: is not among --methods {' '.join(flags.methods)}")
    own = {name: in_quotes(flags, "hcsc" if name == ORACLE else name) for name in flags.methods}
    for more in own.values():
        refuse_set_here(names_in(more))
        refuse_oracle(names_in([*common, *more]))
    oracle = ["--oracle_labels", "true"]
    return flags, {
        name: ["--method", "hcsc" if name == ORACLE else name, *common, *more, *(oracle if name == ORACLE else [])]
        for name, more in own.items()
    }
