"""solo-learn's augmentations and pretraining sets, with what its functions leave open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from PIL import ImageOps
from solo.utils import pretrain_dataloader
from torch.utils.data import Dataset
from torchvision import transforms

from solo_hcsc.data.folders import ImagesWithoutLabels, LabelledImages, fraction, listed, tell_listing
from solo_hcsc.data.sets import download_folder, downloading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.stored import stored_images


@dataclass(frozen=True)
class Augmentation:
    """The pipelines that make an image's crops."""

    dataset: str  # as solo-learn calls it
    pipelines: tuple[Mapping[str, Any], ...]  # what solo-learn's transforms take
    crops: tuple[int, ...]  # that each of them makes
    equalised: tuple[float, ...] = ()  # probability that each of them equalises a crop's histogram; never, for none
    fast: bool = False  # the same crops by `data.fast_views`

    @classmethod
    def of(cls, settings: Mapping[str, Any], source: ImageSource) -> "Augmentation":
        """Take what solo-learn's own setup made of the flags."""
        pipelines = settings["transform_kwargs"] if settings["unique_augs"] > 1 else [settings["transform_kwargs"]]
        equalised = settings["equalization_prob"]
        equalised = equalised * len(pipelines) if len(equalised) == 1 else equalised
        crops = tuple(settings["num_crops_per_aug"])
        return cls(source.framework_name, tuple(pipelines), crops, tuple(equalised), source.is_fast)

    def transform(self) -> Callable:
        made = [pretrain_dataloader.prepare_transform(self.dataset, **settings) for settings in self.pipelines]
        for pipeline, probability in zip(made, self.equalised, strict=False):
            if probability:  # solo-learn 1.0.4 has it before the last three: flip, tensor, normalisation
                equalise = transforms.RandomApply([transforms.Lambda(ImageOps.equalize)], p=probability)
                pipeline.transform.transforms.insert(-3, equalise)
        if self.fast:
            from solo_hcsc.solo102.fast_steps import fast_views  # an optional package

            views = [one.transform for one, crops in zip(made, self.crops, strict=True) for _ in range(crops)]
            return fast_views(views)
        return pretrain_dataloader.prepare_n_crop_transform(made, num_crops_per_aug=list(self.crops))


def pretraining_set(source: ImageSource, transform: Callable, share: float, seed: int) -> Dataset:
    """Return the augmented training images, or a seeded share of them, as (index, crops, label)."""
    if source.is_stored:
        dataset: Dataset = listed(stored_images(source, "train", transform, indexed=True), source)
    elif source.no_labels:
        dataset = ImagesWithoutLabels(source.folder("train"), transform)
        tell_listing(dataset)
        dataset = listed(dataset, source)
    elif source.in_folders:
        indexed = pretrain_dataloader.dataset_with_index(LabelledImages)
        dataset = indexed(source.folder("train"), transform, source.class_level)
        tell_listing(dataset)  # type: ignore[arg-type]
        dataset = listed(dataset, source)
    else:
        dataset = downloading(
            source,
            lambda: pretrain_dataloader.prepare_datasets(
                source.dataset, transform, data_dir=source.data_dir, train_dir=download_folder(source, source.train_dir)
            ),
        )
    return dataset if share == 1 else fraction(dataset, share, seed)
