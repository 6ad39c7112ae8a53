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
        "Agreement (NMI, AMI, accuracy) with labels of clusters of a frozen encoder's embeddings: k-means, Ward's "
        "linkage and a tree, at equal numbers of clusters; also the purities of the tree. An HCSC run "
        "has its own tree of prototypes; others get one of their embeddings.",
        "--pretrained_feature_extractor PATH [flags]",
    )
    add_all(parser, CLUSTERING)
    settings = parser.parse(argv)
    check_clustering(settings)
    return settings
