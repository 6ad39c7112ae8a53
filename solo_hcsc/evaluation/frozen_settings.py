"""Settings of what trains nothing on images: embeddings, `knn`, `clustering`, `fewlabels` and `analyse`.

Needs no torch, so that a wrong setting is refused before that is imported.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from solo_hcsc.data.settings import check_colours, check_label_hierarchy, check_skipping
from solo_hcsc.encoders.settings import CACHE, EMBEDDER, READER
from solo_hcsc.errors import ArgumentError
from solo_hcsc.evaluation.protocols import CHECKPOINT, check_checkpoint, check_labelled
from solo_hcsc.files import check_folder_to_write
from solo_hcsc.settings import (
    HIDDEN,
    NOT_NEGATIVE,
    ONE,
    POSITIVE,
    SHARE,
    Bound,
    Groups,
    Setting,
    Settings,
    at_least,
    below,
    changed,
    count_or_share,
    settle,
)
from solo_hcsc.training.settings import wandb
from solo_hcsc.trees.label_files import check_place
from solo_hcsc.trees.names import FORMATS, LEAF_WAYS, SORT_BY, WAYS, check_list_name

FEWEST_TO_ANALYSE = 10  # images of which a map says anything
MOST_QUERIES = 12  # that a picture has room for
_SPLITS = ("train", "val")
_AS_TRAINED = {"dataset": {"help": "which data set; as in pretraining if not given, like its folders"}}


def _frozen(own: Groups, changes: Mapping[str, Mapping[str, Any]]) -> Groups:
    """Return the settings that choose features, images and a device, by their groups, with an evaluation's own."""
    groups = {"encoder": EMBEDDER, "data": READER}
    hidden = {name: {"help": HIDDEN} for name in ("dali", "dali_device", "no_labels")}
    joined = {title: (*groups.get(title, ()), *own.get(title, ())) for title in groups | own}
    return changed(joined, {**_AS_TRAINED, **hidden, **changes})


