"""Data sets and loaders: the framework's own, with what its functions leave open."""

import copy
import os
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from sklearn.model_selection import train_test_split
from solo.utils import classification_dataloader, pretrain_dataloader
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

from solo_hcsc.data.digits import lay_out_digits
from solo_hcsc.cli.errors import UserError
from solo_hcsc.data.images import SkipUnreadable, class_folders, list_images, read_image
from solo_hcsc.data.loaders import EachOnce, repeatable_loader

DATASETS = ("cifar10", "cifar100", "stl10", "imagenet", "imagenet100", "custom", "digits")
FOLDERS = ("imagenet", "imagenet100", "custom", "digits")
FILES = (*FOLDERS, "places205")  # what `files_and_labels` can name: DALI reads it
_OWN_SIZE = ("custom", "digits", "voc07", "places205", "cub")  # follow --crop_size, --mean and --std throughout


def framework_name(dataset: str) -> str:
    """What solo-learn calls the data set: digits is a folder of images like any other."""
    return "custom" if dataset == "digits" else dataset


def framework_settings(args: Namespace) -> dict[str, Any]:
    """The arguments as solo-learn's classes understand them."""
    return vars(args) | {"dataset": framework_name(args.dataset)}


def resolve_folders(args: Namespace, needs_val: bool) -> None:
    """Fills `args.train_dir` and `args.val_dir`, lays out digits, and checks that the folders are there."""
    if args.dataset == "digits":
        if args.train_dir or args.val_dir:
            raise UserError("--dataset digits brings its own folders; leave out --train_dir and --val_dir")
        try:
            lay_out_digits(args.data_dir)
        except OSError as error:
            raise UserError(f"--data_dir {args.data_dir}: cannot write digits there: {error.strerror}") from error
        args.train_dir, args.val_dir = Path("digits/train"), Path("digits/val")
    if args.dataset == "cifar10" and (args.data_dir / "cifar10" / "train").is_dir():
        args.train_dir, args.val_dir = Path("cifar10/train"), Path("cifar10/test")  # solo_hcsc.cifar10 made them
    if not in_folders(args):
        return
    if args.train_dir is None:
        if args.dataset == "custom":
            raise UserError("--dataset custom needs --train_dir, a folder below --data_dir")
        args.train_dir = Path(args.dataset, "train")
    if args.val_dir is None and needs_val:
        if args.dataset == "custom":
            raise UserError("--dataset custom needs --val_dir here, a folder below --data_dir")
        args.val_dir = Path(args.dataset, "val")
    for flag, folder in (("--train_dir", args.train_dir), ("--val_dir", args.val_dir)):
        if folder is not None:
            check_folder(flag, args.data_dir / folder)


def in_folders(args: Namespace) -> bool:
    """Whether the images are read from folders, one for each class, rather than by torchvision's own class."""
    return args.dataset in FOLDERS or (args.dataset == "cifar10" and args.train_dir is not None)


def count_classes(args: Namespace) -> int | None:
    """Classes of a folder of images; None for data sets whose number the framework knows."""
    if args.dataset in ("custom", "digits"):
        if getattr(args, "no_labels", False):
            return 1
        return len(class_folders(args.data_dir / args.train_dir))
    return None


def pretraining_set(args: Namespace) -> Dataset:
    """The augmented training images as (index, crops, label)."""
    settings = args.transform_kwargs if args.unique_augs > 1 else [args.transform_kwargs]
    transform = pretrain_dataloader.prepare_n_crop_transform(
        [pretrain_dataloader.prepare_transform(framework_name(args.dataset), **s) for s in settings],
        num_crops_per_aug=args.num_crops_per_aug,
    )
    if args.debug_augmentations:
        print(transform)
    if args.no_labels:
        dataset: Dataset = ImagesWithoutLabels(args.data_dir / args.train_dir, transform)
    elif in_folders(args):
        indexed = pretrain_dataloader.dataset_with_index(LabelledImages)
        dataset = indexed(args.data_dir / args.train_dir, transform)
    else:
        dataset = _build(
            args,
            lambda: pretrain_dataloader.prepare_datasets(
                args.dataset, transform, data_dir=args.data_dir, train_dir=args.train_dir
            ),
        )
    return dataset if args.data_fraction == 1 else fraction(dataset, args.data_fraction, args.seed)


