"""Label hierarchies: small text files that say which group a class belongs to, and which one that group."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from solo_hcsc.errors import UserError, on_one_line

SHIPPED = Path(__file__).parent / "label_hierarchies"


@dataclass(frozen=True)
class LabelLevel:
    """One level of a label hierarchy over `C` classes."""

    names: tuple[str, ...]  # of its groups, sorted; at level 0 the classes in their own order
    groups: np.ndarray  # (C,) each class's group, an index into `names`


def shipped(dataset: str) -> Path | None:
    """Return the file that comes with the package for a data set."""
    file = SHIPPED / f"{dataset}.txt"
    return file if file.is_file() else None


def read(file: Path) -> dict[str, str]:
    """Read parents by child from lines `child: parent`; `#` starts a comment at a line's beginning or after a space."""
    parents: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(_text(file).splitlines(), start=1):
        line = re.split(r"(?:^|\s)#", line)[0].strip()
        if not line:
            continue
        child, colon, parent = (part.strip() for part in line.partition(":"))
        where = f"{file}, line {number}"
        if not (colon and child and parent):
            raise UserError(f"{where}: {on_one_line(line)!r} is not `child: parent`")
        if parents.get(child, parent) != parent:
            raise UserError(
                f"{where}: {child!r} has two parents, {parents[child]!r} (line {lines[child]}) and {parent!r}; keep one"
            )
        parents[child], lines[child] = parent, number
        above = parent
        while above != child and above in parents:
            above = parents[above]
        if above == child:
            raise UserError(f"{where}: {child!r} would be above itself, by way of {parent!r}; break this cycle")
    return parents


def levels(
    parents: Mapping[str, str], classes: Sequence[str], file: Path | str = "label hierarchy"
) -> list[LabelLevel]:
    """Return the classes (level 0), their groups, and so on up to those that have no parent."""
    unknown = sorted(set(classes) - parents.keys() - set(parents.values()))
    if unknown:
        others = f" and {len(unknown) - 1} other classes" if len(unknown) > 1 else ""
        raise UserError(f"{file}: no line for class {unknown[0]!r}{others}; add a line `{unknown[0]}: parent`")
    paths = []
    for name in classes:
        path = [name]
        while path[-1] in parents:
            path.append(parents[path[-1]])
        paths.append(path[::-1])
    return _levels(classes, paths)


def folder_levels(classes: Sequence[str]) -> list[LabelLevel]:
    """Return the levels of classes called by their folders, as in `Fruit/Apple/Royal-Gala`; none of plain names."""
    folders = [name.split("/") for name in classes]
    paths = [["/".join(parts[: depth + 1]) for depth in range(len(parts))] for parts in folders]
    return _levels(classes, paths) if any(len(parts) > 1 for parts in folders) else []


def _levels(classes: Sequence[str], paths: Sequence[Sequence[str]]) -> list[LabelLevel]:
    """Return the levels of each class's path, the topmost group first.

    Levels are counted from the top, where all paths start: a class with fewer groups above it stands for itself at the
    levels below its first group, not beside the groups of others.
    """
    found = [LabelLevel(tuple(classes), np.arange(len(classes)))]
    for depth in range(max(map(len, paths)) - 1, 0, -1):
        names, groups = np.unique([path[:depth][-1] for path in paths], return_inverse=True)
        found.append(LabelLevel(tuple(map(str, names)), groups))
    return found


def find_levels(file: Path | None, dataset: str) -> tuple[Path | None, Callable[[Sequence[str]], list[LabelLevel]]]:
    """Find the file given, or the data set's own, and make a function from classes to levels; else the folders'."""
    file = file or shipped(dataset)
    if file is None:
        return None, folder_levels
    parents, found = read(file), file
    return file, lambda classes: levels(parents, classes, found)


def labels_by_level(labels: Sequence[int], found: Sequence[LabelLevel]) -> np.ndarray:
    """Return each image's group (n, L) at the levels that tell images apart, the classes first; groups count from 0.

    Args:
        labels: (n,) the images' classes.
        found: the levels of a label hierarchy; without any, the classes are the only one.

    Example:
        >>> labels_by_level([3, 5, 5], [LabelLevel(("a",) * 6, np.arange(6)), LabelLevel(("x",), np.zeros(6, int))])
        array([[0],
               [1],
               [1]])
    """
    classes = np.asarray(labels)
    kept: list[np.ndarray] = []
    for groups in [level.groups[classes] for level in found] or [classes]:
        names, numbers = np.unique(groups, return_inverse=True)
        if 2 <= len(names) < (kept[-1].max() + 1 if kept else len(classes) + 1):
            kept.append(numbers)
    return np.stack(kept, axis=1)


def _text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"`label_hierarchy` {file}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UserError(f"`label_hierarchy` {file}: not a text file; lines `child: parent` are expected")
    return text
