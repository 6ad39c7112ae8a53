"""Settings of `adapt`; needs no torch, so that a wrong one is refused before that is imported."""

from itertools import pairwise
from pathlib import Path

from solo_hcsc.data.settings import check_colours, check_skipping
from solo_hcsc.data.source import splits_in, stored_kind
from solo_hcsc.encoders.settings import CACHE, EMBEDDER, READER
from solo_hcsc.errors import ArgumentError
from solo_hcsc.files import check_folder_to_write, check_readable, check_replaceable
from solo_hcsc.settings import HIDDEN, NOT_NEGATIVE, ONE, POSITIVE, SHARE, Setting, Settings, at_least, below, changed

CHECKPOINT = "adapted.ckpt"  # in the folder that `adapt` writes
LOSSES = ("hcsc", "infonce", "swav", "none")
_LOSS = (
    "what the adapter is trained with: HCSC; InfoNCE, which is MoCo's loss and HCSC's without its tree; SwAV's; or "
    "nothing, which leaves the principal components"
)
_LABELS = "files with the labels of some images, by which held-out features are judged; class folders if not given"
_LEVELS = (
    "HCSC's prototypes at each level, the most first; one for ten images, and a third at each of two levels above, if "
    "not given"
)
_EPOCHS = "epochs to train; 40, and more of few images, if not given; it stops earlier if held-out images get no better"
_BALANCE = "draw images evenly over a tree of their features, from 0 (each as often) to 1 (evenly)"
_DEPTH = (
    "what is trained: an adapter on the frozen features, in seconds; or the encoder itself, all of it or the last N of "
    "its layers, which takes as long as pretraining"
)


def depth(text: str) -> int | str:
    """Parse `adapter`, `all`, or a number of layers."""
    if text in ("adapter", "all"):
        return text
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(f"{text!r} is neither adapter nor all nor a number of layers from 1")
    return int(text)


ADAPTER = (
    Setting("out", Path, None, None, "the folder of the run, in place of an earlier one of `adapt`"),
    Setting("depth", depth, "adapter", None, _DEPTH),
    Setting("loss", LOSSES, "hcsc", None, _LOSS),
    Setting("views", int, 6, at_least(2), "random views of each image, which are embedded once"),
    Setting("max_epochs", int, None, ONE, _EPOCHS),
    Setting("lr", float, None, POSITIVE, "learning rate of AdamW; 0.003 for an adapter, 0.0001 for an encoder"),
    Setting("seed", int, 5, below(2**31), "of the adapter, the order of images, and which are held out"),
    Setting("labels", Path, None, None, _LABELS, several=True),
    Setting("balance_strength", float, 0.0, SHARE, _BALANCE),
    Setting("num_prototypes", int, None, ONE, _LEVELS, several=True),
    Setting("proto_weight", float, None, NOT_NEGATIVE, "weight of HCSC's prototype loss"),
    Setting(
        "tree_builder",
        ("kmeans", "ward"),
        None,
        None,
        "what makes HCSC's levels: k-means of k-means, or Ward's linkage",
    ),
    Setting("temperature", float, None, POSITIVE, "temperature of the losses hcsc and infonce"),
)
_ANY = "a folder of images, or one with train/ and val/; with `dataset` or `train_dir`, what these are below"
ADAPT = changed(
    {"encoder": EMBEDDER, "data": (*READER, *CACHE), "adapter": ADAPTER},
    {
        "data_dir": {"help": f"{_ANY}; the run's own images if not given"},
        **{name: {"help": HIDDEN} for name in ("features", "dali", "dali_device")},
    },
)


def is_adapted(folder: Path) -> bool:
    """Return whether `adapt` wrote this folder."""
    return (folder / CHECKPOINT).is_file()


def with_splits(settings: Settings) -> Settings:
    """Take the images in train/ and val/ of a folder, if it has these and nobody named others."""
    alone = "data_dir" in settings.typed and not settings.typed & {"dataset", "train_dir", "val_dir"}
    if not alone or stored_kind(settings.data_dir) or not settings.data_dir.is_dir():
        return settings
    train_dir, val_dir = splits_in(settings.data_dir)
    if train_dir == Path():
        return settings
    return settings.but(dataset="custom", train_dir=train_dir, **({} if val_dir is None else {"val_dir": val_dir}))


def check_adapt(settings: Settings) -> None:
    """Refuse settings that do not go together, and places that cannot be written."""
    if settings.out is None:
        raise ArgumentError("`out` is missing: the folder of the run")
    if settings.features != "backbone":
        raise ArgumentError("`features` projector: the encoder's features are adapted; leave it out")
    if settings.dali:
        raise ArgumentError("`dali`: features are read with the default loader; leave it out")
    check_colours(settings)
    check_skipping(settings)
    levels = settings.num_prototypes or ()
    if any(above >= below for below, above in pairwise(levels)):
        raise ArgumentError(f"`num_prototypes` {' '.join(map(str, levels))}: give fewer at each level than before it")
    typed = settings.typed & {"num_prototypes", "proto_weight", "tree_builder"}
    if settings.loss != "hcsc" and typed:
        raise ArgumentError(f"`{min(typed)}` is of `loss` hcsc, and `loss` is {settings.loss}; leave one of them out")
    if settings.depth != "adapter" and settings.loss not in ("hcsc", "infonce"):
        told = f"with `depth` {settings.depth} take hcsc or infonce"
        raise ArgumentError(f"`loss` {settings.loss}: is for an adapter; {told}")
    if settings.depth != "adapter" and settings.balance_strength:
        raise ArgumentError(f"`balance_strength`: is for an adapter, not `depth` {settings.depth}; leave it out")
    if settings.cache is not None:
        if settings.no_cache:
            raise ArgumentError("`no_cache` keeps nothing in `cache`; leave one of the two out")
        check_folder_to_write(settings.cache, "`cache`")
    for file in settings.labels or ():
        check_readable(file, f"`labels` {file}", "give a CSV with columns path and label")
    check_folder_to_write(settings.out)
    check_replaceable(settings.out, is_adapted)
