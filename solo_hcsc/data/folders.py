"""Folders of images as data sets, parts of them, and what is known of a data set without reading an image."""

import copy
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, Subset
from torchvision.datasets import ImageFolder

from solo_hcsc.data.images import Listing, Skipped, list_images, show
from solo_hcsc.data.lists import read_names
from solo_hcsc.data.source import ClassLevel, ImageSource, check_classes
from solo_hcsc.data.stored import StoredImages
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.progress import say

_KINDS = ".jpg, .png, .gif, .webp and what else Pillow decodes"


class LabelledImages(ImageFolder):
    """Folders of images as (image, class), where an image's class is one of the folders that it is in.

    `class_level`: which one, from 1, the first below `root`; or "leaf", the last. Folders may be of different depth: an
    image that lies higher has the last folder that there is. A class is called by its path below `root`.
    """

    def __init__(self, root: Path, transform: Callable, class_level: ClassLevel = None) -> None:
        self.class_level = class_level
        super().__init__(root, transform)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        return show(path, self.transform), label

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        first = check_classes(directory)
        listings = {name: list_images(os.path.join(directory, name)) for name in first}
        empty = [name for name, listing in listings.items() if not listing.images]
        if empty:
            others = f" and {len(empty) - 1} others have" if len(empty) > 1 else " has"
            raise UserError(
                f"{directory}: class folder {empty[0]!r}{others} no images ({_KINDS}); add some, or remove the folder"
            )
        images = [path for listing in listings.values() for path in listing.images]
        loose = list_images(directory, below=False)
        kinds = sum((listing.others for listing in listings.values()), loose.others)
        in_no_class = f"{len(loose.images)} images that are in no class folder are left out" if loose.images else ""
        self.left_out = "; ".join(filter(None, (in_no_class, Listing(images, kinds).left_out())))
        self._found = [(path, class_of(path, directory, self.class_level)) for path in images]
        names = sorted({name for _, name in self._found})
        return names, {name: number for number, name in enumerate(names)}

    def make_dataset(self, directory: str | Path, class_to_idx: dict[str, int], **_: Any) -> list[tuple[str, int]]:
        return [(path, class_to_idx[name]) for path, name in self._found]


def class_of(path: str, root: str | Path, class_level: ClassLevel = None) -> str:
    """Return an image's class, which is a folder below `root`; empty for an image in `root` itself."""
    folders = path[len(os.path.join(root, "")) :].split(os.sep)[:-1]
    return "/".join(folders if class_level == "leaf" else folders[: int(class_level or 1)])


def tell_listing(dataset: "LabelledImages | ImagesWithoutLabels") -> None:
    """Say which files are no images, and which folders are the classes where others with images lie below them."""
    if dataset.left_out:
        say(f"{on_one_line(dataset.root)}: {dataset.left_out}")
    if isinstance(dataset, LabelledImages) and dataset.class_level is None:
        _tell_nested(dataset)


def _tell_nested(dataset: LabelledImages) -> None:
    folders, count = {os.path.dirname(path) for path, _ in dataset.samples}, len(dataset.classes)
    if len(folders) <= count:
        return
    some = ", ".join(map(on_one_line, dataset.classes[:3])) + (", ..." if count > 3 else "")
    say(
        f"{count} class{'es' * (count > 1)}: {some}; below {'them' if count > 1 else 'it'} {len(folders)} folders with "
        "images: `class_level` 2 or leaf takes the second or the last folder for the class"
    )


def short_names(classes: Sequence[str]) -> list[str]:
    """Return classes by their last folder's name, or by their whole path where two have the same."""
    last = [name.rpartition("/")[2] for name in classes]
    return [short if last.count(short) == 1 else name for short, name in zip(last, classes, strict=True)]


