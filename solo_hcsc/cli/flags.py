"""Flags from rows of settings, and the parsers of commands that have many alike.

solo-learn's flags are rows of the rooms that use them, so that a help needs neither torch nor solo-learn;
`tests/cli/test_flags.py` compares each with solo-learn's own. Only a method's own flags come from its class.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from solo_hcsc.cli.parser import FLAGS, Parser, in_flags
from solo_hcsc.evaluation.frozen_settings import EMBED, KNN
from solo_hcsc.hcsc.options import PRESETS, Options
from solo_hcsc.methods.settings import OWN
from solo_hcsc.runs.asked import is_images, resolve
from solo_hcsc.settings import Groups, Setting, Settings, arguments, rows_of
from solo_hcsc.training import settings as training

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


def add_wandb_flags(parser: Parser) -> None:
    add(parser.add_argument_group("Weights & Biases"), *training.wandb("name of the run"))


_EMBED = (
    "One row per image: its path, label, embedding and, of an HCSC run, clusters; as Parquet and NPY. Works on any "
    "folder of images, also one without labels and one that was not trained on."
)


class _AnyImages(Parser):
    """A parser of commands that take a run, weights, a saved tree or a folder of images."""

    needs_features = True  # else weights are taken only where they are named

    def parse(self, argv: Iterable[str]) -> Settings:
        flags = super().parse(argv)
        what = flags.pretrained_feature_extractor
        if not self.needs_features and "data_dir" not in flags.typed and what is not None and is_images(what):
            flags, what = flags.but(data_dir=what, pretrained_feature_extractor=None), None
        if not self.needs_features and what is None:
            return flags
        named = flags.pretrained_feature_extractor or flags.typed & {"data_dir", "dataset", "train_dir"}
        # `curate` may have embeddings instead, and says so
        return flags if "embeddings" in flags and (flags.embeddings or not named) else resolve(flags)


_WHAT = (
    "a run or a checkpoint of any method; weights of torchvision or timm; timm/NAME, which timm downloads; a folder "
    "that the command tree wrote; or a folder of images. For a folder of images, or with --data_dir alone, the best "
    "weights on this machine are taken"
)


def embed_parser(
    command: str = "embed",
    description: str = _EMBED,
    usage: str = "[WHAT] [--data_dir FOLDER] --out FOLDER [flags]",
    groups: Groups = EMBED,
    needs_features: bool = True,
) -> Parser:
    """Build the parser of `embed` and of others that read any images; without the flags for what they write."""
    parser = _AnyImages(command, description, usage)
    parser.needs_features = needs_features
    group = parser.add_argument_group("encoder")
    group.add_argument("pretrained_feature_extractor", type=Path, nargs="?", metavar="WHAT", help=_WHAT)
    add_all(parser, groups)
    return parser


def _path(images: str) -> dict[str, Any]:
    """Return the settings of a flag for a folder that is not below --data_dir."""
    return {"type": lambda text: Path(text).absolute(), "help": f"{images} images, wherever they are"}


def knn_parser(command: str, description: str) -> Parser:
    """Build the parser of a command that classifies by a frozen encoder's nearest features."""
    parser = Parser(command, description, "--pretrained_feature_extractor PATH [flags]")
    add_all(parser, KNN)
    parser.add_argument_group("data").add_argument("--train_data_path", dest="train_dir", **_path("training"))
    parser.add_argument_group("data").add_argument("--val_data_path", dest="val_dir", **_path("validation"))
    return parser
