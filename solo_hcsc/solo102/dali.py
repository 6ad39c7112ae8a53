"""solo-learn's DALI pipelines, on exactly the files that the default loader reads.

Every pass over the images, be it an epoch, a validation or a clustering, has a pipeline of its own that reads a list of
files in its order. DALI's own shards and shuffling repeat some images in an epoch and leave out others wherever
batches and processes do not divide the images evenly. Imported only where `dali` asks for it: DALI takes seconds to
import, and may not be installed.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, math, ops, types
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from PIL import Image
from solo.utils.dali_dataloader import CustomTransform, ImagenetTransform, NormalPipeline, PretrainPipeline
from torch.utils.data import Dataset
from torchvision import transforms

from solo_hcsc.data.folders import files_and_labels
from solo_hcsc.data.images import DECODING_ERRORS, UnreadableImage, read_image
from solo_hcsc.data.loaders import Loading, Resumable, derive_seed, epoch_order
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.errors import on_one_line
from solo_hcsc.methods.learner import CentreCropBatches
from solo_hcsc.progress import say
from solo_hcsc.solo102.datasets import Augmentation

_FORMATS = ("JPEG", "MPO", "PNG", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000")  # Pillow's names of those that DALI decodes
_OPAQUE = (".jpg", ".jpeg", ".jpe", ".jfif")  # how the names of files end that are taken as they are, unopened


@dataclass(frozen=True)
class Decoding:
    """How DALI works."""

    device: str  # cpu or gpu
    batch_size: int
    threads: int
    seed: int

    @classmethod
    def of(cls, device: str, loading: Loading, seed: int) -> "Decoding":
        return cls(device, loading.batch_size, max(1, loading.num_workers), seed)

    @property
    def pipeline_settings(self) -> dict[str, Any]:
        """Return what the constructors of all of solo-learn's pipelines take."""
        return {
            "data_path": "",
            "batch_size": self.batch_size,
            "device": self.device,
            "device_id": torch.cuda.current_device() if self.device == "gpu" else 0,
            "num_threads": self.threads,
        }


