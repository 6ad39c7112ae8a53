"""`solo-hcsc ablate`: the rows of the paper's ablation and sensitivity tables, on one's own images."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.commands._studies import add_study_flags, conclude, evaluations, names_in, pretraining, split, values
from solo_hcsc.cli.parser import Parser
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings
from solo_hcsc.study.tables import TABLES, refuse_labels


def run(argv: Sequence[str]) -> None:
    flags, words = parse(argv)
    settings = pretraining(flags.table, words, flags.test_dir)
    judged = evaluations(flags)

    from solo_hcsc.study.ablate import ablate

    found = ablate(
        flags.table,
        rows=flags.rows,
        against=flags.against,
        seeds=flags.seeds,
        out=flags.out,
        evaluations=judged,
        test_dir=flags.test_dir,
        command=Invocation("ablate", tuple(argv)).line,
        **values(settings, "method"),
    )
    conclude(found, flags.out, settings)


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
        "it; ceiling: the same, and the true labels as the tree, which no other run may have; images: "
        "--image_backend pil and fast",
    )
    group.add_argument("--rows", nargs="+", type=int, metavar="N", help="only these rows of the table, from 1")
    group.add_argument(
        "--against",
        type=int,
        metavar="N",
        help="the row that the others are compared with, from 1; if not given, the first one in tree, ceiling and "
        "images, and the one with the flags as given in the other tables",
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
    refuse_labels(names_in(words))
    return flags, ["--method", "hcsc", *words]
