"""`solo-hcsc analyse`: pictures of what a run has learnt, as the paper's analysis shows it."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add_feature_flags, add_split_flags, add_wandb_flags, check_frozen
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.settings import check_label_hierarchy
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.recorded import find_run
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Bound, Settings, at_least, take
from solo_hcsc.study.asked import FEWEST_TO_ANALYSE
from solo_hcsc.training.settings import Wandb

MOST_QUERIES = 12  # that a picture has room for


def run(argv: Sequence[str]) -> None:
    """Check, compute and write; nothing is written before everything is known."""
    flags = parse(argv)
    refuse_early(flags)

    from solo_hcsc.evaluation.features import tell_skipped
    from solo_hcsc.report.analysis import analyse_as

    found = analyse_as(flags, Invocation("analyse", tuple(argv)).line, list(argv))
    file = found.save(wandb=take(Wandb, flags))
    print(f"{len(found.pictures)} pictures in {file.parent}; their captions and numbers in {file}")
    tell_skipped(found.skipped, found.images + len(found.skipped))


def refuse_early(flags: Settings) -> None:
    """Refuse wrong folders before anything heavy is imported."""
    ImageSource.of_run(flags, find_run(flags.pretrained_feature_extractor).settings, tell=False).with_split(flags.split)


def parse(argv: Sequence[str]) -> Settings:
    parser = Parser(
        "analyse",
        "Pictures of what a run has learnt. HCSC: its prototypes, its left-out negatives, and the agreement of both "
        "with labels. Any method: maps of its features. Works without labels too.",
        "--pretrained_feature_extractor PATH [flags]",
    )
    add_feature_flags(parser)
    told = "use no labels; implied when there are no class folders, or when pretraining used none"
    parser.change("no_labels", help=told)
    group = parser.add_argument_group("analysis")
    add_split_flags(group, "which images are analysed", "seed of k-means, of the sample and of the maps")
    group.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where the pictures go; `analysis` beside the checkpoint if not given",
    )
    group.add_argument(
        "--points",
        type=int,
        default=1000,
        bound=at_least(FEWEST_TO_ANALYSE),
        help="images that maps and left-out negatives are made of; at most all",
    )
    group.add_argument(
        "--queries",
        type=int,
        default=4,
        bound=Bound(lambda value: 1 <= value <= MOST_QUERIES, f"must be from 1 to {MOST_QUERIES}"),
        help="queries that are shown with their left-out negatives",
    )
    add_wandb_flags(parser)
    flags = parser.parse(argv)
    check_label_hierarchy(flags)
    check_frozen(flags)
    return flags