def _of_checkpoint(own: Groups, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Groups:
    groups = _frozen(own, changes or {})
    return {**groups, "encoder": (*CHECKPOINT, *groups["encoder"])}


def data_format(text: str) -> str:
    """Accept solo-learn's name for folders of images."""
    if text != "image_folder":
        raise ArgumentError(f"{text}: images are read from folders (image_folder)")
    return text


def _compared(split: str, seed: str) -> tuple[Setting, ...]:
    """Return the settings of what compares clusters with labels; `split` and `seed` are help texts."""
    told = "a text file of lines `child: parent`, to compare with groups of classes too; cifar10 and digits have one"
    return (
        Setting("split", _SPLITS, "train", None, split),
        Setting("seed", int, 5, below(2**31), seed),
        Setting("label_hierarchy", Path, None, None, told),
    )


_ANY_FOLDER = "a folder of images, with class folders or without; with `dataset` or `train_dir`, what these are below"
EMBED = _frozen(
    {"data": (Setting("split", _SPLITS, "train", None, "which images, where the data set has both"), *CACHE)},
    {
        "data_dir": {"help": f"{_ANY_FOLDER}; the run's own images if not given"},
        "no_labels": {"help": "no column of labels; implied when there are no class folders"},
    },
)
_WHICH = "which image of a cluster: the most typical, the nearest to its centre; or farthest-first, without a tree"
_TREE = "whose clusters: the run's own tree, or one made of the features; auto: the run's own, if an HCSC run"
_LEVELS = "numbers of clusters at each level, the most first, such as 100 30 10; from the images if not given"
LEVELS = Setting("levels", int, None, ONE, _LEVELS, several=True)
TREE = (Setting("tree", ("auto", "run", "features"), "auto", None, f"{_TREE} started from random weights"),)
_SORTED = "a folder for the images, sorted into folders that are named after their clusters"
_INTO = "into how many clusters; if not given, those of the tree's lowest level with at most 50"
SORTING = (
    Setting("sort_into", Path, None, None, _SORTED),
    Setting("sort_by", SORT_BY, "link", None, "whether the sorted images are links or copies"),
    Setting("sort_clusters", int, None, ONE, _INTO),
)
PICKING = (Setting("way", WAYS, "typical", None, _WHICH), *TREE)
_LEAF = "which images of a cluster at the bottom of the tree: nearest to its centre, farthest from it, or random ones"
_COPIES = (
    "what near duplicates are found by: the pixels of the files, features alone, or none; features where there are no "
    "files"
)
_FAR = (
    "leave out images whose distance to their neighbours, relative to theirs, is so many interquartile ranges above "
    "the third quartile"
)
_TREES = "features: a tree is built of them; run: the run's own; or the folder of a saved tree of these images"
CURATING = (
    Setting("keep", count_or_share, None, POSITIVE, "how many images to keep (10000), or which share of all (0.25)"),
    Setting("way", LEAF_WAYS, "nearest", None, _LEAF),
    Setting("tree", str, "features", None, _TREES),
    Setting("duplicates", ("pixels", "features", "none"), "pixels", None, _COPIES),
    Setting("same", float, 0.95, POSITIVE, "with `duplicates` features: the cosine from which two are the same image"),
    Setting("outliers", float, 3.0, NOT_NEGATIVE, f"{_FAR}; 0 for none"),
    Setting("seed", int, 0, below(2**31), "of `way` random, and of the tree of many images"),
)
_HANDED = (
    "as what `out` is written: tables (csv), a file for Label Studio, COCO, CVAT or FiftyOne, Hugging Face's "
    "imagefolder, or folders of links, one for each class"
)
FORMAT = Setting("format", FORMATS, "csv", None, _HANDED)
LABEL_FILES = (  # what the labels of `spread` may be
    "CSV files with columns path and label, exports of Label Studio (JSON, JSON-MIN, CSV), COCO, CVAT (XML) or "
    "FiftyOne (JSON), or folders with metadata.csv or class folders; images without a label are left out"
)
_ABSTAIN = "leave this share of the images without a label: those with the lowest confidence"
SPREADING = (FORMAT, Setting("abstain", float, 0.0, SHARE, _ABSTAIN))
_DRAWS = "times that each choice is made, each from another four fifths of the training images"
FEWLABELS = changed(
    {
        **EMBED,
        "few labels": (
            Setting("budgets", int, [10, 20, 50, 100, 250, 500], ONE, "how many images are labelled"),
            Setting("draws", int, 5, ONE, _DRAWS),
            Setting("out", Path, None, None, "where the files go"),
            *PICKING,
        ),
    },
    {name: {"help": HIDDEN} for name in ("split", "no_labels")},
)
_SEVERAL = "of several, each is tried"
KNN = _of_checkpoint(
    {
        "data": (Setting("data_format", data_format, "image_folder", None, HIDDEN),),
        "KNN": (
            Setting(
                "k", int, [10, 20, 100, 200], ONE, "neighbours to try, as far as there are images; the best is reported"
            ),
            Setting("temperature", float, [0.07], POSITIVE, f"of the votes' weights (cosine); {_SEVERAL}"),
            Setting("distance_function", ("cosine", "euclidean"), ["cosine"], None, f"between features; {_SEVERAL}"),
        ),
    },
    {
        "features": {
            "default": ["backbone"],
            "help": "the encoder's features, what the method's projector makes of them, or both, one after the other",
        }
    },
)
_CLUSTERS = "clusters of k-means, one number or several; as many as classes if not given"
CLUSTERING = _of_checkpoint(
    {
        "clustering": (
            Setting("k", int, None, at_least(2), _CLUSTERS, several=True),
            *_compared("which images are clustered", "seed of k-means"),
        )
    }
)
_QUERIES = Bound(lambda value: 1 <= value <= MOST_QUERIES, f"must be from 1 to {MOST_QUERIES}")
_POINTS = "images that maps and left-out negatives are made of; at most all"
ANALYSE = _of_checkpoint(
    {
        "analysis": (
            *_compared("which images are analysed", "seed of k-means, of the sample and of the maps"),
            Setting("out", Path, None, None, "where the pictures go; `analysis` beside the checkpoint if not given"),
            Setting("points", int, 1000, at_least(FEWEST_TO_ANALYSE), _POINTS),
            Setting("queries", int, 4, _QUERIES, "queries that are shown with their left-out negatives"),
        ),
        "Weights & Biases": wandb("name of the run"),
    },
    {
        "no_labels": {
            "help": "use no labels; implied when there are no class folders, or when pretraining used none",
        }
    },
)


def settled(groups: Groups, given: Mapping[str, Any]) -> Settings:
    """Check settings by name, with that of the run, and fill in the defaults."""
    rows = [row for group in groups.values() for row in group]
    return settle([CHECKPOINT[0], *rows], given)


def check_frozen(settings: Settings) -> None:
    """Refuse mistakes in the settings of an evaluation that trains nothing and needs no labels."""
    check_checkpoint(settings)
    check_colours(settings)
    levels = vars(settings).get("levels") or ()
    if any(above >= below for below, above in pairwise(levels)):
        raise ArgumentError(f"`levels` {' '.join(map(str, levels))}: give fewer clusters at each level than before it")
    if "cache" in settings and settings.cache is not None:
        if settings.no_cache:
            raise ArgumentError("`no_cache` keeps nothing in `cache`; leave one of the two out")
        check_folder_to_write(settings.cache, "`cache`")
    if settings.dali:
        raise ArgumentError("`dali`: features are read with the default loader; leave it out")
    check_skipping(settings)


def check_sorting(settings: Settings) -> None:
    """Refuse sorting without a folder for it, and one that cannot be written or is that of the page."""
    if settings.sort_into is None:
        for name in ("sort_by", "sort_clusters"):
            if name in settings.typed:
                raise ArgumentError(f"`{name}` says how images are sorted: give `sort_into`, the folder for them, too")
        return
    check_folder_to_write(settings.sort_into, "`sort_into`")
    one, other = settings.sort_into.resolve(), settings.out.resolve()
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise ArgumentError(f"`sort_into` {settings.sort_into}: is the folder of `out`, or in it; give another one")


def check_features(settings: Settings) -> None:
    """Refuse mistakes in the settings of an evaluation that trains nothing."""
    check_labelled(settings)
    check_frozen(settings)


def check_clustering(settings: Settings) -> None:
    """Refuse a hierarchy that cannot be read, too."""
    check_label_hierarchy(settings)
    check_features(settings)


def check_analysis(settings: Settings) -> None:
    """Refuse a hierarchy that cannot be read, too; labels are not needed."""
    check_label_hierarchy(settings)
    check_frozen(settings)


def check_curating(settings: Settings) -> None:
    """Refuse a choice of images without embeddings or with two kinds, without a number, or with no place for it."""
    if (settings.embeddings is None) == (settings.pretrained_feature_extractor is None):
        raise ArgumentError("curate: give a run or weights, or `embeddings` FILE, one of the two")
    if settings.keep is None:
        raise ArgumentError("`keep` is missing: give how many images to keep, or which share of them")
    if settings.embeddings is None:
        check_frozen(settings)
    if settings.format == "csv":
        check_list_name(settings.out)
        check_folder_to_write(settings.out.parent)
    else:
        check_place(settings.out, settings.format)


def check_spreading(settings: Settings) -> None:
    """Refuse a place that cannot be written, or where the labels are."""
    check_frozen(settings)
    written = settings.out / "labels.csv" if settings.format == "csv" else settings.out
    for file in settings.labels:
        if file.resolve() == written.resolve():
            raise ArgumentError(f"`out` {settings.out}: would overwrite `labels` {file}; give another place")
    if settings.format == "csv":
        check_folder_to_write(settings.out)
    else:
        check_place(settings.out, settings.format)


def check_checked(settings: Settings) -> None:
    """Refuse a check without a folder, with two kinds of features, or with no place for its files."""
    if settings.data_dir is None and settings.pretrained_feature_extractor is not None:
        what = settings.pretrained_feature_extractor
        raise ArgumentError(f"{what}: no folder of images; give one, beside weights by `data_dir`")
    if settings.data_dir is None:
        raise ArgumentError("`data_dir` is missing: the folder of images to check")
    if settings.pretrained_feature_extractor is not None:
        check_frozen(settings)
        if settings.embeddings is not None:
            raise ArgumentError("`embeddings`: a run or weights make them; leave out one of the two")
    if settings.out is not None:
        check_folder_to_write(settings.out)


def check_fewlabels(settings: Settings) -> None:
    """Refuse a folder that cannot be written, too."""
    check_frozen(settings)
    if settings.out is None:
        raise ArgumentError("`out` is missing: the folder where the files go")
    check_folder_to_write(settings.out)
