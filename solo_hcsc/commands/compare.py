"""`solo-hcsc compare`: pretrains and evaluates methods with several seeds, and shows them side by side."""

from argparse import Namespace
from collections.abc import Sequence

from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.flags import check_method, method_names
from solo_hcsc.cli.parser import Invocation, Parser
from solo_hcsc.commands._studies import (
    add_study_flags,
    checked,
    conclude,
    in_quotes,
    refuse_set_here,
    shared_plan,
    split,
)


def run(argv: Sequence[str]) -> None:
    flags, methods = parse(argv)

    from solo_hcsc.study.study import Plan, Study

    rows = [checked(name, words) for name, words in methods.items()]
    plan = Plan(
        **shared_plan("compare", flags, rows),
        subject=None,
        command=Invocation("compare", tuple(argv)).line,
        equal_time=flags.budget == "seconds",
    )
    conclude(Study(plan), rows[0].flags)


def parse(argv: Sequence[str]) -> tuple[Namespace, dict[str, list[str]]]:
    """The comparison's own flags, and each method's words of pretraining."""
    known = method_names()
    parser = Parser(
        "compare",
        "Pretrains methods on the same images with several seeds, evaluates each run, and makes a report. Flags that "
        "are not listed here are pretraining's and go to every method. The same command again goes on after an "
        "interruption, and does not repeat what is finished; beside a running one it takes over part of the runs.",
        "--methods NAME NAME ... --dataset NAME [flags] [flags of solo-hcsc pretrain]",
    )
    group = parser.add_argument_group("comparison")
    group.add_argument("--methods", nargs="+", required=True, metavar="NAME", help=f"of {', '.join(known)}")
    group.add_argument(
        "--budget",
        choices=["epochs", "seconds"],
        default="epochs",
        help="equal epochs for all; or, beyond that, more epochs for the faster ones until they take as long",
    )
    add_study_flags(parser)
    group = parser.add_argument_group("a method's own flags, in quotes")
    for name in known:
        group.add_argument(f"--{name}", metavar='"FLAGS"', default="", help=f"for {name} only")
    flags, common = split(parser, argv, known)
    for name in flags.methods:
        check_method(name, "--methods")
    if len(set(flags.methods)) < len(flags.methods):
        raise UserError(f"--methods {' '.join(flags.methods)}: names a method twice")
    for name in known:
        if getattr(flags, name) and name not in flags.methods:
            raise UserError(f"--{name}: is not among --methods {' '.join(flags.methods)}")
    words = {name: in_quotes(flags, name) for name in flags.methods}
    for more in words.values():
        refuse_set_here(more)
    return flags, {name: ["--method", name, *common, *more] for name, more in words.items()}