def clustering_images(dataset: Dataset, args: Namespace) -> Callable[[Sequence[int]], Iterable[torch.Tensor]]:
    """Centre crops of a pretraining set's images, in batches, in the order of the indexes given."""
    _, transform = evaluation_transforms(args)
    crops: Dataset
    if isinstance(dataset, SkipUnreadable):
        crops = SkipUnreadable(_CentreCrops(dataset.dataset, transform), dataset.unreadable)
    else:
        crops = _CentreCrops(dataset, transform)
    return lambda indices: plain_loader(Subset(crops, indices), args)


class _CentreCrops(Dataset):
    """The images without labels; lists no file again."""

    def __init__(self, dataset: Dataset, transform: Callable) -> None:
        self.indices = dataset.indices if isinstance(dataset, _Reindexed) else None
        whole = dataset.dataset if isinstance(dataset, _Reindexed) else dataset
        self.images = copy.copy(whole)
        self.images.transform = transform  # type: ignore[attr-defined]

    def __getitem__(self, index: int) -> Any:
        return self.images[index if self.indices is None else self.indices[index]][1]

    def __len__(self) -> int:
        return len(self.images if self.indices is None else self.indices)  # type: ignore[arg-type]


def validation_set(args: Namespace) -> Dataset | None:
    """Labelled validation images, or None where there are none to be had."""
    if in_folders(args):
        if args.no_labels or args.val_dir is None:
            return None
        _, transform = evaluation_transforms(args)
        return LabelledImages(args.data_dir / args.val_dir, transform)
    return evaluation_sets(args, *evaluation_transforms(args))[1]


def evaluation_sets(args: Namespace, train_transform: Callable, val_transform: Callable) -> tuple[Dataset, Dataset]:
    """Labelled training and validation images."""
    if in_folders(args):
        train_set = LabelledImages(args.data_dir / args.train_dir, train_transform)
        val_set = LabelledImages(args.data_dir / args.val_dir, val_transform)
        refuse_single_class(train_set)
        align_classes(train_set, val_set)
        return train_set, val_set
    return _build(
        args,
        lambda: classification_dataloader.prepare_datasets(
            args.dataset,
            train_transform,
            val_transform,
            data_dir=args.data_dir,
            train_dir=args.train_dir,
            val_dir=args.val_dir,
        ),
    )


def align_classes(train_set: Dataset, val_set: Dataset | None) -> None:
    """Gives validation images the numbers that their classes have in training, also where some classes are missing."""
    whole = train_set.dataset if isinstance(train_set, _Reindexed) else train_set
    if not isinstance(whole, ImageFolder) or not isinstance(val_set, ImageFolder):
        return
    unknown = sorted(set(val_set.classes) - set(whole.classes))
    if unknown:
        raise UserError(f"--val_dir: class {unknown[0]!r} is not in --train_dir; the two need the same class folders")
    numbers = [whole.class_to_idx[name] for name in val_set.classes]
    val_set.samples = [(path, numbers[label]) for path, label in val_set.samples]
    val_set.targets = [label for _, label in val_set.samples]


def classes_of(dataset: Dataset) -> int:
    """How many classes a labelled data set has, also if some have no images."""
    return len(dataset.classes)  # type: ignore[attr-defined]


def labels_of(dataset: Dataset) -> list[int]:
    """Every image's label, without reading an image; torchvision's STL-10 calls them otherwise than its others."""
    return [int(label) for label in getattr(dataset, "targets", getattr(dataset, "labels", ()))]


def refuse_single_class(dataset: Dataset, flag: str = "--train_dir") -> None:
    """An evaluation on one class is right whatever the encoder does."""
    classes = getattr(dataset, "classes", None)
    if classes is not None and len(classes) < 2:
        raise UserError(f"{flag}: only one class ({classes[0]!r}); an evaluation needs at least two class folders")


def evaluation_transforms(args: Namespace) -> tuple[Callable, Callable]:
    """solo-learn's transforms for training a classifier and for validation; custom data follow --crop_size."""
    if args.dataset not in _OWN_SIZE:
        return classification_dataloader.prepare_transforms(args.dataset)
    size = args.crop_size[0]
    tail = [transforms.ToTensor(), transforms.Normalize(args.mean, args.std)]
    train = [
        transforms.RandomResizedCrop(size, scale=(0.08, 1.0)),
        transforms.RandomHorizontalFlip(),
    ]
    val = [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)]
    return transforms.Compose(train + tail), transforms.Compose(val + tail)


def training_loader(dataset: Dataset, args: Namespace) -> DataLoader:
    """Shuffled, without a last batch that is not full; the same batches in every run of this seed."""
    shards = args.use_distributed_sampler if args.replace_sampler_ddp is None else args.replace_sampler_ddp
    return repeatable_loader(dataset, args.batch_size, args.num_workers, args.seed, shards)


