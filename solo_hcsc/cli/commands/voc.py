"""`solo-hcsc voc`: trains a linear classifier for PASCAL VOC 2007's classes on a frozen encoder."""

from collections.abc import Sequence

from solo_hcsc.cli.flags import add_all
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.source import check_folder
from solo_hcsc.evaluation.protocols import VOC_SETTINGS, check_voc
from solo_hcsc.runs.images import evaluated_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings


def run(argv: Sequence[str]) -> None:
    settings = parse(argv)
    source = evaluated_images(settings)
    check_folder("data_dir", settings.data_dir)

    from solo_hcsc.evaluation.voc import train_voc

    evaluated = train_voc(settings, source, Invocation("voc", tuple(argv)))
    result, remarks = evaluated.result, []
    if "image_AP" in result.metrics:
        value = result.metrics["image_AP"]
        remarks.append(f"average precision of each image's classes, which the paper reports: {value:.2f} %")
    if without := [name for name, pair in result.settings.get("per_class", {}).items() if pair is None]:
        remarks.append(f"left out of the mean, since no test image shows it: {', '.join(without)}")
    evaluated.show("; ".join(remarks))


def parse(argv: Sequence[str]) -> Settings:
    settings = build_parser().parse(argv)
    check_voc(settings)
    return settings


def build_parser() -> Parser:
    told = "Trains a linear classifier for PASCAL VOC 2007 on the frozen encoder of a checkpoint."
    parser = Parser("voc", told, "--pretrained_feature_extractor PATH --data_dir FOLDER [flags]")
    add_all(parser, VOC_SETTINGS)
    return parser
