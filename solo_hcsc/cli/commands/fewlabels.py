"""`solo-hcsc fewlabels`: the accuracy with few labels, of images that `pick` chooses and of random ones."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from solo_hcsc.cli.features import check_classes, compute, find_images, picks_from_run, prepare
from solo_hcsc.cli.flags import add_way_flags, check_frozen, embed_parser
from solo_hcsc.cli.next_command import next_command
from solo_hcsc.files import check_folder_to_write, written_together
from solo_hcsc.runs.results import Invocation, describe_data
from solo_hcsc.settings import Settings, at_least

NAMES = ("fewlabels.json", "fewlabels.svg")


def run(argv: Sequence[str]) -> None:
    """Check, measure, and write the table and the files."""
    flags = parse(argv)
    files, source = find_images(flags, "train", "val")
    started = time.monotonic()

    from solo_hcsc.evaluation.budgets import check_budgets, fewlabels
    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.hcsc.kmeans import import_faiss
    from solo_hcsc.report.few_labels import draw_scores
    from solo_hcsc.report.figures import to_svg, write_svg
    from solo_hcsc.runs.run import Run

    import_faiss("fewlabels clusters")
    opened = Run(files, flags.encoder, flags.encoder_args)
    embedders = [prepare(opened, source, flags, split) for split in ("train", "val")]
    budgets = check_budgets(flags.budgets if "budgets" in flags.typed else None, len(embedders[0].images))
    check_classes(embedders)
    own = picks_from_run(opened, flags)
    embedders[0] = prepare(opened, source, flags, "train", tree=own)
    train, val = (compute(embedder, flags) for embedder in embedders)
    print("choosing, training, judging ...", flush=True)
    result = fewlabels(train, val, budgets, flags.draws, flags.way, own)
    skipped = train.skipped + val.skipped
    counts = {split: result.data[f"{split}_images"] for split in ("train", "val")}
    described = replace(source.with_split("train"), val_dir=source.with_split("val").val_dir)
    data = describe_data(described, result.data["classes"], skipped, **counts)
    settings = {**result.settings, "features": flags.features}
    result = replace(result, data=data, settings=settings, seconds=time.monotonic() - started)
    with written_together(flags.out, NAMES) as (text, picture):
        result.of(embedders[0].encoder, Invocation("fewlabels", tuple(argv))).save(text)
        write_svg(picture, to_svg("fewlabels", lambda: draw_scores(result)))
    print(f"accuracy in % on {counts['val']} images; mean ± standard deviation of {flags.draws} draws")
    print(result.table())
    print(f"{', '.join(NAMES)} in {flags.out}")
    dropped = ("budgets", "draws", "out", "val_dir")
    line = next_command("pick", flags, dropped, "--budget", max(budgets), "--out", "labels.csv")
    print(f"to choose images for labelling: {line}")
    tell_skipped(skipped, sum(len(embedder.images) for embedder in embedders))


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "fewlabels",
        "What few labels are worth: the accuracy of a linear classifier, KNN and `spread` on val images, with labels "
        "of training images that `pick` chooses, of random ones and of equally many random ones of each class.",
        "RUN [--data_dir FOLDER --train_dir FOLDER --val_dir FOLDER] --out FOLDER [flags]",
    )
    parser.hide("split", "no_labels")
    group = parser.add_argument_group("few labels")
    budgets = [10, 20, 50, 100, 250, 500]
    told = "how many images are labelled"
    group.add_argument("--budgets", type=int, nargs="+", default=budgets, bound=at_least(1), metavar="N", help=told)
    told = "times that each choice is made, each from another four fifths of the training images"
    group.add_argument("--draws", type=int, default=5, bound=at_least(1), metavar="N", help=told)
    group.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="where the files go")
    add_way_flags(group)
    flags = parser.parse(argv)
    check_frozen(flags)
    check_folder_to_write(flags.out)
    return flags
