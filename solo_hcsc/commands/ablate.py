"""`python -m solo_hcsc.ablate`: the rows of the paper's ablation and sensitivity tables, on one's own images."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.commands.compare import Study, add_flags, split
from solo_hcsc.cli.errors import UserError, command
from solo_hcsc.cli.flags import Parser
from solo_hcsc.cli.quiet import quiet

if TYPE_CHECKING:
    from solo_hcsc.study.runner import Variant
    from solo_hcsc.hcsc.options import Options

PAPER = (3000, 2000, 1000)  # the prototypes of the paper's own row


def components(_: Sequence[int]) -> dict[str, str]:
    """tab:ablation. HP: hierarchical prototypes, IL: instance loss, PL: prototype loss, IS and PS: their selections."""
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
    """tab:sensitivity, first part: more hierarchies."""
    bottom = tree[0]
    rows = [(bottom,), (2 * bottom,), *(tree[:count] for count in range(2, len(tree) + 1))]
    return _trees([*rows, (*tree, tree[-1] // 2)] if tree[-1] > 1 else rows)


def prototypes(tree: Sequence[int]) -> dict[str, str]:
    """tab:sensitivity, second part: more prototypes, in the paper's proportions to its own row."""
    rows = [(1000, 500, 200), PAPER, (10000, 5000, 1000), (30000, 10000, 1000)]
    scaled = [[max(1, round(count * tree[0] / PAPER[0])) for count in row] for row in rows]
    scaled[1] = list(tree)
    return _trees(scaled)


def choices(_: Sequence[int]) -> dict[str, str]:
    """What preset `recommended` chose, each taken back; docs/presets.md says why."""
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


TABLES: dict[str, Callable[[Sequence[int]], dict[str, str]]] = {
    "components": components,
    "levels": levels,
    "prototypes": prototypes,
    "choices": choices,
}


@command
def main(argv: Sequence[str]) -> None:
    quiet()
    own, variants = parse(argv)
    study = Study("ablate", own, variants)
    study.reference, study.order = own.reference, own.order
    study.begin(variants)
    study.experiments.run(variants, own.seeds)
    study.conclude()


def parse(argv: Sequence[str]) -> "tuple[Namespace, list[Variant]]":
    """The ablation's own flags, and the table's rows with theirs."""
    parser = Parser(
        prog="solo_hcsc.ablate",
        usage="%(prog)s --table NAME --dataset NAME --num_prototypes N N N [flags] [flags of solo_hcsc.pretrain]",
        description="Pretrains HCSC in the forms of one of the paper's tables, evaluates each run, and makes a report. "
        "Flags that are not listed here are pretraining's and go to every row. The same command again goes on after an "
        "interruption.",
    )
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--table",
        choices=list(TABLES),
        required=True,
        help="components: the paper's ablation; levels and prototypes: its sensitivity analysis, from the run's own "
        "--num_prototypes; choices: what preset recommended chose, each taken back",
    )
    group.add_argument("--rows", nargs="+", type=int, metavar="N", help="only these rows of the table, from 1")
    add_flags(parser)
    parser.set_defaults(evaluations=["knn", "linear", "clustering"], out=None)
    parser.describe(out="folder of the runs and the report (trained_models/ablate/TABLE)")
    own, flags = split(parser, argv, [])
    own.out = own.out or Path("trained_models", "ablate", own.table)

    from solo_hcsc.study.runner import Variant

    flags = ["--method", "hcsc", *flags]
    base = options_of(flags)
    table = TABLES[own.table](base.num_prototypes)
    own.order = list(table)
    own.reference = next((name for name, more in table.items() if options_of([*flags, *more.split()]) == base), None)
    return own, [Variant(name, (*flags, *more.split())) for name, more in chosen(own, table).items()]


def options_of(flags: Sequence[str]) -> "Options":
    from solo_hcsc.commands import pretrain
    from solo_hcsc.hcsc.options import resolve_options

    return resolve_options(pretrain.parse(flags))


def chosen(own: Namespace, rows: dict[str, str]) -> dict[str, str]:
    """The table's rows that are wanted: names and flags."""
    wanted = own.rows or range(1, len(rows) + 1)
    for number in wanted:
        if not 1 <= number <= len(rows):
            raise UserError(f"--rows {number}: table {own.table} has rows 1 to {len(rows)}")
    return {name: more for number, (name, more) in enumerate(rows.items(), 1) if number in wanted}


def _trees(rows: Sequence[Sequence[int]]) -> dict[str, str]:
    return {"-".join(map(str, row)): f"--num_prototypes {' '.join(map(str, row))}" for row in rows}


if __name__ == "__main__":
    main()
