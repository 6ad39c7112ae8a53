"""`solo-hcsc places`: trains a linear classifier for Places205 on a frozen encoder."""

from collections.abc import Sequence

from solo_hcsc.cli.flags import add_all
from solo_hcsc.cli.parser import Parser
from solo_hcsc.evaluation.protocols import PLACES_SETTINGS, check_places, place_lists
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings


def run(argv: Sequence[str]) -> None:
    settings = parse(argv)
    source = evaluated_images(settings)
    lists = place_lists(settings, source.data_dir)

    from solo_hcsc.evaluation.places import train_places

    train_places(settings, source, lists, Invocation("places", tuple(argv))).show()


def parse(argv: Sequence[str]) -> Settings:
    settings = build_parser().parse(argv)
    check_places(settings)
    return settings


def build_parser() -> Parser:
    told = "Trains a linear classifier for Places205 on the frozen encoder of a checkpoint."
    parser = Parser("places", told, "--pretrained_feature_extractor PATH --data_dir FOLDER [flags]")
    add_all(parser, PLACES_SETTINGS)
    return parser
