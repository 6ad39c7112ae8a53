"""`solo-hcsc linear`: trains a linear classifier on a frozen encoder."""

from collections.abc import Sequence

from solo_hcsc.cli.flags import add_all
from solo_hcsc.cli.parser import Parser
from solo_hcsc.evaluation.protocols import SWEEP, check_linear, linear_settings
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings


def run(argv: Sequence[str]) -> None:
    settings = parse(argv)
    source = evaluated_images(settings).located(needs_val=True).labelled()

    from solo_hcsc.evaluation.linear import linear_of_run

    linear_of_run(settings, source, Invocation("linear", tuple(argv)))


def parse(argv: Sequence[str]) -> Settings:
    first = Parser("linear", add_help=False)
    first.add_argument("--config")
    config = first.parse_known_args(list(argv))[0].config
    settings = build_parser(config, "--lr_sweep" in argv).parse(argv)
    if settings.lr_sweep == []:
        settings = settings.but(lr_sweep=SWEEP)
    check_linear(settings)
    return settings


def build_parser(config: str | None = None, sweep: bool = False) -> Parser:
    told = "Trains a linear classifier on the frozen encoder of a checkpoint."
    parser = Parser("linear", told, "--pretrained_feature_extractor PATH [flags]")
    add_all(parser, linear_settings(config, sweep))
    parser.change("lr_sweep", nargs="*", metavar="LR")
    return parser
