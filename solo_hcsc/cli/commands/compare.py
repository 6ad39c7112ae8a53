"""`solo-hcsc compare`: pretrains and evaluates methods with several seeds, and shows them side by side."""

from collections.abc import Sequence

from solo_hcsc.cli.commands._studies import (
    comparison_parser,
    conclude,
    evaluations,
    in_quotes,
    names_in,
    pair_of,
    pretraining,
    split,
    values,
)
from solo_hcsc.errors import UserError
from solo_hcsc.methods.names import method_names
from solo_hcsc.methods.settings import check_method
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings
from solo_hcsc.study.asked import ORACLE, ORACLES_ROW, refuse_oracle, refuse_repeated, refuse_set_here


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


def parse(argv: Sequence[str]) -> tuple[Settings, dict[str, list[str]]]:
    """Split a command line into the comparison's own flags and each method's words of pretraining."""
    known = method_names()
    parser = comparison_parser()
    flags, common = split(parser, argv, known)
    refuse_repeated("methods", flags.methods, "a method")
    for name in flags.methods:
        if name != ORACLE:
            check_method(name, "`methods`")
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