def plain_loader(dataset: Dataset, args: Namespace) -> DataLoader:
    """Every image once, in order."""
    return DataLoader(dataset, args.batch_size, num_workers=args.num_workers, pin_memory=True)


def validation_loader(dataset: Dataset, args: Namespace) -> DataLoader:
    """Every image once, over all processes together."""
    processes, images = len(args.gpus) * args.num_nodes, len(dataset)  # type: ignore[arg-type]
    if images < processes:
        raise UserError(f"--val_dir: {images} images cannot be shared by {processes} processes; use fewer --devices")
    sampler = EachOnce(dataset)
    return DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=args.num_workers, pin_memory=True)


class LabelledImages(ImageFolder):
    """One folder per class, each with images at any depth, as (image, class)."""

    def __init__(self, root: Path, transform: Callable) -> None:
        super().__init__(root, transform, loader=read_image)

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        names = class_folders(directory)
        if not names:
            raise UserError(
                f"{directory}: one folder per class is expected there; for images without classes add --no_labels"
            )
        return names, {name: number for number, name in enumerate(names)}

    @staticmethod
    def make_dataset(directory: str | Path, class_to_idx: dict[str, int], **_: Any) -> list[tuple[str, int]]:
        found = {name: list_images(os.path.join(directory, name)) for name in class_to_idx}
        empty = [name for name, paths in found.items() if not paths]
        if empty:
            others = f" and {len(empty) - 1} others have" if len(empty) > 1 else " has"
            raise UserError(
                f"{directory}: class folder {empty[0]!r}{others} no images ({', '.join(IMG_EXTENSIONS)}); "
                "add some, or remove the folder"
            )
        return [(path, class_to_idx[name]) for name, paths in found.items() for path in paths]


class ImagesWithoutLabels(Dataset):
    """All images below a folder, sorted by name, as (index, image, -1)."""

    def __init__(self, root: Path, transform: Callable) -> None:
        self.root = root
        self.transform = transform
        self.images = list_images(root)
        if not self.images:
            raise UserError(f"{root}: no images there ({', '.join(IMG_EXTENSIONS)})")

    def __getitem__(self, index: int) -> tuple[int, Any, int]:
        return index, self.transform(read_image(self.images[index])), -1

    def __len__(self) -> int:
        return len(self.images)


class _Reindexed(Subset):
    """A part of an indexed data set, whose own indexes count from 0 without gaps."""

    def __getitem__(self, index: Any) -> Any:
        _, *rest = self.dataset[self.indices[index]]
        return (index, *rest)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def files_and_labels(dataset: Dataset) -> tuple[list[str], list[int]]:
    """The files of a folder of images in the data set's order, and their labels: -1 for none."""
    if isinstance(dataset, _Reindexed):
        files, labels = files_and_labels(dataset.dataset)
        return [files[i] for i in dataset.indices], [labels[i] for i in dataset.indices]
    if isinstance(dataset, ImagesWithoutLabels):
        return dataset.images, [-1] * len(dataset)
    samples = dataset.samples  # type: ignore[attr-defined]
    return [file for file, _ in samples], [label for _, label in samples]


def fraction(dataset: Dataset, share: float, seed: int) -> Dataset:
    """A seeded part of the data set, with every class in its proportion where labels are known."""
    labels = labels_of(dataset) or None
    size = len(dataset)  # type: ignore[arg-type]
    try:
        kept, _ = train_test_split(range(size), train_size=share, stratify=labels, random_state=seed)
    except ValueError as error:
        raise UserError(f"--data_fraction {share}: too small for {size} images: {error}") from error
    return _Reindexed(dataset, sorted(kept))


def check_folder(flag: str, path: Path) -> None:
    if not path.exists():
        raise UserError(f"{flag}: {path} does not exist; check --data_dir and {flag}")
    if not path.is_dir():
        raise UserError(f"{flag}: {path} is a file; give a folder of images")
    if not any(path.iterdir()):
        raise UserError(f"{flag}: {path} is empty; give a folder of images")


def _build(args: Namespace, make: Callable[[], Any]) -> Any:
    """Makes a data set that is downloaded; what its class says of missing or broken data becomes one line."""
    try:
        return make()
    except (OSError, RuntimeError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise UserError(
            f"--dataset {args.dataset} in {args.data_dir}: {reason}; it is not there and could not be downloaded"
        ) from error