def pretraining_class(method: type, train_set: Dataset, augmentation: Augmentation, decoding: Decoding) -> type:
    """Make a class of `method` with DALI's loader of the training images as (index, crops, label)."""
    files, labels = _decodable(train_set, decoding)
    targets = torch.tensor(labels)

    def epoch(model: Any, skipped: int) -> Iterator[Any]:
        indexes = _share_of_epoch(model, len(files), skipped, decoding)
        pipeline = Augmented(
            [files[i] for i in indexes], indexes, augmentation, decoding, _crop_seed(model, skipped, decoding)
        )
        crops = [f"crop {number}" for number in range(sum(augmentation.crops))]
        known = targets
        for *views, index in _batches(pipeline, [*crops, "index"]):
            known = known.to(index.device)
            yield [index, views, known[index]]

    def train_dataloader(model: Any) -> Epochs:
        return Epochs(len(files) // model.trainer.world_size // decoding.batch_size, partial(epoch, model))

    # The size is read by solo-learn's deepclusterv2.
    members = {"train_dataloader": train_dataloader, "dali_epoch_size": len(files)}
    return type(f"Dali{method.__name__}", (method,), members)


def linear_class(
    model_class: type, train_set: Dataset, val_set: Dataset, source: ImageSource, decoding: Decoding
) -> type:
    """Make a class of the linear model with DALI's loaders of training and validation images as (image, label)."""
    train_files, train_labels = _decodable(train_set, decoding)
    val_files, val_labels = _decodable(val_set, decoding)
    train_transform, val_transform = evaluation_transforms(source)

    def training(model: Any, skipped: int) -> Iterator[Any]:
        indexes = _share_of_epoch(model, len(train_files), skipped, decoding)
        chosen = [train_files[i] for i in indexes], [train_labels[i] for i in indexes]
        pipeline = RandomCrop(*chosen, train_transform, decoding, _crop_seed(model, skipped, decoding))
        return _batches(pipeline, ["image", "label"])

    def validation(model: Any, _: int) -> Iterator[Any]:
        share = slice(model.global_rank, None, model.trainer.world_size)
        if not val_files[share]:
            return iter(())
        return _batches(CentreCrop(val_files[share], val_labels[share], val_transform, decoding), ["image", "label"])

    def train_dataloader(model: Any) -> Epochs:
        return Epochs(len(train_files) // model.trainer.world_size // decoding.batch_size, partial(training, model))

    def val_dataloader(model: Any) -> Epochs:
        share = len(val_files[model.global_rank :: model.trainer.world_size])
        return Epochs(-(-share // decoding.batch_size), partial(validation, model))

    hooks = {"train_dataloader": train_dataloader, "val_dataloader": val_dataloader}
    return type(f"Dali{model_class.__name__}", (model_class,), hooks)


def centre_crops(train_set: Dataset, source: ImageSource, decoding: Decoding) -> CentreCropBatches:
    """Make a function from indexes of the data set to batches of centre crops, in that order, the last one short."""
    files, _ = _decodable(train_set, decoding)
    _, transform = evaluation_transforms(source)

    def images(indexes: Sequence[int]) -> Iterator[torch.Tensor]:
        if len(indexes):
            pipeline = CentreCrop([files[i] for i in indexes], list(indexes), transform, decoding)
            for image, _ in _batches(pipeline, ["image", "index"]):
                yield image

    return images


def _decodable(dataset: Dataset, decoding: Decoding) -> tuple[list[str], list[int]]:
    """Return the images' files and labels; copies stand for files that DALI would read otherwise than Pillow does.

    DALI drops transparency, and knows fewer formats. Such images are written as opaque PNG to a temporary folder.
    """
    files, labels = files_and_labels(dataset)
    unknown = [file for file in files if not file.lower().endswith(_OPAQUE)]
    with ThreadPoolExecutor(decoding.threads) as pool:
        copies = {file: copy for file, copy in zip(unknown, pool.map(_copied, unknown), strict=True) if copy != file}
    if copies:
        say(f"`dali`: decodes opaque copies of {len(copies)} images that are transparent or of other formats")
    return [copies.get(file, file) for file in files], labels


@cache
def _copied(file: str) -> str:
    """Return the file itself, or an opaque PNG of it where DALI needs one."""
    try:
        with Image.open(file) as image:
            plain = image.format in _FORMATS and not image.has_transparency_data
            if plain and not getattr(image, "is_animated", False):
                return file
    except DECODING_ERRORS:  # named when DALI comes to it
        return file
    copy = Path(_copies().name, f"{sha256(os.fsencode(file)).hexdigest()}.png")
    read_image(file).save(copy, compress_level=1)
    return str(copy)


@cache
def _copies() -> TemporaryDirectory[str]:
    """Return a folder that goes with this process."""
    return TemporaryDirectory(prefix="solo_hcsc-")


class Epochs(Resumable):
    """A loader: every `iter` is a new pass over the images."""

    def __init__(self, length: int, start: Callable[[int], Iterator[Any]]) -> None:
        self.length = length
        self.start = start  # given the number of batches to skip

    def __len__(self) -> int:
        return self.length

    def batches(self, skipped: int) -> Iterator[Any]:
        return self.start(skipped)


def _share_of_epoch(model: Any, images: int, skipped: int, decoding: Decoding) -> list[int]:
    """Return this process's indexes in the model's epoch, in full batches, after the first `skipped` ones."""
    processes = model.trainer.world_size
    order = epoch_order(images, decoding.seed, model.current_epoch, model.global_rank, processes)
    full = images // processes // decoding.batch_size * decoding.batch_size
    return order[skipped * decoding.batch_size : full].tolist()


def _crop_seed(model: Any, skipped: int, decoding: Decoding) -> int:
    """Return the seed of this process's crops and colours in the model's epoch; within it, another."""
    return derive_seed(decoding.seed, model.current_epoch, model.global_rank, skipped) % 2**31


def _batches(pipeline: "Files", names: list[str]) -> Iterator[list[torch.Tensor]]:
    """Yield one pass of a pipeline, whose memory goes with the iterator. The last output is the files' numbers."""
    passing = DALIGenericIterator(
        pipeline, names, reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, prepare_first_batch=False
    )
    for (batch,) in passing:
        *images, numbers = (batch[name] for name in names)
        yield [*images, numbers.squeeze(1)]


class Files(Pipeline):
    """What our pipelines add to solo-learn's: the device, the list of files, and errors that name a file."""

    device: str  # set before solo-learn's constructors call this one

    def __init__(self, batch_size: int, num_threads: int, device_id: int, seed: int) -> None:
        # solo-learn always asks for a GPU, which DALI refuses on a machine without one.
        super().__init__(batch_size, num_threads, device_id if self.device == "gpu" else None, seed)

    def read(self, files: list[str], numbers: list[int]) -> None:
        """Replace solo-learn's reader, which lists folders by itself, and its decoder."""
        self.files = files
        self.delivered = 0
        self.reader = ops.readers.File(files=files, labels=numbers, pad_last_batch=True)
        self.decode = _decoder("mixed" if self.device == "gpu" else "cpu")

    def share_outputs(self) -> Any:
        try:
            outputs = super().share_outputs()
        except RuntimeError as error:
            # DALI does not always name the file. It is among those read ahead, at most three batches.
            broken = _first_broken(self.files[self.delivered : self.delivered + 4 * self.max_batch_size])
            if broken is None:
                raise
            raise UnreadableImage(
                f"{on_one_line(broken)}: DALI cannot read this image; remove or replace it", broken
            ) from error
        self.delivered += self.max_batch_size
        return outputs


class Augmented(PretrainPipeline, Files):
    """Pretraining's crops."""

    def __init__(
        self, files: list[str], numbers: list[int], augmentation: Augmentation, decoding: Decoding, seed: int
    ) -> None:
        self.device = decoding.device
        transform = ImagenetTransform if augmentation.dataset in ("imagenet", "imagenet100") else CustomTransform
        PretrainPipeline.__init__(
            self,
            **decoding.pipeline_settings,
            transforms=[transform(device=self.device, **settings) for settings in augmentation.pipelines],
            num_crops_per_aug=list(augmentation.crops),
            seed=seed,
        )
        self.read(files, numbers)


class RandomCrop(NormalPipeline, Files):
    """The training images of linear evaluation, as the default loader's transform has them."""

    def __init__(
        self, files: list[str], numbers: list[int], transform: transforms.Compose, decoding: Decoding, seed: int
    ) -> None:
        self.device = decoding.device
        NormalPipeline.__init__(self, validation=False, **decoding.pipeline_settings, seed=seed)
        self.read(files, numbers)
        crop, *_, normalise = transform.transforms
        self.resize = ops.RandomResizedCrop(
            device=self.device,
            size=crop.size,
            random_area=crop.scale,
            random_aspect_ratio=crop.ratio,
            interp_type=types.INTERP_LINEAR,
        )
        self.cmn = _normalise(self.device, normalise)


class CentreCrop(NormalPipeline, Files):
    """Images for validation and clustering, within one of 255 grey values of the default loader's."""

    def __init__(self, files: list[str], numbers: list[int], transform: transforms.Compose, decoding: Decoding) -> None:
        self.device = decoding.device
        NormalPipeline.__init__(self, validation=True, **decoding.pipeline_settings)
        self.read(files, numbers)
        resize, crop, *_, normalise = transform.transforms
        self.shorter, self.size = resize.size, crop.size[0]
        self.resize = ops.Resize(device=self.device, interp_type=types.INTERP_LINEAR)
        self.cmn = _normalise(self.device, normalise, crop=crop.size)

    def define_graph(self) -> tuple[Any, Any]:
        encoded, numbers = self.reader(name="Reader")
        # Sizes and positions rounded as torchvision does: the longer side down, the centre to an even number.
        sides = fn.peek_image_shape(encoded, adjust_orientation=True)[:2]
        sides = sides * self.shorter // fn.reductions.min(sides)
        margin = sides - self.size
        half = margin // 2
        start = half + (margin - 2 * half) * (half - half // 2 * 2)
        position = start / math.max(margin, 1)
        images = self.resize(self.decode(encoded), size=fn.cast(sides, dtype=types.FLOAT))
        images = self.cmn(images, crop_pos_y=position[0], crop_pos_x=position[1])
        return images, self.to_int64(numbers.gpu() if self.device == "gpu" else numbers)


def _decoder(device: str) -> Any:
    """Decode as the default loader does: upright, with interpolated colours."""
    return ops.decoders.Image(device=device, output_type=types.RGB, adjust_orientation=True, jpeg_fancy_upsampling=True)


def _normalise(device: str, transform: transforms.Normalize, **crop: Any) -> Any:
    return ops.CropMirrorNormalize(
        device=device,
        dtype=types.FLOAT,
        output_layout=types.NCHW,
        mean=[255 * value for value in transform.mean],
        std=[255 * value for value in transform.std],
        **crop,
    )


def _first_broken(files: list[str]) -> str | None:
    """Find the first file that cannot be read or decoded, tried one by one."""
    pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        pipeline.set_outputs(_decoder("cpu")(fn.external_source(name="encoded")))
    pipeline.build()
    for file in files:
        try:
            pipeline.feed_input("encoded", [np.fromfile(file, dtype=np.uint8)])
            pipeline.run()
        except (OSError, RuntimeError):
            return file
    return None
