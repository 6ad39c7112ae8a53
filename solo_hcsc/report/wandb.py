"""Pictures and numbers as a run of Weights & Biases."""

import io
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from solo_hcsc.report import figures
from solo_hcsc.cli.flags import Parser


def add_wandb_flags(parser: Parser) -> None:
    """solo-learn's flags, for commands that train nothing."""
    group = parser.add_argument_group("Weights & Biases")
    group.add_argument("--wandb", action="store_true")
    group.add_argument("--offline", action="store_true")
    group.add_argument("--project", default="solo-learn")
    group.add_argument("--entity")
    group.add_argument("--name", help="name of the run")


def log_pictures(pictures: Sequence[figures.Picture], numbers: Mapping[str, Any], args: Namespace, folder: Path) -> str:
    """Makes a run of its own with the pictures and, as its summary, the numbers; returns where it is.

    An offline run is written below `folder`.
    """
    import wandb
    from PIL import Image

    run = wandb.init(
        project=args.project,
        entity=args.entity,
        name=args.name,
        dir=folder,
        mode="offline" if args.offline else None,
        settings=wandb.Settings(silent=True, console="off"),
    )
    images = {picture.name: Image.open(io.BytesIO(figures.png(picture.draw))) for picture in pictures}
    run.log({picture.name: wandb.Image(images[picture.name], caption=picture.title) for picture in pictures})
    run.summary.update(dict(numbers))
    where = None if run.offline or run.disabled else run.url
    run.finish()
    wandb.teardown()  # else a later run of this process has these settings, whatever it asks for
    return where or str(Path(run.dir).parent)
