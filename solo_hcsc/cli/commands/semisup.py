"""`solo-hcsc semisup`: fine-tunes an encoder and a linear classifier on few labels."""

from collections.abc import Sequence

from solo_hcsc.cli.flags import add_all
from solo_hcsc.cli.parser import Parser
from solo_hcsc.evaluation.protocols import SEMISUP_SETTINGS, check_semisup
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings


def run(argv: Sequence[str]) -> None:
    settings = parse(argv)
    source = evaluated_images(settings).located(needs_val=True).labelled()

    from solo_hcsc.evaluation.semisup import fine_tune

    fine_tune(settings, source, Invocation("semisup", tuple(argv))).show()


def parse(argv: Sequence[str]) -> Settings:
    settings = build_parser().parse(argv)
    check_semisup(settings)
    return settings


def build_parser() -> Parser:
    told = "Fine-tunes the encoder of a checkpoint, and a linear classifier on it, on a part of the labels."
    parser = Parser("semisup", told, "--pretrained_feature_extractor PATH [flags]")
    add_all(parser, SEMISUP_SETTINGS)
    return parser
