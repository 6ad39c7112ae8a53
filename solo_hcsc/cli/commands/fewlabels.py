"""`solo-hcsc fewlabels`: the accuracy with few labels, of images that `pick` chooses and of random ones."""

from collections.abc import Sequence

from solo_hcsc.cli.flags import embed_parser
from solo_hcsc.cli.next_command import next_command
from solo_hcsc.evaluation.frozen_settings import FEWLABELS, check_fewlabels
from solo_hcsc.runs.images import find_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings


def run(argv: Sequence[str]) -> None:
    """Check, measure, and write the table and the files."""
    settings = parse(argv)
    files, source = find_images(settings, "train", "val")

    from solo_hcsc.report.few_labels import measure_and_save

    found = measure_and_save(settings, files, source, Invocation("fewlabels", tuple(argv)))
    (result,) = found.results.values()
    dropped = ("budgets", "draws", "out", "val_dir")
    line = next_command("pick", settings, dropped, "--budget", max(result.settings["budgets"]), "--out", "labels.csv")
    found.tell(f"to choose images for labelling: {line}")


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "fewlabels",
        "What few labels are worth: the accuracy of a linear classifier, KNN and `spread` on val images, with labels "
        "of training images that `pick` chooses, of random ones and of equally many random ones of each class.",
        "[WHAT] [--data_dir FOLDER --train_dir FOLDER --val_dir FOLDER] --out FOLDER [flags]",
        FEWLABELS,
    )
    parser.change("out", metavar="FOLDER", required=True)
    settings = parser.parse(argv)
    check_fewlabels(settings)
    return settings
