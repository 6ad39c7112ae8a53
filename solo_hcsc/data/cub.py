"""CUB-200-2011 (Caltech-UCSD Birds), read from the lists that come with it."""

from collections.abc import Callable
from pathlib import Path

from solo_hcsc.data.lists import ListedImages
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.files import inside

FOLDER = "CUB_200_2011"  # the name under which the archive unpacks


def find_folder(data_dir: Path) -> Path:
    """Find the folder with images.txt: `data_dir` itself, or the archive's folder in it."""
    for folder in (data_dir, data_dir / FOLDER):
        if (folder / "images.txt").is_file():
            return folder
    raise UserError(f"`data_dir` {data_dir}: no images.txt there nor in {FOLDER}; give the folder of CUB-200-2011")


def read_parts(folder: Path, transform: Callable) -> tuple[ListedImages, ListedImages]:
    """Read the training and the test images, as train_test_split.txt has them."""
    names = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")
    classes, images, labels, splits = (_read(folder / name) for name in names)
    numbers = {key: number for number, key in enumerate(classes)}
    for key, (_, where) in images.items():
        for name, listed in (("image_class_labels.txt", labels), ("train_test_split.txt", splits)):
            if key not in listed:
                raise UserError(f"{where}: image {key} is not in {name}; restore the lists")
    for listed in (labels, splits):
        for key, (_, where) in listed.items():
            if key not in images:
                raise UserError(f"{where}: image {key} is not in images.txt; restore the lists")

    parts: dict[str, list[tuple[str, int]]] = {"1": [], "0": []}
    for key, (image, where) in images.items():
        (label, label_where), (split, split_where) = labels[key], splits[key]
        if label not in numbers:
            raise UserError(f"{label_where}: class {on_one_line(label)} is not in classes.txt; restore the lists")
        if split not in parts:
            raise UserError(f"{split_where}: {on_one_line(split)!r} is neither 1 (training) nor 0 (test)")
        path = folder / "images" / inside(image, where)
        if not path.is_file():
            raise UserError(f"{where}: there is no file {on_one_line(path)}; unpack the archive again")
        parts[split].append((str(path), numbers[label]))
    for split, what in (("1", "training"), ("0", "test")):
        if not parts[split]:
            raise UserError(f"{folder / 'train_test_split.txt'}: no {what} images ({split}) in it")
    class_names = [name for name, _ in classes.values()]
    train, test = (ListedImages(folder / "images.txt", parts[split], class_names, transform) for split in "10")
    return train, test


def _read(file: Path) -> dict[str, tuple[str, str]]:
    """Read lines `number value` of a list as number: (value, file and line), in the file's order."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}); it is one of CUB-200-2011's lists") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not a text file; restore CUB-200-2011's list") from error
    found: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        key, _, value = line.strip().partition(" ")
        where = f"{file}, line {number}"
        if not (key.isdecimal() and value.strip()):
            raise UserError(f"{where}: {on_one_line(line)!r} is not a number and a value; restore the list")
        if key in found:
            raise UserError(f"{where}: number {key} appears twice; restore the list")
        found[key] = (value.strip(), where)
    return found
