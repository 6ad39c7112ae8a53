"""`solo-hcsc ablate`: the rows of the paper's ablation and sensitivity tables, on one's own images."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.cli.commands._studies import add_study_flags, checked, conclude, refuse_rows, shared_plan, split
from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import UserError
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings

if TYPE_CHECKING:
    from solo_hcsc.hcsc.options import Options

PAPER = (3000, 2000, 1000)  # the prototypes of the paper's own row


def components(_: Sequence[int]) -> dict[str, str]:
    """Return tab:ablation. HP: hierarchical prototypes, IL, PL: instance and prototype loss, IS, PS: selections."""
    return {
        "IL, PL (PCL)": "--hierarchy false --instance_selection false --prototype_selection false",
        "HP, IL, PL": "--instance_selection false --prototype_selection false",
        "HP, IL, PL, PS": "--instance_selection false",
        "HP, IL, PL, IS": "--prototype_selection false",
        "HP, IL, PL, IS, PS (HCSC)": "",
        "HP, PL, PS": "--instance_loss false --instance_selection false --proto_warmup_epochs 0",
        "HP, IL, IS": "--prototype_loss false --prototype_selection false",
        "IL": "--instance_selection false --prototype_loss false",
    }


def levels(tree: Sequence[int]) -> dict[str, str]:
    """Return tab:sensitivity, first part: more hierarchies."""
    bottom = tree[0]
    rows = [(bottom,), (2 * bottom,), *(tree[:count] for count in range(2, len(tree) + 1))]
    return _trees([*rows, (*tree, tree[-1] // 2)] if tree[-1] > 1 else rows)


def prototypes(tree: Sequence[int]) -> dict[str, str]:
    """Return tab:sensitivity, second part: more prototypes, in the paper's proportions to its own row."""
    rows = [(1000, 500, 200), PAPER, (10000, 5000, 1000), (30000, 10000, 1000)]
    scaled = [[max(1, round(count * tree[0] / PAPER[0])) for count in row] for row in rows]
    scaled[1] = list(tree)
    return _trees(scaled)


def choices(_: Sequence[int]) -> dict[str, str]:
    """Return each choice of preset `recommended` taken back; docs/presets.md says why it is one."""
    return {
        "recommended": "",
        "prototype loss at full weight": "--proto_weight 1 --proto_ramp_epochs 0",
        "no prototype loss": "--prototype_loss false --prototype_selection false",
        "no selection": "--instance_selection false --prototype_selection false",
        "selection and prototypes from the start": "--proto_warmup_epochs 0",
        "negatives of older batches only": "--batch_negatives false",
        "query's cluster by Eq. 3": "--query_cluster similarity",
        "query's cluster by cosine": "--query_cluster cosine",
        "temperatures as Eq. 3 has them": "--temperature_scaling none",
        "clusters of centre crops": "--clustered_features images",
        "plain InfoNCE": "--instance_selection false --prototype_loss false",
    }


NO_TREE = "--instance_selection false --prototype_loss false --prototype_selection false"


def tree(_: Sequence[int]) -> dict[str, str]:
    """Return the pair that shows what the tree contributes: same seeds, weights and crops without and with it."""
    return {"without the tree": NO_TREE, "with the tree": ""}


def ceiling(_: Sequence[int]) -> dict[str, str]:
    """Return the same pair, and a tree of the true labels, which bounds what a better tree could contribute."""
    return {**tree(_), "true labels as the tree (oracle)": "--oracle_labels true"}


TABLES: dict[str, Callable[[Sequence[int]], dict[str, str]]] = {
    "components": components,
    "levels": levels,
    "prototypes": prototypes,
    "choices": choices,
    "tree": tree,
    "ceiling": ceiling,
}


