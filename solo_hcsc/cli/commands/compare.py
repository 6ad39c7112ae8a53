"""`solo-hcsc compare`: pretrains and evaluates methods with several seeds, and shows them side by side."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from solo_hcsc.cli.commands._studies import (
    CheckedRow,
    add_study_flags,
    check_early,
    checked,
    conclude,
    in_quotes,
    refuse_rows,
    refuse_set_here,
    shared_plan,
    split,
)
from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import UserError
from solo_hcsc.methods.names import method_names
from solo_hcsc.methods.settings import check_method
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import NOT_NEGATIVE, POSITIVE, Settings

if TYPE_CHECKING:
    from solo_hcsc.study.record import Search
    from solo_hcsc.study.search import EqualSearch

ORACLE = "oracle"  # among --methods: HCSC with the true labels as its tree
ORACLES_ROW = "hcsc with true labels (oracle)"


def run(argv: Sequence[str]) -> None:
    flags, methods = parse(argv)
    refuse_rows(flags, methods)

    from solo_hcsc.study.findings import choice
    from solo_hcsc.study.study import Plan, Study

    rows = [checked(name, words) for name, words in methods.items()]
    search: Search | None = None
    if flags.search:
        check_early(flags, rows)
        search = searching(flags, rows).run()
        for row in rows:
            print(choice(search, row.variant.name))
        rows = [with_winner(row, search) for row in rows]
    plan = Plan(
        **shared_plan("compare", flags, rows),
        subject=None,
        command=Invocation("compare", tuple(argv)).line,
        equal_time=flags.budget == "seconds",
        search=search,
    )
    found = conclude(Study(plan), rows[0].flags)
    for row in rows:
        if flags.search and row.variant.name == "hcsc":
            epochs = max(one.epochs or 0 for one in found.rows if one.base == "hcsc")
            print(f"to measure what the tree contributes to hcsc: {pair_of(flags, row, epochs)}")


def searching(flags: Settings, rows: Sequence[CheckedRow]) -> "EqualSearch":
    """Prepare the trials of `--search`; refuse those that held-out training images would not judge."""
    from solo_hcsc.data.sets import one_split
    from solo_hcsc.data.source import ImageSource
    from solo_hcsc.study.search import Circumstances, EqualSearch, Searched, import_optuna, space_of

    first = rows[0].flags
    if first.dataset != "custom" or flags.test_dir is None:
        raise UserError(
            "--search: settings are chosen by held-out training images; give them as --val_dir of --dataset custom, "
            "and other images as --test_dir to judge the winners"
        )
    if flags.test_dir == first.val_dir:
        raise UserError(f"--test_dir {flags.test_dir}: is also --val_dir, on which --search chooses; give other images")
    import_optuna()
    source = ImageSource.of_flags(first).located(needs_val=True)
    images, held_out = (len(one_split(source, split)) for split in ("train", "val"))  # type: ignore[arg-type]
    searched = []
    for row in rows:
        where = Circumstances(row.flags.batch_size, round(images * first.data_fraction), bool(row.flags.lars))
        space = space_of(row.flags.method, where, row.flags.typed)
        searched.append(Searched(row.variant.name, row.variant.flags, space))
    epochs = flags.search_epochs or first.max_epochs
    return EqualSearch(flags.out, searched, flags.search, epochs, flags.search_seed, held_out)


def with_winner(row: CheckedRow, search: "Search") -> CheckedRow:
    """Return a row with the settings of its method's best trial."""
    from solo_hcsc.study.findings import winner

    best = winner(search, row.variant.name)
    return checked(row.variant.name, [*row.variant.flags, *best.flags])


def pair_of(flags: Settings, row: CheckedRow, epochs: int) -> str:
    """Return the command that runs HCSC with a search's settings, for as many epochs, without and with its tree."""
    words = list(row.variant.flags)
    method = words.index("--method")  # which ablate gives itself
    del words[method : method + 2]
    own = ["--table", "tree", "--seeds", *map(str, flags.seeds), "--test_dir", str(flags.test_dir)]
    own += ["--evaluations", *flags.evaluations]
    own += [f"--{name}={getattr(flags, name)}" for name in flags.evaluations if getattr(flags, name)]
    return Invocation("ablate", (*own, *words, "--max_epochs", str(epochs))).line


def parse(argv: Sequence[str]) -> tuple[Settings, dict[str, list[str]]]:
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
    for name in flags.methods:
        if name != ORACLE:
            check_method(name, "--methods")
    if len(set(flags.methods)) < len(flags.methods):
        raise UserError(f"--methods {' '.join(flags.methods)}: names a method twice")
    for name in known:
        of_oracle = name == "hcsc" and ORACLE in flags.methods
        if getattr(flags, name) and name not in flags.methods and not of_oracle:
            raise UserError(f"--{name}: is not among --methods {' '.join(flags.methods)}")
    words = {name: in_quotes(flags, "hcsc" if name == ORACLE else name) for name in flags.methods}
    for more in words.values():
        refuse_set_here(more)
        refuse_oracle([*common, *more])
    return flags, dict(row_of(name, common, more) for name, more in words.items())


def refuse_oracle(words: Sequence[str]) -> None:
    """Refuse --oracle_labels: a comparison has true labels only in a row of their own, which says so."""
    if any(word.partition("=")[0] == "--oracle_labels" for word in words):
        raise UserError(
            f"--oracle_labels: trains with the true labels, and a comparison has that only as a row of its own; leave "
            f"it out, and add {ORACLE} to --methods"
        )


def row_of(name: str, common: Sequence[str], own: Sequence[str]) -> tuple[str, list[str]]:
    """Return a row's name and its words of pretraining."""
    if name == ORACLE:
        return ORACLES_ROW, ["--method", "hcsc", *common, *own, "--oracle_labels", "true"]
    return name, ["--method", name, *common, *own]
