"""Flags from rows of settings, and the parsers of commands that have many alike.

solo-learn's flags are rows of the rooms that use them, so that a help needs neither torch nor solo-learn;
`tests/cli/test_flags.py` compares each with solo-learn's own. Only a method's own flags come from its class.
"""

from pathlib import Path
from typing import Any

from solo_hcsc.cli.parser import FLAGS, Parser, in_flags
from solo_hcsc.data.settings import EVALUATED_SIZE, IMAGES, WORKERS, check_colours, check_skipping
from solo_hcsc.encoders.settings import FOREIGN
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.evaluation.protocols import CHECKPOINT, check_checkpoint, check_labelled
from solo_hcsc.hcsc.options import PRESETS, Options
from solo_hcsc.methods.settings import OWN
from solo_hcsc.settings import HIDDEN, ONE, POSITIVE, Setting, Settings, arguments, below, rows_of
from solo_hcsc.training import settings as training
from solo_hcsc.trees.names import WAYS

# A message may name these before there is a parser that has them.
FLAGS.update(row.name for row in (*OWN, *rows_of(Options, PRESETS)))


def add(group: Any, *rows: Setting) -> None:
    """Add a flag for each row."""
    for row in rows:
        group.add_argument(f"--{row.name}", bound=row.bound, **arguments(row))


def add_all(parser: Parser, groups: dict[str, tuple[Setting, ...]]) -> None:
    """Add the flags of several groups, by their titles; `base` is what solo-learn calls the one of its encoders."""
    for title, rows in groups.items():
        add(parser.add_argument_group(in_flags(title), also="base" if rows is training.SHARED else None), *rows)


def pretraining_parser(method: type | None) -> Parser:
    """Build the parser of all flags of pretraining, with those of a method's class."""
    parser = Parser(
        "pretrain",
        "Pretrains any solo-learn method. Add --method NAME to see that method's own flags.",
        "--data_dir FOLDER [--method NAME] [--dataset NAME] [flags]",
    )
    add_all(parser, training.pretraining())
    parser.change("method", metavar="NAME")
    if method is not None:
        method.add_model_specific_args(parser)  # type: ignore[attr-defined]
        parser.explain(OWN)
    return parser


def add_evaluated_images_flags(parser: Parser) -> Any:
    """Add the flags that choose an evaluation's images: as in pretraining, but for what is typed."""
    group = parser.add_argument_group("data")
    add(group, *IMAGES, EVALUATED_SIZE)
    parser.change("dataset", help="which data set; as in pretraining if not given, like its folders")
    return group


def add_wandb_flags(parser: Parser, name: str = "name of the run") -> None:
    add(parser.add_argument_group("Weights & Biases"), *training.wandb(name))


# ---- checkpoints to evaluate ----


def add_checkpoint_flags(parser: Parser) -> Any:
    """Add the flags that choose a checkpoint, for every evaluation."""
    group = parser.add_argument_group("encoder")
    add(group, *CHECKPOINT)
    return group


def add_feature_flags(parser: Parser, group: Any = None) -> None:
    """Add the flags that choose features, images and a device, for evaluations that train nothing.

    `group` has the checkpoint's flag already, if it is given.
    """
    group = group or add_checkpoint_flags(parser)
    features = "the encoder's features, or what the method's projector makes of them"
    add(
        group,
        *FOREIGN,
        Setting("features", ("backbone", "projector"), "backbone", None, features),
        Setting("accelerator", ("auto", "cpu", "gpu"), "auto", None, "where to compute features"),
    )
    group = add_evaluated_images_flags(parser)
    add(
        group,
        Setting("batch_size", int, 128, ONE, "images per forward pass"),
        WORKERS,
    )
    parser.hide("dali", "dali_device", "no_labels")


_EMBED = (
    "One row per image: its path, label, embedding and, of an HCSC run, clusters; as Parquet and NPY. Works on any "
    "folder of images, also one without labels and one that was not trained on."
)