def run(argv: Sequence[str]) -> None:
    flags, words = parse(argv)
    refuse_rows(flags, {flags.table: words})

    from solo_hcsc.study.study import Plan, Study

    base = options_of(words)
    table = TABLES[flags.table](base.num_prototypes)
    reference = reference_of(flags, table, words)
    rows = [checked(name, [*words, *more.split()]) for name, more in chosen(flags, table).items()]
    plan = Plan(
        **shared_plan("ablate", flags, rows),
        subject=f"HCSC's {flags.table}",
        command=Invocation("ablate", tuple(argv)).line,
        order=tuple(table),
        reference=reference,
    )
    conclude(Study(plan), rows[0].flags)


def parse(argv: Sequence[str]) -> tuple[Settings, list[str]]:
    """Split a command line into the ablation's own flags and the words of pretraining that all rows share."""
    parser = Parser(
        "ablate",
        "Pretrains HCSC in the forms of one of the paper's tables, evaluates each run, and makes a report. Flags that "
        "are not listed here are pretraining's and go to every row. The same command again goes on after an "
        "interruption.",
        "--table NAME --dataset NAME --num_prototypes N N N [flags] [flags of solo-hcsc pretrain]",
    )
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--table",
        choices=list(TABLES),
        required=True,
        help="components: the paper's ablation; levels and prototypes: its sensitivity analysis, from the run's own "
        "--num_prototypes; choices: what preset recommended chose, each taken back; tree: without the tree and with "
        "it; ceiling: the same, and the true labels as the tree, which no other run may have",
    )
    group.add_argument("--rows", nargs="+", type=int, metavar="N", help="only these rows of the table, from 1")
    group.add_argument(
        "--against",
        type=int,
        metavar="N",
        help="the row that the others are seen against, from 1; if not given, the one without the tree in tree and "
        "ceiling, and the one with the flags as given in the other tables",
    )
    add_study_flags(parser)
    parser.change("evaluations", default=["knn", "linear", "clustering"])
    table = Parser("ablate", add_help=False)
    table.add_argument("--table")
    named = table.parse_known_args(list(argv))[0].table
    parser.change(
        "out",
        default=Path("trained_models", "ablate", named or "TABLE"),
        help="folder of the runs and the report",
    )
    flags, words = split(parser, argv, [])
    if any(word.partition("=")[0] == "--oracle_labels" for word in words):
        raise UserError("--oracle_labels: is a row of --table ceiling, which says so; leave it out")
    return flags, ["--method", "hcsc", *words]


def options_of(words: Sequence[str]) -> "Options":
    from solo_hcsc.cli.commands import pretrain
    from solo_hcsc.hcsc.options import options_in

    return options_in(vars(pretrain.parse(words)))


def reference_of(flags: Settings, table: dict[str, str], words: Sequence[str]) -> str | None:
    """Choose the reference row: as asked, the run without the tree, or the one with the flags as given."""
    if flags.against is not None:
        check_row("--against", flags.against, flags.table, table)
        if flags.rows and flags.against not in flags.rows:
            raise UserError(f"--against {flags.against}: is not among --rows {' '.join(map(str, flags.rows))}; add it")
        return list(table)[flags.against - 1]
    if flags.table in ("tree", "ceiling"):
        return next(iter(table))
    base = options_of(words)
    return next((row for row, more in table.items() if options_of([*words, *more.split()]) == base), None)


def chosen(flags: Settings, rows: dict[str, str]) -> dict[str, str]:
    """Return the table's rows that are wanted: names and flags."""
    wanted = flags.rows or range(1, len(rows) + 1)
    for number in wanted:
        check_row("--rows", number, flags.table, rows)
    return {name: more for number, (name, more) in enumerate(rows.items(), 1) if number in wanted}


def check_row(flag: str, number: int, name: str, table: dict[str, str]) -> None:
    """Refuse the number of a row that a table does not have."""
    if not 1 <= number <= len(table):
        raise UserError(f"{flag} {number}: table {name} has rows 1 to {len(table)}")


def _trees(rows: Sequence[Sequence[int]]) -> dict[str, str]:
    return {"-".join(map(str, row)): f"--num_prototypes {' '.join(map(str, row))}" for row in rows}
