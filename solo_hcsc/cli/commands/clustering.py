"""`solo-hcsc clustering`: how well clusters of a frozen encoder's embeddings agree with labels."""

from collections.abc import Sequence

from solo_hcsc.cli.flags import add_all
from solo_hcsc.cli.parser import Parser
from solo_hcsc.evaluation.frozen_settings import CLUSTERING, check_clustering
from solo_hcsc.runs.images import find_split
from solo_hcsc.runs.results import Invocation
from solo_hcsc.settings import Settings


def run(argv: Sequence[str]) -> None:
    settings = parse(argv)
    found = find_split(settings)

    from solo_hcsc.evaluation.of_runs import clustering_of_run

    clustering_of_run(settings, *found, Invocation("clustering", tuple(argv))).tell()


def parse(argv: Sequence[str]) -> Settings:
    parser = Parser(
        "clustering",
        "Agreement (NMI, AMI, accuracy) with labels of k-means on a frozen encoder's embeddings, and of the tree of "
        "prototypes that an HCSC run has of its own (also dendrogram and leaf purity).",
        "--pretrained_feature_extractor PATH [flags]",
    )
    add_all(parser, CLUSTERING)
    settings = parser.parse(argv)
    check_clustering(settings)
    return settings
