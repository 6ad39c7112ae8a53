"""Images named by a list file: labelled ones, as Places205 comes, a path and a class number in each line; and names."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from solo_hcsc.data.images import show
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import inside

_LINE = re.compile(r"(.*[^ \t,])[ \t,]+([^ \t,]+)")  # a path may have commas and spaces of its own: the last one counts
_LABEL = re.compile("[0-9]{1,5}")  # a classifier of more classes would not fit into memory


class ListedImages(Dataset):
    """Images as (image, class), in a list's order."""

    def __init__(self, file: Path, samples: list[tuple[str, int]], classes: list[str], transform: Callable) -> None:
        self.file = file
        self.samples = samples
        self.targets = [label for _, label in samples]
        self.classes = classes
        self.transform = transform

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        return show(path, self.transform), label

    def __len__(self) -> int:
        return len(self.samples)


def read_list(file: Path, root: Path, transform: Callable) -> ListedImages:
    """Read the images that a list names, by paths relative to `root`.

    Only the first image is looked for here, since looking for millions takes minutes; another one that is missing ends
    the run when it is read, as one that cannot be decoded does.
    """
    samples = [(os.path.join(root, path), label) for path, label in _read(file)]
    first = samples[0][0]
    if not os.path.isfile(first):
        raise UserError(
            f"{file}: its first image, {on_one_line(first)}, is not there; "
            "`data_dir` must be the folder that the list's paths start from"
        )
    classes = [str(number) for number in range(max(label for _, label in samples) + 1)]
    return ListedImages(file, samples, classes, transform)


def check_labels(train_set: ListedImages, val_set: ListedImages) -> None:
    """Refuse lists that no classifier can be trained and judged on."""
    if len(set(train_set.targets)) < 2:
        raise UserError(f"{train_set.file}: all its images are of one class; an evaluation needs at least two")
    highest = len(train_set.classes) - 1
    for path, label in val_set.samples:
        if label > highest:
            raise UserError(
                f"{val_set.file}: {on_one_line(path)} has label {label}, but the labels in {train_set.file} "
                f"end at {highest}; the two lists must number the same classes"
            )


def read_names(file: Path) -> list[str]:
    """Read the paths in a list as `curate` writes it, one in each line; refuse a list without any."""
    try:
        with file.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
            names = [name for line in lines if (name := line.rstrip("\n"))]
    except OSError as error:
        raise UserError(f"`train_list` {file}: cannot be read ({error.strerror})") from error
    if not names:
        raise UserError(f"`train_list` {file}: is empty; each line is to have the path of an image")
    return names


def _read(file: Path) -> list[tuple[str, int]]:
    """Read every line's path and label; pass over empty lines."""
    samples = []
    try:
        # Names that are no valid UTF-8 stay the bytes that they are on disk.
        with file.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, 1):
                if line := line.rstrip():
                    samples.append(_parse(line, f"{file}, line {number}"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); give the list of images") from error
    if not samples:
        raise UserError(f"{file}: the list is empty; each line needs a path and a label")
    return samples


def _parse(line: str, where: str) -> tuple[str, int]:
    found = _LINE.fullmatch(line)
    if not found:
        raise UserError(f"{where}: no label after {on_one_line(line)[:80]}; a path and a label are expected: a/b.jpg,0")
    path, label = found.groups()
    if not _LABEL.fullmatch(label):
        raise UserError(
            f"{where}: {on_one_line(label)[:80]} is not a label; a class number from 0 to 99999 is expected"
        )
    return inside(path, where), int(label)
