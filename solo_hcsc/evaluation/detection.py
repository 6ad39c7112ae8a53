"""Training and testing a detector on a checkpoint's encoder, from the flags to the result's file."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, seed_everything
from torch.utils.data import Dataset

from solo_hcsc.data.coco import read_coco
from solo_hcsc.data.detection import (
    AnnotatedImage,
    DetectionImages,
    Sizes,
    check_outlines,
    collate,
    with_objects,
)
from solo_hcsc.data.images import OrSkipped, Skipped, SkipUnreadable, UnreadableFiles
from solo_hcsc.data.loaders import Loading, ResumableLoader
from solo_hcsc.data.pascal import CLASSES, find_folder, read_boxes
from solo_hcsc.devices import Devices, resolve_devices
from solo_hcsc.encoders.checkpoints import load_checkpoint, weights_in
from solo_hcsc.encoders.recorded import EVALUATION
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.detecting import Detections, Place, detect, set_batch_norm
from solo_hcsc.evaluation.detection_ap import average_precisions
from solo_hcsc.evaluation.detector import DetectorSettings, make_detector
from solo_hcsc.evaluation.features import tell_skipped
from solo_hcsc.progress import say
from solo_hcsc.runs.encoders import Encoder, load_encoder
from solo_hcsc.runs.results import Invocation, Result
from solo_hcsc.settings import Settings, take
from solo_hcsc.solo102 import make_encoder
from solo_hcsc.solo102.datasets import trained_colours
from solo_hcsc.tables import table
from solo_hcsc.training.callbacks import TellUnreadable
from solo_hcsc.training.detection import DetectorTraining, Schedule
from solo_hcsc.training.resume import FinishedError, check_resume, check_same_flags
from solo_hcsc.training.session import Session, batches_per_epoch, new_folder
from solo_hcsc.training.settings import Loop, Records, Wandb, check_wandb

NAME = "detect"
_SHOWN = {
    "AP": "AP",
    "AP50": "AP50",
    "AP75": "AP75",
    "AP50_11": "VOC AP50, 11 points",
    "AP50_all": "VOC AP50, all points",
    "mask_AP": "mask AP",
    "mask_AP50": "mask AP50",
    "mask_AP75": "mask AP75",
}
_CLASSES_OF_COCO = 80
_PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")
_SEEN = ("channel_order", "mean", "std", "precision", "processes", "sync_batchnorm", "seed")  # in a result, too


@dataclass(frozen=True)
class DetectionData:
    """Training and test images, and the classes of both."""

    train: Sequence[AnnotatedImage]
    test: Sequence[AnnotatedImage]
    classes: tuple[str, ...]

    @classmethod
    def read(cls, dataset: str, data_dir: Path, train_split: str, test_split: str) -> "DetectionData":
        """`voc0712`, `coco`, or `voc`: a folder like VOC2007 with classes of its own."""
        if dataset == "coco":
            train, classes = read_coco(data_dir, train_split)
            return cls(train, read_coco(data_dir, test_split, classes)[0], classes)
        if dataset == "voc":
            folder = find_folder(data_dir)
            train, classes = read_boxes(folder, train_split)
            return cls(train, read_boxes(folder, test_split, classes)[0], classes)
        folders = [data_dir / year for year in ("VOC2007", "VOC2012")]
        for folder in folders:
            if not (folder / "ImageSets" / "Main").is_dir():
                raise UserError(
                    f"`data_dir` {data_dir}: no folder {folder.name} with ImageSets/Main, Annotations and JPEGImages; "
                    "`dataset` voc0712 trains on trainval of VOC2007 and VOC2012"
                )
        train = [image for folder in folders for image in read_boxes(folder, train_split, CLASSES)[0]]
        return cls(train, read_boxes(folders[0], test_split, CLASSES)[0], CLASSES)

    def check_masks(self) -> None:
        """Refuses where masks cannot be trained."""
        if find_spec("pycocotools") is None:
            raise UserError("masks need pycocotools; run: pip install 'solo_hcsc[coco]', or use `masks` false")
        for images in (self.train, self.test):
            check_outlines(images, "`masks` true")


class Detection:
    """One detector, from the flags to what it finds in the test images. Nothing is written before `train`.

    Args:
        flags: of `solo-hcsc detect`, all resolved.
        data: the images.
        protocol: the paper's settings; what differs from them is in the result.
    """

    def __init__(self, flags: Settings, data: DetectionData, protocol: Mapping[str, Any]) -> None:
        self.flags, self.data, self.protocol = flags, data, protocol
        self.started = time.monotonic()
        self.devices = _devices(flags)
        name = flags.name or f"{NAME}-{flags.dataset}"
        self.records, self.wandb = take(Records, flags, name=name, keep_best=None), take(Wandb, flags, name=name)
        check_wandb(self.wandb)
        if flags.masks:
            data.check_masks()
        self.loading = Loading(flags.batch_size // self.devices.processes, flags.num_workers, flags.skip_unreadable)
        self.train_set, self.test_set = self._sets()
        tested = OrSkipped(self.test_set) if flags.skip_unreadable else self.test_set
        self.test_loader = self.loading.validation(tested, self.devices.processes, collate, "`data_dir`")
        self.loop = self._loop()
        self.encoder = load_encoder(flags.pretrained_feature_extractor, flags.encoder, None, flags.encoder_args)
        seed_everything(flags.seed, workers=True)
        if flags.random_weights:
            self.encoder = _without_weights(self.encoder)
        mean, std = _colours(flags, self.encoder)
        self.detector = make_detector(
            self.encoder, len(data.classes), take(DetectorSettings, flags, mean=mean, std=std)
        )
        self.model = DetectorTraining(self.detector, take(Schedule, flags), flags.weight_decay, flags.weight_decay_norm)
        self.settings = self._settings(name, mean, std)
        self.is_trained = self._goes_on_from_the_end()
        resume = flags.resume_from_checkpoint
        self.folder = resume.parent if self.is_trained else new_folder(self.records, NAME)
        self.trained_on: Dataset = self.train_set
        callbacks: list[Callback] = []
        if flags.skip_unreadable:
            unreadable = UnreadableFiles(self.folder / "unreadable.txt")
            self.trained_on = SkipUnreadable(self.train_set, unreadable)
            callbacks = [TellUnreadable(unreadable, len(self.train_set))]
        self.run = Session(
            self.folder, self.devices, self.loop, self.records, self.wandb, self.settings, resume, callbacks
        )

    def _sets(self) -> tuple[DetectionImages, DetectionImages]:
        flags, data = self.flags, self.data
        train = data.train if flags.keep_empty else with_objects(data.train)
        sizes, size = Sizes(flags.min_size_train, flags.max_size), Sizes((flags.min_size_test,), flags.max_size)
        return (
            DetectionImages(train, sizes, True, flags.masks, flags.horizontal_flip_prob),
            DetectionImages(data.test, size, False),
        )

    def _loop(self) -> Loop:
        """Lightning's, which counts epochs: as many as the iterations take."""
        loop = take(Loop, self.flags, num_sanity_val_steps=0)
        batches = batches_per_epoch("`data_dir`", len(self.train_set), self.loading.batch_size, self.devices, loop)
        return replace(loop, max_epochs=math.ceil(loop.max_steps * loop.accumulate_grad_batches / batches))

    def _settings(self, name: str, mean: tuple[float, ...], std: tuple[float, ...]) -> dict[str, Any]:
        """What args.json has. A resumed run must have the same, and so the encoder's hash is among it."""
        return {
            **vars(self.flags),
            "name": name,
            "max_epochs": self.loop.max_epochs,
            "role": EVALUATION,
            "optimizer": "sgd",
            "encoder": self.encoder.name,
            "backbone_args": self.encoder.settings,
            "checkpoint_sha256": self.encoder.fingerprint,
            "classes": self.data.classes,
            "mean": mean,
            "std": std,
            "precision": self.devices.precision,
            "processes": self.devices.processes,
            "sync_batchnorm": self.devices.sync_batchnorm,
        }

    def _goes_on_from_the_end(self) -> bool:
        """Whether the checkpoint to resume from has done all iterations, so that only the test is left."""
        resume = self.flags.resume_from_checkpoint
        if resume is None:
            return False
        try:
            check_resume(resume, self.model, self.loop)
        except FinishedError:
            check_same_flags(resume, self.settings)
            self.model.load_state_dict(weights_in(load_checkpoint(resume), resume))
            return True
        check_same_flags(resume, self.settings)
        return False

    def train(self) -> bool:
        """Trains; whether all iterations are done."""
        flags = self.flags
        if not self.is_trained:
            self.run.begin(self.model)
        done = "trained already" if self.is_trained else f"{flags.max_steps} iterations, batch {flags.batch_size}"
        say(self.encoder.taken)
        say(
            f"detect: {flags.head} on {self.encoder.name}, {flags.dataset}: {len(self.train_set)} training and "
            f"{len(self.test_set)} test images, {len(self.data.classes)} classes; {self.devices}; {done}; writing to "
            f"{self.folder}"
        )
        if self.is_trained:
            return True
        self.run.fit(self.model, self._batches(), None)
        steps = self.run.trainer.global_step
        if steps < flags.max_steps:
            say(f"stopped after {steps} of {flags.max_steps} iterations: no result is written")
        return steps >= flags.max_steps

    def _batches(self) -> ResumableLoader:
        return self.loading.repeatable(self.trained_on, self.loop.seed, self.devices.shards, collate)

    def test(self) -> tuple[list[AnnotatedImage], list[Detections]]:
        """The test images that can be read, and what the detector finds in each; with batch norm's averages anew."""
        trainer = self.run.trainer
        place = Place(trainer.strategy.root_device, trainer.precision_plugin.forward_context)
        # Batches from the first epoch on, so that a training that is only tested again has the same.
        averaged = set_batch_norm(
            self.detector, self._batches(), self.flags.precise_bn, place, self.flags.seed, self.devices.sync_batchnorm
        )
        found = detect(averaged, self.test_loader, place)
        lost = [Skipped(index, str(one.file)) for index, one in enumerate(self.data.test) if index not in found]
        tell_skipped(lost, len(self.data.test))
        return [self.data.test[index] for index in found], [*found.values()]

    def figures(self, images: Sequence[AnnotatedImage], found: Sequence[Detections]) -> dict[str, dict[str, float]]:
        """Average precisions of each class, and their "mean"; those of masks as `mask_AP` and so on."""
        classes = self.data.classes
        boxes = average_precisions(images, found, classes)
        masks = average_precisions(images, found, classes, masks=True) if self.flags.masks else {}
        return {
            name: one | {f"mask_{key}": value for key, value in masks.get(name, {}).items()}
            for name, one in boxes.items()
        }

    def deviations(self) -> list[str]:
        """The flags that differ from the paper's protocol."""
        found = [name for name, value in self.protocol.items() if getattr(self.flags, name) != value]
        if self.devices.processes > 1 and not self.devices.sync_batchnorm:
            found.append("sync_batchnorm")
        own = self.flags.dataset == "coco" and len(self.data.classes) != _CLASSES_OF_COCO
        return [*found, "classes"] if own else found

    def write(
        self, figures: Mapping[str, Mapping[str, float]], images: int, pictures: Mapping[str, str], line: Invocation
    ) -> None:
        """The result's file. `images`: how many were tested; `pictures`: the sheet's file, title and caption."""
        each = {name: _known(one) for name, one in figures.items()}
        metrics = each.pop("mean")
        settings = {
            **{name: self.settings[name] for name in (*self.protocol, *_SEEN)},
            "deviations": self.deviations(),
            "per_class": each,
            "pictures": pictures,
        }
        data = {
            "name": self.flags.dataset,
            "data_dir": str(self.flags.data_dir),
            "train_dir": self.flags.train_split,
            "val_dir": self.flags.test_split,
            "train_images": len(self.train_set),
            "val_images": images,
            "classes": len(self.data.classes),
            "crop_size": self.flags.min_size_test,
        }
        seconds = time.monotonic() - self.started
        result = Result(NAME, metrics, settings, data, method=self.flags.method, seconds=seconds)
        result.of(self.encoder, line).save(self.run.checkpoints.folder / f"{NAME}.json")


