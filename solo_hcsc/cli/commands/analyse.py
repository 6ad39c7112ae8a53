"""`solo-hcsc analyse`: pictures of what a run has learnt, as the paper's analysis shows it."""

from collections.abc import Sequence

from solo_hcsc.cli.flags import add_all
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.recorded import find_run
from solo_hcsc.evaluation.frozen_settings import ANALYSE, check_analysis
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings


def run(argv: Sequence[str]) -> None:
    """Check, compute and write; nothing is written before everything is known."""
    settings = parse(argv)
    refuse_early(settings)

    from solo_hcsc.report.analysis import analyse_and_save

    analyse_and_save(settings, Invocation("analyse", tuple(argv)))


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
    add_all(parser, ANALYSE)
    parser.change("out", metavar="FOLDER")
    settings = parser.parse(argv)
    check_analysis(settings)
    return settings
