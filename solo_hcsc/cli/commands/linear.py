"""`solo-hcsc linear`: trains a linear classifier on a frozen encoder."""

from collections.abc import Sequence

from solo_hcsc.cli.commands._probes import show
from solo_hcsc.cli.flags import add_all
from solo_hcsc.cli.parser import Parser
from solo_hcsc.evaluation.protocols import SWEEP, check_linear, linear_settings
from solo_hcsc.progress import say
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings


def run(argv: Sequence[str]) -> None:
    settings = parse(argv)
    source = evaluated_images(settings).located(needs_val=True).labelled()

    from solo_hcsc.evaluation.linear import train_linear
    from solo_hcsc.training.resume import FinishedError

    try:
        evaluated = train_linear(settings, source, Invocation("linear", tuple(argv)))
    except FinishedError as finished:
        if not settings.auto_resume:
            raise
        return say(f"nothing to do: {finished}")
    result, remark = evaluated.result, ""
    if settings.lr_sweep and result.metrics:
        remark = (
            f"best: {result.metrics['acc1']:.2f} % with lr {result.settings['lr']:g}, chosen on the validation images"
        )
        if "diverged" in result.settings:
            remark += f"; diverged: {', '.join(f'{lr:g}' for lr in result.settings['diverged'])}"
    show(evaluated, remark)


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