def shown(figures: Mapping[str, Mapping[str, float]], images: int) -> str:
    """The table of each class's figures and of their means, and what stands below it."""
    columns = [name for name in _SHOWN if name in figures["mean"]]
    rows = [(name, *(_cell(one[column]) for column in columns)) for name, one in figures.items()]
    without = [name for name, one in figures.items() if math.isnan(one["AP"])]
    remarks = [f"in percent, of {images} test images"]
    if without:
        remarks.append(f"left out of the mean, since no test image shows it: {', '.join(without)}")
    return table(("class", *(_SHOWN[name] for name in columns)), rows) + "\n" + "; ".join(remarks)


def _cell(value: float) -> float | str:
    return "-" if math.isnan(value) else value


def _known(figures: Mapping[str, float]) -> dict[str, float]:
    """Those that are numbers: there may be no large object, or none at all."""
    return {name: value for name, value in figures.items() if not math.isnan(value)}


def _devices(flags: Settings) -> Devices:
    """Batch norm is synchronised as soon as there are several GPUs, unless the flag says otherwise."""
    gpus = torch.cuda.device_count()
    devices = resolve_devices(flags, gpus)
    if "sync_batchnorm" not in flags.typed:
        devices = replace(devices, sync_batchnorm=devices.accelerator == "gpu" and devices.processes > 1)
    if devices.precision not in _PRECISIONS:
        raise UserError(f"`precision` {flags.precision}: detect computes in 32, 16 or bf16 (mixed); take one of them")
    if flags.batch_size % devices.processes:
        raise UserError(
            f"`batch_size` {flags.batch_size}: is shared by {devices.processes} processes; give a multiple of that"
        )
    return devices


def _without_weights(encoder: Encoder) -> Encoder:
    """The same encoder as it is before any training."""
    fresh = make_encoder(encoder.name, encoder.settings)
    return replace(encoder, module=fresh, taken=f"encoder: {encoder.name} with random weights")


def _colours(flags: Settings, encoder: Encoder) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of the images that the encoder was trained on, but for what is typed."""
    mean, std = (
        tuple(getattr(flags, name) if name in flags.typed or not trained else trained)
        for name, trained in zip(("mean", "std"), trained_colours(encoder.trained_with), strict=True)
    )
    return mean, std
