"""`solo-hcsc detect RUN`: trains a detector on an encoder, all of whose weights learn, and reports its precision."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.cli.flags import add_all
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.source import check_folder
from solo_hcsc.encoders.recorded import newest_checkpoints
from solo_hcsc.evaluation.detection_settings import SETTINGS, complete
from solo_hcsc.evaluation.protocols import CHECKPOINT
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings

if TYPE_CHECKING:
    from solo_hcsc.data.detection import AnnotatedImage
    from solo_hcsc.evaluation.detecting import Detections


def run(argv: Sequence[str]) -> None:
    settings = parse(argv)
    newest_checkpoints(settings.pretrained_feature_extractor)
    check_folder("data_dir", settings.data_dir)

    from solo_hcsc.data.detection import few
    from solo_hcsc.evaluation.detection import train_detector
    from solo_hcsc.report.detection import sheet, write_sheet

    def draw(
        images: "Sequence[AnnotatedImage]", found: "Sequence[Detections]", classes: Sequence[str], folder: Path
    ) -> Mapping[str, str]:
        return write_sheet(sheet(images, found, few(images, settings.pictures), classes), folder)

    evaluated = train_detector(settings, Invocation("detect", tuple(argv)), draw if settings.pictures else None)
    without = [name for name, one in evaluated.result.settings["per_class"].items() if "AP" not in one]
    left = f"left out of the mean, since no test image shows it: {', '.join(without)}" if without else ""
    evaluated.show(left, "in percent, of {} test images")


def parse(argv: Sequence[str]) -> Settings:
    return complete(build_parser().parse(argv))


def build_parser() -> Parser:
    parser = Parser(
        "detect",
        "Trains a detector on the encoder of a checkpoint, nothing frozen, and reports average precision on the test "
        "images. The defaults are the paper's: Faster R-CNN C4 on VOC07+12, Mask R-CNN C4 on COCO.",
        "RUN --data_dir FOLDER [--dataset voc0712|coco|voc] [flags]",
    )
    group = parser.add_argument_group("encoder")
    group.add_argument("pretrained_feature_extractor", type=Path, metavar="RUN", help=CHECKPOINT[0].help)
    add_all(parser, SETTINGS)
    parser.change("data_dir", required=True)
    parser.change("lr_steps", nargs="*")
    return parser