class ImagesWithoutLabels(Dataset):
    """All images below a folder, sorted by name, as (index, image, -1)."""

    def __init__(self, root: Path, transform: Callable) -> None:
        self.root = root
        self.transform = transform
        listing = list_images(root)
        self.images, self.left_out = listing.images, listing.left_out()
        if not self.images:
            raise UserError(f"{root}: no images there ({_KINDS})")

    def __getitem__(self, index: int) -> tuple[int, Any, int]:
        return index, show(self.images[index], self.transform), -1

    def __len__(self) -> int:
        return len(self.images)


class BareImages(ImagesWithoutLabels):
    """The same as (image, -1), which is what an evaluation reads."""

    classes: Sequence[str] = ()

    @classmethod
    def listed(cls, files: Sequence[str], transform: Callable) -> "BareImages":
        """Take the images of a list of files instead of those in a folder."""
        made = cls.__new__(cls)
        made.root, made.images, made.left_out, made.transform = Path(), [*files], "", transform
        return made

    def __getitem__(self, index: int) -> tuple[Any, int]:  # type: ignore[override]
        return super().__getitem__(index)[1:]


class Part(Subset):
    """A part of an indexed data set, whose own indexes count from 0 without gaps."""

    def __getitem__(self, index: Any) -> Any:
        _, *rest = self.dataset[self.indices[index]]
        return (index, *rest)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def fraction(dataset: Dataset, share: float, seed: int) -> Dataset:
    """Choose a seeded part of the data set, with every class in its proportion where labels are known."""
    from sklearn.model_selection import train_test_split  # takes a while to import, and most runs do without

    labels = labels_of(dataset) or None
    size = len(dataset)  # type: ignore[arg-type]
    try:
        kept, _ = train_test_split(range(size), train_size=share, stratify=labels, random_state=seed)
    except ValueError as error:
        raise UserError(f"`data_fraction` {share}: too small for {size} images: {error}") from error
    return Part(dataset, sorted(kept))


class CentreCrops(Dataset):
    """The images of an indexed data set, or of a part of one, without labels; lists no file again."""

    def __init__(self, dataset: Dataset, transform: Callable) -> None:
        self.indices = dataset.indices if isinstance(dataset, Part) else None
        self.images = with_transform(whole(dataset), transform)

    def __getitem__(self, index: int) -> Any:
        return self.images[index if self.indices is None else self.indices[index]][1]

    def __len__(self) -> int:
        return len(self.images if self.indices is None else self.indices)  # type: ignore[arg-type]


def with_transform(dataset: Dataset, transform: Callable) -> Dataset:
    """Return the same images with another transform."""
    other: Any = copy.copy(dataset)
    if isinstance(dataset, Subset):
        other.dataset = with_transform(dataset.dataset, transform)
    else:
        other.transform = transform
    return other


def without(dataset: Any, skipped: Sequence[Skipped]) -> Any:
    """Return a data set of image files without those that could not be read."""
    gone = {one.index for one in skipped}
    return only(dataset, [index for index in range(len(dataset)) if index not in gone]) if gone else dataset


def only(dataset: Any, indexes: Sequence[int]) -> Any:
    """Return a data set of image files with some of its images, in the order of their indexes."""
    if isinstance(dataset, StoredImages):
        return dataset.only(indexes)
    left = copy.copy(dataset)
    if isinstance(dataset, ImagesWithoutLabels):
        left.images = [dataset.images[index] for index in indexes]
    else:
        left.samples = [dataset.samples[index] for index in indexes]
        left.targets = [label for _, label in left.samples]
    return left


def listed(dataset: Any, source: ImageSource, split: str = "train") -> Any:
    """Return the images of a folder that a list names, in the folder's order; all where there is no list.

    A line of the list is a path below the folder of training images, or below `data_dir`, or a whole path. Classes keep
    their numbers, also those of which no image is in the list.
    """
    if source.train_list is None or split != "train":
        return dataset
    missing = dict.fromkeys(map(on_one_line, read_names(source.train_list)))
    wanted, found = {*missing}, []
    roots = [os.path.join(folder, "") for folder in dict.fromkeys((source.folder("train"), source.data_dir))]
    for index, path in enumerate(files_and_labels(dataset)[0]):
        names = {on_one_line(path.removeprefix(root)) for root in roots} | {on_one_line(os.path.abspath(path))}
        if own := names & wanted:
            found.append(index)
            for name in own:
                missing.pop(name, None)
    if missing:
        raise UserError(
            f"`train_list` {source.train_list}: {len(missing)} of its {len(wanted)} images are not in "
            f"{source.folder('train')}, such as {next(iter(missing))}; give the folder that the list was made of"
        )
    say(f"`train_list` {source.train_list}: {len(found)} of {len(dataset)} images")
    return only(dataset, found)