def embed_parser(
    command: str = "embed", description: str = _EMBED, usage: str = "RUN [--data_dir FOLDER] --out FOLDER [flags]"
) -> Parser:
    """Build the parser of `embed` and of others that read any images; without the flags for what they write."""
    parser = Parser(command, description, usage)
    group = parser.add_argument_group("encoder")
    group.add_argument("pretrained_feature_extractor", type=Path, metavar="RUN", help=CHECKPOINT[0].help)
    add_feature_flags(parser, group)
    split = "which images, where the data set has both"
    add(parser.add_argument_group("data"), Setting("split", ("train", "val"), "train", None, split))
    images = "a folder of images, with class folders or without; with --dataset or --train_dir, what these are below"
    parser.change("data_dir", help=f"{images}; the run's own images if not given")
    parser.change("no_labels", help="no column of labels; implied when there are no class folders")
    return parser


def add_way_flags(group: Any) -> None:
    told = "which image of a cluster: the most typical, the nearest to its centre; or farthest-first, without a tree"
    tree = "whose clusters: the run's own tree, or one made of the features; auto: the run's own, if an HCSC run"
    add(
        group,
        Setting("way", WAYS, "typical", None, told),
        Setting("tree", ("auto", "run", "features"), "auto", None, f"{tree} started from random weights"),
    )


def _path(images: str) -> dict[str, Any]:
    """Return the settings of a flag for a folder that is not below --data_dir."""
    return {"type": lambda text: Path(text).absolute(), "help": f"{images} images, wherever they are"}


def data_format(text: str) -> str:
    """Accept solo-learn's name for folders of images."""
    if text != "image_folder":
        raise ArgumentError(f"{text}: images are read from folders (image_folder)")
    return text


def knn_parser(command: str, description: str) -> Parser:
    """Build the parser of a command that classifies by a frozen encoder's nearest features."""
    parser = Parser(command, description, "--pretrained_feature_extractor PATH [flags]")
    add_feature_flags(parser)
    add(
        parser.add_argument_group("KNN"),
        Setting("k", int, [10, 20, 100, 200], ONE, "neighbours to try; the best is reported"),
        Setting("temperature", float, [0.07], POSITIVE, "of the votes' weights (cosine); of several, each is tried"),
        Setting(
            "distance_function",
            ("cosine", "euclidean"),
            ["cosine"],
            None,
            "between features; of several, each is tried",
        ),
    )
    parser.add_argument_group("data").add_argument("--train_data_path", dest="train_dir", **_path("training"))
    parser.add_argument_group("data").add_argument("--val_data_path", dest="val_dir", **_path("validation"))
    add(parser.add_argument_group("data"), Setting("data_format", data_format, "image_folder", None, HIDDEN))
    told = "the encoder's features, what the method's projector makes of them, or both, one after the other"
    parser.change("features", nargs="+", default=["backbone"], help=told)
    return parser


def add_split_flags(group: Any, split: str, seed: str) -> None:
    """Add the flags of commands that compare clusters with labels; `split` and `seed` are help texts."""
    told = "a text file of lines `child: parent`, to compare with groups of classes too; cifar10 and digits have one"
    add(
        group,
        Setting("split", ("train", "val"), "train", None, split),
        Setting("seed", int, 5, below(2**31), seed),
        Setting("label_hierarchy", Path, None, None, told),
    )


def check_features(flags: Settings) -> None:
    """Refuse mistakes in the flags of an evaluation that trains nothing."""
    check_labelled(flags)
    check_frozen(flags)


def check_frozen(flags: Settings) -> None:
    """Refuse mistakes in the flags of an evaluation that trains nothing and needs no labels."""
    check_checkpoint(flags)
    check_colours(flags)
    if flags.dali:
        raise UserError("--dali: features are read with the default loader; leave it out")
    check_skipping(flags)
