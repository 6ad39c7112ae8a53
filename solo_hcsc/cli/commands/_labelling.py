"""What the commands about few labels share: their flags, features, label files and the command that comes next."""

import csv
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from solo_hcsc.data.cells import from_cell
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.settings import Settings, take

if TYPE_CHECKING:
    import numpy as np

    from solo_hcsc.evaluation.embedding import Embedder


def features_of(
    embedder: "Embedder", flags: Settings, tree: bool = False
) -> "tuple[Embedder, np.ndarray, np.ndarray | None]":
    """Return the images that could be read, their features (N, D), and, if asked for, their clusters (L, N)."""
    from dataclasses import replace

    import numpy as np

    from solo_hcsc.data.loaders import Loading

    encoder = embedder.frozen.encoder
    print(
        f"{embedder.images} images, {flags.features} features of {encoder.name}, {embedder.frozen.device}", flush=True
    )
    parts: list[np.ndarray] = []
    walked = embedder if tree else replace(embedder, made=replace(embedder.made, tree=None))
    walked, places = walked.run_through(take(Loading, flags), parts.append)
    return walked, np.concatenate(parts), None if places is None else places.clusters.T


def picks_from_run(embedder: "Embedder", flags: Settings) -> bool:
    """Return whether `pick` walks the run's own tree rather than one made of the features; say so."""
    trained = embedder.frozen.encoder.trained_with
    if flags.tree == "run" and embedder.tree is None:
        raise UserError(f"--tree run: {embedder.frozen.encoder.checkpoint} carries no tree; leave it out")
    own = embedder.tree is not None and flags.way != "farthest"
    own = own and (flags.tree == "run" or (flags.tree == "auto" and not trained.get("init_weights")))
    if flags.way != "farthest":
        print("picking from the run's own tree" if own else "picking from a tree built from the features")
    return own


def read_labels(flag: str, files: Sequence[Path], paths: Sequence[str]) -> dict[int, str]:
    """Return the labels of images, by number, that CSV files have in their columns `path` and `label`; "" for none."""
    numbers = {path: number for number, path in enumerate(paths)}
    found: dict[int, str] = {}
    for file in files:
        for path, label in _rows(flag, file):
            if path not in numbers:
                raise UserError(
                    f"{flag} {file}: {on_one_line(path)} is none of the {len(paths)} images; give the images of the "
                    "command that wrote the file"
                )
            before = found.get(numbers[path])
            if before and label and before != label:
                raise UserError(f"{flag} {file}: {on_one_line(path)} is {before!r} and {label!r}; keep one")
            found[numbers[path]] = label or before or ""
    return found


def check_labels(flag: str, files: Sequence[Path]) -> None:
    """Refuse files that `read_labels` could not read."""
    for file in files:
        _rows(flag, file)


def of_readable(embedder: "Embedder", labels: dict[int, str]) -> dict[int, str]:
    """Renumber labels by the images that are left once those that could not be read are left out."""
    gone = {one.index for one in embedder.skipped}
    kept = [number for number in range(embedder.images + len(gone)) if number not in gone]
    return {number: labels[before] for number, before in enumerate(kept) if before in labels}


def _rows(flag: str, file: Path) -> list[tuple[str, str]]:
    """Return the path and the label of each row."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            missing = {"path", "label"} - {*(reader.fieldnames or ())}
            if missing:
                raise UserError(f"{flag} {file}: no column {min(missing)}; it takes a CSV with columns path and label")
            return [(from_cell(row["path"] or ""), from_cell(row["label"] or "").strip()) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a CSV file"
        raise UserError(f"{flag} {file}: cannot be read ({reason}); give a file as `pick` writes it") from error


def next_command(command: str, flags: Settings, but: Sequence[str], *more: object) -> str:
    """Return a command line with the same run and images, without the flags `but`, and with `more`."""
    words = [str(flags.pretrained_feature_extractor)]
    for name in sorted(flags.typed - {*but, "pretrained_feature_extractor"}):
        value = getattr(flags, name)
        values = [] if value is True else value if isinstance(value, list | tuple) else [value]
        words += [f"--{name}", *map(str, values)]
    return f"solo-hcsc {command} {shlex.join([*words, *map(str, more)])}"