def whole(dataset: Dataset) -> Dataset:
    """Return the data set that this is, or is a part of."""
    return dataset.dataset if isinstance(dataset, Part) else dataset


def with_classes_of(train_set: Dataset, val_set: Dataset | None) -> Dataset | None:
    """Give validation images the numbers that their classes have in training, also where some classes are missing."""
    train_set = whole(train_set)
    if not isinstance(train_set, ImageFolder | StoredImages) or not isinstance(val_set, ImageFolder | StoredImages):
        return val_set
    unknown = sorted(set(val_set.classes) - set(train_set.classes))
    if unknown:
        raise UserError(
            f"`val_dir`: class {unknown[0]!r} is not in `train_dir`; the two need the same class folders (or another "
            "`class_level`)"
        )
    known = {name: number for number, name in enumerate(train_set.classes)}
    numbers = [known[name] for name in val_set.classes]
    if isinstance(val_set, StoredImages):
        return val_set.with_classes(numbers)
    renumbered = copy.copy(val_set)
    renumbered.samples = [(path, numbers[label]) for path, label in val_set.samples]
    renumbered.targets = [label for _, label in renumbered.samples]
    return renumbered


def classes_of(dataset: Dataset) -> int:
    """Count the classes of a labelled data set, also those without images."""
    return len(dataset.classes)  # type: ignore[attr-defined]


def labels_of(dataset: Dataset) -> list[int]:
    """Return every image's label without reading an image; torchvision's STL-10 has another name for them."""
    return [int(label) for label in getattr(dataset, "targets", getattr(dataset, "labels", ()))]


def files_and_labels(dataset: Dataset) -> tuple[list[str], list[int]]:
    """Return the files of a folder of images, or the names of stored ones, in the data set's order, and their labels.

    The label is -1 for none.
    """
    if isinstance(dataset, Part):
        files, labels = files_and_labels(dataset.dataset)
        return [files[i] for i in dataset.indices], [labels[i] for i in dataset.indices]
    if isinstance(dataset, ImagesWithoutLabels):
        return dataset.images, [-1] * len(dataset)
    if isinstance(dataset, StoredImages):
        return dataset.names(), labels_of(dataset) or [-1] * len(dataset)
    samples = dataset.samples  # type: ignore[attr-defined]
    return [file for file, _ in samples], [label for _, label in samples]


MOST_SIZES = 100_000  # files whose sizes are looked at; more would take minutes on a network's disk


def fingerprint(dataset: Dataset, root: Path) -> str:
    """Hash the files' names below `root`, their classes and sizes, or what is stored: other images, another hash."""
    images = whole(dataset)
    if isinstance(images, StoredImages):
        return images.fingerprint
    files, labels = files_and_labels(images)
    digest = sha256()
    for number, (file, label) in enumerate(zip(files, labels, strict=True)):
        looked_at = number % max(1, len(files) // MOST_SIZES) == 0
        size = os.stat(file).st_size if looked_at and os.path.exists(file) else -1
        digest.update(f"{os.path.relpath(file, root)}\0{label}\0{size}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def refuse_single_class(dataset: Dataset, flag: str = "`train_dir`") -> None:
    """Refuse images of one class, on which an evaluation is right whatever the encoder does."""
    classes = getattr(dataset, "classes", None)
    if classes is not None and len(classes) < 2:
        raise UserError(
            f"{flag}: only one class ({classes[0]!r}); an evaluation needs at least two. `class_level` takes folders "
            "below it for classes, and analyse works with `no_labels`"
        )
