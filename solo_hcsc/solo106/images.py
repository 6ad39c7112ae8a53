"""Centre crops of the checkout's training images, for the clustering pass."""

import os
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from PIL import Image
from solo.data.classification_dataloader import prepare_transforms
from solo.data.pretrain_dataloader import build_transform_pipeline
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms

from solo_hcsc.data.folders import CentreCrops
from solo_hcsc.methods.learner import CentreCropBatches

_OWN_SIZE = ("cifar10", "cifar100", "stl10")  # images that are as small as their crops


class DaliFiles(Dataset):
    """The images that DALI numbers, in its order: classes by name, and the files of each by name."""

    def __init__(self, data: DictConfig) -> None:
        root = Path(data.train_path)
        if data.no_labels:
            files = [(root / name, -1) for name in sorted(os.listdir(root))]
        else:
            classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
            files = [
                (root / name / file, label)
                for label, name in enumerate(classes)
                for file in sorted(os.listdir(root / name))
            ]
        if data.fraction > 0:
            from sklearn.model_selection import train_test_split

            labels = [label for _, label in files]
            files, _ = train_test_split(files, train_size=data.fraction, stratify=labels, random_state=42)
        self.files = files
        self.transform: Any = None

    def __getitem__(self, index: int) -> tuple[int, Any, int]:
        path, label = self.files[index]
        with Image.open(path) as image:
            return index, self.transform(image.convert("RGB")), label

    def __len__(self) -> int:
        return len(self.files)


def training_images(cfg: DictConfig, loader: Any) -> Dataset:
    """Return the images of the checkout's training loader, by the indexes that its batches have."""
    return DaliFiles(cfg.data) if cfg.data.format == "dali" else loader.dataset


def centre_crops(images: Dataset, cfg: DictConfig) -> CentreCropBatches:
    """Make a function from indexes of the images to batches of their centre crops, in that order."""
    crops = CentreCrops(images, _transform(cfg))
    workers, batch = cfg.data.num_workers, cfg.optimizer.batch_size

    def batches(indexes: Any) -> DataLoader[torch.Tensor]:
        return DataLoader(Subset(crops, indexes), batch_size=batch, num_workers=workers)

    return batches


def _transform(cfg: DictConfig) -> transforms.Compose:
    """Return the checkout's validation of small images; of others the centre, in size and colours of training."""
    if cfg.data.dataset in _OWN_SIZE:
        return prepare_transforms(cfg.data.dataset)[1]
    large = cfg.augmentations[0]
    normalise = build_transform_pipeline(cfg.data.dataset, large).transforms[-1]
    scale = [transforms.Resize(round(large.crop_size * 256 / 224)), transforms.CenterCrop(large.crop_size)]
    return transforms.Compose([*scale, transforms.ToTensor(), normalise])
