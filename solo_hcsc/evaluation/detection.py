"""Train a detector on a checkpoint's encoder, nothing frozen, and test it."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike
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
from solo_hcsc.data.source import check_folder
from solo_hcsc.data.views import trained_colours
from solo_hcsc.devices import Devices, resolve_devices
from solo_hcsc.encoders.checkpoints import load_checkpoint, weights_in
from solo_hcsc.encoders.loading import Encoder, load_encoder
from solo_hcsc.encoders.make import make_encoder
from solo_hcsc.encoders.recorded import EVALUATION
from solo_hcsc.errors import UserError
from solo_hcsc.evaluation.detecting import Detections, Place, find_objects, set_batch_norm
from solo_hcsc.evaluation.detection_ap import average_precisions
from solo_hcsc.evaluation.detection_settings import PROTOCOLS, SETTINGS, complete
from solo_hcsc.evaluation.detector import DetectorSettings, make_detector
from solo_hcsc.evaluation.features import tell_skipped
from solo_hcsc.evaluation.probe import Evaluated
from solo_hcsc.evaluation.protocols import CHECKPOINT, check_checkpoint, settled
from solo_hcsc.launch import is_main_process
from solo_hcsc.progress import say
from solo_hcsc.quiet import hushed
from solo_hcsc.runs.results import Invocation, Result
from solo_hcsc.settings import Settings, take
from solo_hcsc.training.callbacks import TellUnreadable
from solo_hcsc.training.detection import DetectorTraining, Schedule
from solo_hcsc.training.loggers import Logging, check_logging
from solo_hcsc.training.resume import FinishedError, check_resume, check_same_flags
from solo_hcsc.training.session import Session, batches_per_epoch, new_folder
from solo_hcsc.training.settings import Loop, Records
from solo_hcsc.typed import typed

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
    """Hold training and test images, and the classes of both."""

    train: Sequence[AnnotatedImage]
    test: Sequence[AnnotatedImage]
    classes: tuple[str, ...]

    @classmethod
    def read(cls, dataset: str, data_dir: Path, train_split: str, test_split: str) -> "DetectionData":
        """Read `voc0712`, `coco`, or `voc`: a folder like VOC2007 with classes of its own."""
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
        """Refuse images that masks cannot be trained on."""
        if find_spec("pycocotools") is None:
            raise UserError("masks need pycocotools; run: pip install 'solo_hcsc[coco]', or use `masks` false")
        for images in (self.train, self.test):
            check_outlines(images, "`masks` true")


Draw = Callable[[Sequence[AnnotatedImage], Sequence[Detections], Sequence[str], Path], Mapping[str, str]]


@typed
def detect(weights: Any, data_dir: str | PathLike[str], *, dataset: str = "voc0712", **settings: Any) -> Result:
    """Train a detector that starts from an encoder, nothing frozen, and test it, by the paper's protocol.

    Args:
        weights: a `Run`, an `Encoder` from a file, or the path of a run or of weights.
        data_dir: VOCdevkit with VOC2007 and VOC2012; or COCO's folder, with annotations, train2017 and val2017.
        dataset: "voc0712"; "coco", also for data of your own in its layout; or "voc", for your own in a folder like
            VOC2007.
        **settings: any other setting of `solo-hcsc detect`, such as `max_steps=1000` or `head="fpn"`.

    Returns:
        The mean average precisions in percent; `rows` has a row for each class, and `origin["run"]` the folder of the
        detector.

    Example:
        >>> detect("trained_models/hcsc", "VOCdevkit").metrics["AP50"]  # doctest: +SKIP
        82.3
    """
    groups = {"run": CHECKPOINT[:1], **SETTINGS}
    asked = complete(settled(groups, weights, {"data_dir": data_dir, "dataset": dataset, **settings}))
    check_checkpoint(asked)
    check_folder("data_dir", asked.data_dir)
    with hushed():
        return train_detector(asked).result


def train_detector(settings: Settings, command: Invocation | None = None, draw: Draw | None = None) -> Evaluated:
    """Train a detector, test it, and write a run's folder.

    Args:
        settings: all that `solo-hcsc detect` has, as `complete` returns them.
        command: as it was typed, for the record.
        draw: draws test images, what was found in them and the classes' names into a folder, and returns the picture's
            file, title and caption; no picture if not given.

    Returns:
        The result, without metrics if the training was stopped before its end; and the session.
    """
    data = DetectionData.read(settings.dataset, settings.data_dir, settings.train_split, settings.test_split)
    detection = Detection(settings, data)
    figures: Mapping[str, Mapping[str, float]] = {}
    pictures: Mapping[str, str] = {}
    images: Sequence[AnnotatedImage] = ()
    next_step = "the same command with `resume_from_checkpoint` CHECKPOINT"
    is_done = detection.train()
    folder = detection.run.checkpoints.folder
    if is_done:
        next_step = f"solo-hcsc summary {settings.checkpoint_dir}"
        images, found = detection.test()
        if is_main_process():
            figures = detection.figures(images, found)
            pictures = draw(images, found, data.classes, folder) if draw else {}
    result = detection.result(figures, len(images), pictures, command)
    if figures:
        result.save(folder / f"{NAME}.json")
    result = replace(result, origin={**result.origin, "run": folder})
    return Evaluated(result, detection.run, detection.started, next_step)


class Detection:
    """Train one detector and find objects in the test images. Nothing is written before `train`.

    Args:
        settings: as `complete` returns them.
        data: the images.
    """

    def __init__(self, settings: Settings, data: DetectionData) -> None:
        self.given, self.data, self.protocol = settings, data, PROTOCOLS[settings.dataset]
        self.started = time.monotonic()
        self.devices = _devices(settings)
        name = settings.name or f"{NAME}-{settings.dataset}"
        self.records = take(Records, settings, name=name, keep_best=None)
        self.logging = take(Logging, settings, name=name)
        check_logging(self.logging)
        if settings.masks:
            data.check_masks()
        self.loading = Loading(
            settings.batch_size // self.devices.processes, settings.num_workers, settings.skip_unreadable
        )
        self.train_set, self.test_set = self._sets()
        tested = OrSkipped(self.test_set) if settings.skip_unreadable else self.test_set
        self.test_loader = self.loading.validation(tested, self.devices.processes, collate, "`data_dir`")
        self.loop = self._loop()
        self.encoder = load_encoder(
            settings.pretrained_feature_extractor, settings.encoder, None, settings.encoder_args
        )
        seed_everything(settings.seed, workers=True)
        if settings.random_weights:
            self.encoder = _without_weights(self.encoder)
        mean, std = _colours(settings, self.encoder)
        self.detector = make_detector(
            self.encoder, len(data.classes), take(DetectorSettings, settings, mean=mean, std=std)
        )
        self.model = DetectorTraining(
            self.detector, take(Schedule, settings), settings.weight_decay, settings.weight_decay_norm
        )
        self.recorded = self._settings(name, mean, std)
        self.is_trained = self._goes_on_from_the_end()
        resume = settings.resume_from_checkpoint
        self.folder = resume.parent if self.is_trained else new_folder(self.records, NAME)
        self.trained_on: Dataset = self.train_set
        callbacks: list[Callback] = []
        if settings.skip_unreadable:
            unreadable = UnreadableFiles(self.folder / "unreadable.txt")
            self.trained_on = SkipUnreadable(self.train_set, unreadable)
            callbacks = [TellUnreadable(unreadable, len(self.train_set))]
        self.run = Session(
            self.folder, self.devices, self.loop, self.records, self.logging, self.recorded, resume, callbacks
        )

    def _sets(self) -> tuple[DetectionImages, DetectionImages]:
        settings, data = self.given, self.data
        train = data.train if settings.keep_empty else with_objects(data.train)
        sizes, size = (
            Sizes(settings.min_size_train, settings.max_size),
            Sizes((settings.min_size_test,), settings.max_size),
        )
        return (
            DetectionImages(train, sizes, True, settings.masks, settings.horizontal_flip_prob),
            DetectionImages(data.test, size, False),
        )

    def _loop(self) -> Loop:
        """Return Lightning's loop, which counts epochs: as many as the iterations take."""
        loop = take(Loop, self.given, num_sanity_val_steps=0)
        batches = batches_per_epoch("`data_dir`", len(self.train_set), self.loading.batch_size, self.devices, loop)
        return replace(loop, max_epochs=math.ceil(loop.max_steps * loop.accumulate_grad_batches / batches))

    def _settings(self, name: str, mean: tuple[float, ...], std: tuple[float, ...]) -> dict[str, Any]:
        """Return what args.json has. A resumed run must have the same, hence the encoder's hash among it."""
        return {
            **vars(self.given),
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
        """Return whether the checkpoint to resume from has done all iterations, so that only the test is left."""
        resume = self.given.resume_from_checkpoint
        if resume is None:
            return False
        try:
            check_resume(resume, self.model, self.loop)
        except FinishedError:
            check_same_flags(resume, self.recorded)
            self.model.load_state_dict(weights_in(load_checkpoint(resume), resume))
            return True
        check_same_flags(resume, self.recorded)
        return False

    def train(self) -> bool:
        """Train; return whether all iterations are done."""
        settings = self.given
        if not self.is_trained:
            self.run.begin(self.model)
        done = "trained already" if self.is_trained else f"{settings.max_steps} iterations, batch {settings.batch_size}"
        say(self.encoder.taken)
        say(
            f"detect: {settings.head} on {self.encoder.name}, {settings.dataset}: {len(self.train_set)} training and "
            f"{len(self.test_set)} test images, {len(self.data.classes)} classes; {self.devices}; {done}; writing to "
            f"{self.folder}"
        )
        if self.is_trained:
            return True
        self.run.fit(self.model, self._batches(), None)
        steps = self.run.trainer.global_step
        if steps < settings.max_steps:
            say(f"stopped after {steps} of {settings.max_steps} iterations: no result is written")
        return steps >= settings.max_steps

    def _batches(self) -> ResumableLoader:
        return self.loading.repeatable(self.trained_on, self.loop.seed, self.devices.shards, collate)

    def test(self) -> tuple[list[AnnotatedImage], list[Detections]]:
        """Compute batch norm's averages anew; return the test images that can be read, and what is found in each."""
        trainer = self.run.trainer
        place = Place(trainer.strategy.root_device, trainer.precision_plugin.forward_context)
        # Batches from the first epoch on, so that a training that is only tested again has the same.
        averaged = set_batch_norm(
            self.detector, self._batches(), self.given.precise_bn, place, self.given.seed, self.devices.sync_batchnorm
        )
        found = find_objects(averaged, self.test_loader, place)
        lost = [Skipped(index, str(one.file)) for index, one in enumerate(self.data.test) if index not in found]
        tell_skipped(lost, len(self.data.test))
        return [self.data.test[index] for index in found], [*found.values()]

    def figures(self, images: Sequence[AnnotatedImage], found: Sequence[Detections]) -> dict[str, dict[str, float]]:
        """Return average precisions of each class, and their "mean"; those of masks as `mask_AP` and so on."""
        classes = self.data.classes
        boxes = average_precisions(images, found, classes)
        masks = average_precisions(images, found, classes, masks=True) if self.given.masks else {}
        return {
            name: one | {f"mask_{key}": value for key, value in masks.get(name, {}).items()}
            for name, one in boxes.items()
        }

    def deviations(self) -> list[str]:
        """Return the names of the settings that differ from the paper's protocol."""
        found = [name for name, value in self.protocol.items() if getattr(self.given, name) != value]
        if self.devices.processes > 1 and not self.devices.sync_batchnorm:
            found.append("sync_batchnorm")
        own = self.given.dataset == "coco" and len(self.data.classes) != _CLASSES_OF_COCO
        return [*found, "classes"] if own else found

    def result(
        self,
        figures: Mapping[str, Mapping[str, float]],
        images: int,
        pictures: Mapping[str, str],
        command: Invocation | None = None,
    ) -> Result:
        """Return the result; `images`: how many were tested; `pictures`: the sheet's file, title and caption."""
        each = {name: _known(one) for name, one in figures.items()}
        rows = [{"class": name, **one} for name, one in each.items()]
        metrics = each.pop("mean", {})
        settings = {
            **{name: self.recorded[name] for name in (*self.protocol, *_SEEN)},
            "deviations": self.deviations(),
            "per_class": each,
            "pictures": pictures,
        }
        data = {
            "name": self.given.dataset,
            "data_dir": str(self.given.data_dir),
            "train_dir": self.given.train_split,
            "val_dir": self.given.test_split,
            "train_images": len(self.train_set),
            "val_images": images,
            "classes": len(self.data.classes),
            "crop_size": self.given.min_size_test,
        }
        seconds, method = time.monotonic() - self.started, self.given.method
        columns = {"class": "class"} | {name: _SHOWN[name] for name in _SHOWN if name in figures.get("mean", {})}
        result = Result(NAME, metrics, settings, data, rows, columns, method=method, seconds=seconds)
        return result.of(self.encoder, command)


def _known(figures: Mapping[str, float]) -> dict[str, float]:
    """Keep those that are numbers: there may be no large object, or none at all."""
    return {name: value for name, value in figures.items() if not math.isnan(value)}


def _devices(settings: Settings) -> Devices:
    """Return the devices; batch norm is synchronised as soon as there are several GPUs, unless given otherwise."""
    gpus = torch.cuda.device_count()
    devices = resolve_devices(settings, gpus)
    if "sync_batchnorm" not in settings.typed:
        devices = replace(devices, sync_batchnorm=devices.accelerator == "gpu" and devices.processes > 1)
    if devices.precision not in _PRECISIONS:
        raise UserError(
            f"`precision` {settings.precision}: detect computes in 32, 16 or bf16 (mixed); take one of them"
        )
    if settings.batch_size % devices.processes:
        raise UserError(
            f"`batch_size` {settings.batch_size}: is shared by {devices.processes} processes; give a multiple of that"
        )
    return devices


def _without_weights(encoder: Encoder) -> Encoder:
    """Return the same encoder as it is before any training."""
    fresh = make_encoder(encoder.name, encoder.settings)
    return replace(encoder, module=fresh, taken=f"encoder: {encoder.name} with random weights")


def _colours(settings: Settings, encoder: Encoder) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of the images that the encoder was trained on, but for those given."""
    mean, std = (
        tuple(getattr(settings, name) if name in settings.typed or not trained else trained)
        for name, trained in zip(("mean", "std"), trained_colours(encoder.trained_with), strict=True)
    )
    return mean, std
