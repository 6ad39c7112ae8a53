"""`solo-hcsc adapt`: goes on from given weights on one's own images, and never hands over worse features."""

from collections.abc import Sequence

from solo_hcsc.cli.flags import embed_parser
from solo_hcsc.runs.images import check_splits, find_images
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings
from solo_hcsc.tables import clock
from solo_hcsc.training.adapt_settings import ADAPT, check_adapt, with_splits


def run(argv: Sequence[str]) -> None:
    """Check, embed, train, judge, and write the run."""
    flags = parse(argv)
    files, source = find_images(flags, "train")
    if source.val_dir is not None:
        check_splits(source, "val")

    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.training.adapt import adapt_run

    found = adapt_run(flags, files, source, Invocation("adapt", tuple(argv)))
    print(found.result.table())
    tell_skipped(found.skipped, found.images)
    judged = "better" if found.adapted else "no better"
    handed = "they are" if found.adapted else "the frozen ones are"
    took = clock(found.result.seconds)
    print(f"the adapted features are {judged} on held-out images: {handed} handed over in {flags.out} ({took})")
    print(f"to see the images by these features: solo-hcsc explore {flags.out}")
    print(f"to use them elsewhere: solo-hcsc export {flags.out} --format safetensors --out encoder.safetensors")


def parse(argv: Sequence[str]) -> Settings:
    parser = embed_parser(
        "adapt",
        "Goes on from given weights on your own images: embeds each image and random views of it once, trains a small "
        "adapter on the features in seconds, and hands it over only if held-out images say that it is better.",
        "[WHAT] --data_dir FOLDER --out RUN [flags]",
        ADAPT,
    )
    flags = with_splits(parser.parse(argv))
    check_adapt(flags)
    return flags
