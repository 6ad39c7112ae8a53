"""Which images keep their labels where an evaluation has few: a share of each class, or those that a file names."""

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from torch.utils.data import Dataset

from solo_hcsc.data.folders import files_and_labels
from solo_hcsc.errors import UserError, on_one_line


def stratified_sample(labels: Sequence[int], share: float, seed: int) -> list[int]:
    """Indexes of the same share of every class, at least one of each."""
    of_class = defaultdict(list)
    for index, label in enumerate(labels):
        of_class[label].append(index)
    generator = random.Random(seed)
    chosen: list[int] = []
    for label in sorted(of_class):
        chosen += generator.sample(of_class[label], max(1, round(share * len(of_class[label]))))
    return sorted(chosen)


def listed_images(file: Path, dataset: Dataset) -> list[int]:
    """Indexes of the images that a file names: one in each line, by its name or the end of its path.

    The usual lists of ImageNet's 1 % and 10 % have names (`n02389026_4329.JPEG`); a label after the name is not read.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UserError(f"`label_list` {file}: cannot be read ({reason})") from error
    files = files_and_labels(dataset)[0]
    ends = defaultdict(list)  # images by the end of their path: `x.png`, `class/x.png`, `train/class/x.png`, ...
    depth = 1 + max(line.count("/") for line in [*lines, ""])
    for index, path in enumerate(files):
        parts = Path(path).parts
        for length in range(1, min(depth, len(parts)) + 1):
            ends["/".join(parts[-length:])].append(index)
    chosen = set()
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line:
            continue
        found = next((ends[name] for name in (line, line.rpartition(" ")[0].strip()) if name in ends), [])
        where = f"`label_list` {file}, line {number}: {line!r}"
        if not found:
            raise UserError(f"{where} is not among the training images")
        if len(found) > 1:
            both = " and ".join(on_one_line(files[index]) for index in found[:2])
            raise UserError(f"{where} may be {both}; give as much of the path as tells them apart")
        chosen.add(found[0])
    if not chosen:
        raise UserError(f"`label_list` {file}: it names no image")
    return sorted(chosen)
