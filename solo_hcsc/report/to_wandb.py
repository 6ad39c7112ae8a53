"""Pictures and numbers as a run of Weights & Biases."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from solo_hcsc.report import curves, figures
from solo_hcsc.study.record import Comparison
from solo_hcsc.training.settings import Wandb


def log_comparison(comparison: Comparison, wandb: Wandb, folder: Path) -> str:
    """Log the learning curves as pictures and the table's numbers as a run; return where it is."""
    numbers: dict[str, float | None] = {}
    for row in comparison.rows:
        for name, measure in row.measures.items():
            numbers[f"{row.name}/{name}"] = measure.mean
            numbers[f"{row.name}/{name}_spread"] = measure.spread
    plots = [*curves.plots(comparison), *curves.judged_plots(comparison)]
    pictures = [plot.picture(legend=True) for plot in plots]
    return log_pictures(pictures, numbers, replace(wandb, name=wandb.name or comparison.title), folder)


def log_pictures(pictures: Sequence[figures.Picture], numbers: Mapping[str, Any], wandb: Wandb, folder: Path) -> str:
    """Log the pictures and, as the summary, the numbers as a run of their own; return where it is.

    An offline run is written below `folder`.
    """
    import wandb as client  # heavy, and used by few

    run = client.init(
        project=wandb.project,
        entity=wandb.entity,
        name=wandb.name,
        dir=folder,
        mode="offline" if wandb.offline else None,
        settings=client.Settings(silent=True, console="off"),
    )
    images = {picture.name: Image.open(io.BytesIO(figures.to_png(picture.draw))) for picture in pictures}
    run.log({picture.name: client.Image(images[picture.name], caption=picture.title) for picture in pictures})
    run.summary.update(dict(numbers))
    where = None if run.offline or run.disabled else run.url
    run.finish()
    client.teardown()  # else a later run of this process has these settings, whatever it asks for
    return where or str(Path(run.dir).parent)
