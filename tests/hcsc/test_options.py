"""What options there are, what presets make of them, and what is refused."""

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from solo_hcsc.cli.flags import add
from solo_hcsc.cli.parser import Parser
from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.options import PRESETS, Options, options_in
from solo_hcsc.settings import rows_of


def test_help_needs_no_torch():
    code = "import sys, solo_hcsc.hcsc.options; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_option_has_a_value_a_help_and_a_way_back(preset):
    options = Options(preset=preset)
    for item in fields(Options):
        assert getattr(options, item.name) is not None
        assert item.metadata["help"]
    assert Options(**options.as_dict()) == options == replace(options)
    assert hash(options)
    with pytest.raises(FrozenInstanceError):
        options.queue_size = 1


def test_what_is_none_is_the_presets():
    assert Options(preset=None, queue_size=None, temperature=0.1) == Options(temperature=0.1)
    assert Options(preset="official", icsc_levels=None).icsc_levels == "sum"


def test_hierarchy_off_leaves_the_bottom_level():
    assert Options(hierarchy=False).num_prototypes == (3000,)
    assert Options(num_prototypes=[9, 4], hierarchy=False).num_prototypes == (9,)


def test_warm_up_tells_where_clustering_starts():
    assert Options(proto_warmup_epochs=7).clustering_start == 7
    assert Options(proto_warmup_epochs=7, clustering_start=3).clustering_start == 3
    assert Options(preset="paper").clustering_start == 0


def test_batch_must_fit_into_the_queue():
    Options(queue_size=8).check_batch(8)
    with pytest.raises(ArgumentError, match="`queue_size` 8: smaller than the 10 keys of a batch over all processes"):
        Options(queue_size=8, symmetric=True).check_batch(5)


def test_presets_differ_as_documented():
    paper, official, recommended = (Options(preset=name) for name in PRESETS)
    assert (paper.left_out, official.left_out, recommended.left_out) == ("removed", "zero_logit", "removed")
    assert (paper.query_cluster, official.query_cluster) == ("similarity", "assignment")
    assert recommended.query_cluster == "assignment"
    assert (paper.batch_negatives, official.batch_negatives, recommended.batch_negatives) == (False, False, True)
    assert (paper.icsc_levels, official.icsc_levels) == ("mean", "sum")
    assert (paper.temperature_members, official.temperature_members) == ("images", "children")
    assert (paper.temperature_scaling, official.temperature_scaling) == ("none", "clipped")
    assert (paper.temperature_centre, official.temperature_centre) == ("prototype", "centroid")
    assert (paper.min_cluster_size, official.min_cluster_size) == (10, 0)
    assert (paper.clustering_start, official.clustering_start) == (0, 20)
    assert (paper.proto_negatives, official.proto_negatives) == ("all", "outside_batch")
    assert (paper.clamp_probabilities, official.clamp_probabilities) == (False, True)
    assert (paper.clustered_encoder, official.clustered_encoder) == ("online", "momentum")
    assert (paper.local_views, official.local_views) == ("mean", "sum")
    assert (paper.local_proto_selection, official.local_proto_selection) == ("query", "crop")
    assert (paper.temperature_floor, official.temperature_floor) == ("everywhere", "instances")
    assert (official.kmeans_seed, official.kmeans_iterations, official.kmeans_restarts) == ("level", 20, 5)
    assert (paper.clustered_features, official.clustered_features) == ("images", "images")
    assert (paper.kmeans, official.kmeans, recommended.kmeans) == ("plain", "plain", "fast")


def test_any_option_of_a_preset_can_be_overridden_by_its_flag():
    parser = Parser("x", "")
    add(parser, *rows_of(Options, PRESETS))
    flags = "--preset official --left_out removed --num_prototypes 9 4 --instance_selection false --symmetric"
    options = options_in(vars(parser.parse_args(flags.split())))
    assert (options.preset, options.left_out, options.query_cluster) == ("official", "removed", "assignment")
    assert (options.num_prototypes, options.instance_selection, options.symmetric) == ((9, 4), False, True)
    flagged = {action.dest for action in parser._actions} - {"help"}
    assert flagged == {field.name for field in fields(Options)}
    assert options.as_dict()["num_prototypes"] == [9, 4]


BAD = {
    "preset": ({"preset": "best"}, "choose from paper, official, recommended"),
    "no prototypes": ({"num_prototypes": [0]}, "`num_prototypes` 0: every level needs at least 1"),
    "growing levels": ({"num_prototypes": [10, 20]}, "each level must have fewer"),
    "as many": ({"num_prototypes": [10, 10]}, "each level must have fewer"),
    "temperature": ({"temperature": 0.0}, "`temperature` 0.0: must be greater than 0"),
    "nothing to train": ({"instance_loss": False, "prototype_loss": False}, "nothing is left to train with"),
    "idle warm-up": ({"instance_loss": False}, "add `proto_warmup_epochs` 0"),
    "late clustering": ({"clustering_start": 30}, "needs prototypes by then"),
    "recluster": ({"recluster_every": 0}, "`recluster_every` 0"),
    "negative sample": ({"cluster_sample": -1}, "`cluster_sample` -1: must not be negative"),
    "negative start": ({"clustering_start": -2}, "`clustering_start` -2: give a number of epochs, or -1"),
    "choice": ({"left_out": "gone"}, "`left_out` gone: choose from removed, zero_logit"),
    "nan": ({"temperature": float("nan")}, "`temperature` nan: must be greater than 0"),
    "no truth": ({"symmetric": "false"}, "`symmetric` false: must be true or false"),
    "no number": ({"queue_size": 0.5}, "`queue_size` 0.5: must be a whole number"),
    "words for levels": ({"num_prototypes": ["9", "4"]}, "must be one whole number per level"),
    "no levels": ({"num_prototypes": 300}, "`num_prototypes` 300: must be one whole number per level"),
    "keys of the other encoder": (
        {"clustered_encoder": "online"},
        "`clustered_encoder` online: keys are the momentum one's; add `clustered_features` images",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_options_that_make_no_sense_are_refused(case):
    flags, reason = BAD[case]
    with pytest.raises(ArgumentError, match=reason):
        Options(**flags)


def test_warmup_must_be_shorter_than_the_run():
    with pytest.raises(ArgumentError, match="`proto_warmup_epochs` 20: must be shorter than the run, `max_epochs` 20"):
        Options().check_schedule(20)
    Options().check_schedule(21)
    with pytest.raises(ArgumentError, match="nothing would be clustered"):
        Options(**{"prototype_loss": False}).check_schedule(5)
    Options(**{"prototype_loss": False, "instance_selection": False}).check_schedule(5)
