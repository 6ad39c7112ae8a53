"""Train a classifier on a checkpoint's encoder: what linear, semisup, voc and places share."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from pytorch_lightning import Callback, seed_everything
from torch.utils.data import DataLoader, Dataset

from solo_hcsc.data.images import Skipped, SkipUnreadable, UnreadableFiles
from solo_hcsc.data.loaders import EpochSampler, Loading, Place, ResumableLoader, split_place
from solo_hcsc.data.source import ImageSource
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.devices import resolve_devices
from solo_hcsc.encoders.loading import load_encoder
from solo_hcsc.encoders.recorded import EVALUATION
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.evaluation.features import Features, extract, tell_skipped
from solo_hcsc.evaluation.models import Cached
from solo_hcsc.evaluation.rates import Rate, choose_rate
from solo_hcsc.launch import is_main_process
from solo_hcsc.progress import note, say
from solo_hcsc.runs.results import Invocation, Result, describe_data
from solo_hcsc.settings import Settings, take
from solo_hcsc.solo102 import LinearModel
from solo_hcsc.solo102.settings import for_framework, linear_settings, resolve_dali
from solo_hcsc.training.callbacks import TellUnreadable
from solo_hcsc.training.loggers import Logging, check_logging
from solo_hcsc.training.resume import check_same_flags, find_resume
from solo_hcsc.training.session import Session, batches_per_epoch, new_folder
from solo_hcsc.training.settings import Loop, Records, Resume, check_training

# What the paper does not do in any evaluation, and what changes the figures.
PLAIN = {
    "optimizer": "sgd",
    "lars": False,
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
    "limit_train_batches": None,
    "limit_val_batches": None,
    "overfit_batches": 0.0,
    "fast_dev_run": False,
    "max_steps": -1,
    "max_time": None,
}
_RECORDED = (
    "optimizer lr weight_decay extra_optimizer_args lars batch_size max_epochs scheduler lr_decay_steps"
    " precision gpus num_nodes crop_size seed"
).split()


@dataclass(frozen=True)
class Trained:
    """Hold what a classifier's training logged last, its run, its settings and its images."""

    logged: Mapping[str, float]
    run: Session
    settings: Mapping[str, Any]
    data: Mapping[str, Any]

    def accuracies(self, tops: Sequence[int], which: str = "") -> dict[str, float]:
        """Return the top-k accuracies on the validation images; none if nothing was validated."""
        return {f"acc{k}": self.logged[f"{which}val_acc{k}"] for k in tops if f"{which}val_acc{k}" in self.logged}


@dataclass(frozen=True)
class Evaluated:
    """Hold a result, and the session that trained for it."""

    result: Result
    session: Session
    started: float
    next_step: str

    def show(self, remark: str = "", images: str = "of {} images") -> None:
        """Say the table and what stands below it, if anything was validated, and where things are."""
        if self.result.metrics:
            say(self.result.table())
            say("; ".join(filter(None, [images.format(self.result.data["val_images"]), remark])))
            if "features" in self.result.settings:
                say("features were computed once, without augmentation: a quick answer, not the paper's protocol")
        self.tell()

    def tell(self) -> None:
        """Say where things are and what to try next."""
        self.session.report(self.started, self.next_step)


class Probe:
    """Train one classifier, from its settings to the result's file.

    Args:
        evaluation: its name, which the folder and the result's file have.
        settings: all of them; those of solo-learn's linear evaluation, Lightning's, and the evaluation's own.
        source: the images, in folders that are there.
        protocol: the paper's settings, empty where it has none; the result names those that differ.
        images: the argument that a message about too few images names.
        command: as it was typed, for the record; None in a library.
    """

    def __init__(
        self,
        evaluation: str,
        settings: Settings,
        source: ImageSource,
        protocol: Mapping[str, Any],
        images: str = "train_dir",
        command: Invocation | None = None,
    ) -> None:
        self.evaluation, self.given, self.source = evaluation, settings, source
        self.images, self.command = images, command
        self.protocol = {**PLAIN, **protocol} if protocol else {}
        self.cached = "cache_features" in settings and settings.cache_features
        self._known: Features | None = None  # of the training images, once they were needed
        self.devices = resolve_devices(settings, torch.cuda.device_count())
        self.loading, self.loop = take(Loading, settings), take(Loop, settings)
        name = settings.name or f"{evaluation}-{source.dataset}"
        self.records, self.logging = take(Records, settings, name=name), take(Logging, settings, name=name)
        self._check()
        if self.cached and settings.dali:
            note("`cache_features`: each image is read once, with the default loader instead of `dali`")
        self.dali_device = None if self.cached else resolve_dali(settings, source.dataset, self.devices.accelerator)
        check_logging(self.logging)
        self.encoder = load_encoder(
            settings.pretrained_feature_extractor, settings.encoder, source.crop_size[0], settings.encoder_args
        )
        resolved = linear_settings(settings, source, self.devices, self.dali_device, self.encoder.name)
        # The hash is in args.json because a resumed run must have the same encoder.
        self.settings = resolved | {
            "name": name,
            "role": EVALUATION,
            "checkpoint_sha256": self.encoder.fingerprint,
            "backbone_args": self.encoder.settings,
        }
        seed_everything(self.loop.seed, workers=True)
        self.started = time.monotonic()

    def _check(self) -> None:
        check_training(self.given)
        every, epochs = self.loop.check_val_every_n_epoch, self.loop.max_epochs
        if epochs % every:
            raise UserError(
                f"`check_val_every_n_epoch` {every}: must divide `max_epochs` {epochs}, or the last epoch is not "
                "evaluated"
            )
        if self.cached and self.devices.processes > 1:
            raise UserError("`cache_features` works on one device; leave it out, or use `devices` 1")

    def deviations(self, settings: Mapping[str, Any] | None = None) -> list[str]:
        """Return the names of the settings that differ from the paper's protocol."""
        given = self.settings if settings is None else settings
        found = [name for name, value in self.protocol.items() if given[name] != value]
        several = self.devices.processes > 1  # each with a batch of its own
        return [*found, "devices"] if self.protocol and several else found

    @property
    def transforms(self) -> tuple[Callable, Callable]:
        """Return those of training and of validation images; cached features are those of the latter."""
        train, val = evaluation_transforms(self.source)
        return (val, val) if self.cached else (train, val)

    def fit(
        self,
        model_class: type[LinearModel],
        num_classes: int,
        train_set: Dataset,
        val_set: Dataset,
        changes: Mapping[str, Any] = MappingProxyType({}),
    ) -> Trained:
        """Train `model_class`, which gets every setting; `changes` replace some of them, or are added."""
        settings = {**self.settings, "num_classes": num_classes, **changes}
        loading = replace(self.loading, batch_size=settings["batch_size"])
        images, val_images = len(train_set), len(val_set)  # type: ignore[arg-type]
        batches = batches_per_epoch(f"`{self.images}`", images, loading.batch_size, self.devices, self.loop)
        if self.dali_device is not None:
            from solo_hcsc.solo102 import dali  # an optional package that takes seconds to import

            decoding = dali.Decoding.of(self.dali_device, loading, self.loop.seed)
            model_class = dali.linear_class(model_class, train_set, val_set, self.source, decoding)
        backbone = self._stand_in if self.cached else self.encoder.module
        model = model_class(backbone, **for_framework(settings, self.source))
        folder = new_folder(self.records, self.evaluation)
        resume = self._resume(settings, folder.parent, model)
        unreadable = UnreadableFiles(folder / "unreadable.txt")
        callbacks: list[Callback] = []
        if loading.skip_unreadable and not self.cached:
            train_set, val_set = SkipUnreadable(train_set, unreadable), SkipUnreadable(val_set, unreadable)
            callbacks = [TellUnreadable(unreadable, images + val_images)]
        run = Session(folder, self.devices, self.loop, self.records, self.logging, settings, resume, callbacks)
        loaders: tuple[DataLoader | None, DataLoader | None] = (None, None)
        if not self.cached and self.dali_device is None:
            loaders = (
                loading.repeatable(train_set, self.loop.seed, self.devices.shards),
                loading.validation(val_set, self.devices.processes),
            )

        run.begin(model)
        say(self.encoder.taken)
        say(
            f"{self.evaluation} evaluation of {self.encoder.checkpoint} ({self.encoder.name}) on "
            f"{self.source.dataset}: {images} images, {num_classes} classes; {self.devices}; {batches} batches of "
            f"{loading.batch_size} per epoch, {self.loop.max_epochs} epochs; writing to {run.folder}"
        )
        if resume is not None:
            say(f"resuming from {resume}")
        if self.cached:
            features = self._features(train_set, val_set)
            loaders = self._cached_loaders(loading.batch_size, *features)
            skipped = [one for part in features for one in part.skipped]
            tell_skipped(skipped, images + val_images)
            images, val_images = (len(part.y) for part in features)
        run.fit(model, *loaders)
        if not self.cached:
            skipped = [Skipped(-1, path) for path in sorted(unreadable.read())]
        logged = {name: float(value) for name, value in run.trainer.callback_metrics.items()}
        source = replace(self.source, crop_size=tuple(settings["crop_size"]))
        data = describe_data(source, num_classes, skipped, train=images, val=val_images)
        return Trained(logged, run, settings, data)

    def _resume(self, settings: Mapping[str, Any], runs: Path, model: LinearModel) -> Path | None:
        """Return the checkpoint to resume from; only some evaluations look for it below the folder of their `runs`."""
        looks = "auto_resume" in self.given
        others = {} if looks else {"auto_resume": False, "auto_resumer_max_hours": 0}
        resume = take(Resume, self.given, recorded=settings, given=self.given.given, **others)
        found = find_resume(resume, runs, self.loop, model)
        if found is not None:
            check_same_flags(found, settings)
        return found

    def choose_rate(self, num_classes: int, train_set: Dataset, changes: Mapping[str, Any]) -> Rate:
        """Choose the learning rate by training images that are held out; `train_set` shows them as in validation."""
        if self.devices.processes > 1:
            raise ArgumentError("`lr`: is chosen in one process; give it where there are several")
        settings = {**self.settings, "num_classes": num_classes, **changes}
        self._known = self._extracted(train_set, "training features")
        return choose_rate(self._known, self._stand_in, for_framework(settings, self.source), self.loop.seed)

    @property
    def _stand_in(self) -> Cached:
        encoder: Any = self.encoder.module
        return Cached(getattr(encoder, "inplanes", None) or encoder.num_features)

    def _features(self, train_set: Dataset, val_set: Dataset) -> list[Features]:
        """Compute the features of training and validation images, once."""
        known = self._known or self._extracted(train_set, "training features")
        return [known, self._extracted(val_set, "validation features")]

    def _extracted(self, images: Dataset, title: str) -> Features:
        on_gpu = self.devices.accelerator == "gpu"
        device = torch.device("cuda", self.devices.indexes[0]) if on_gpu else torch.device("cpu")
        return extract(self.encoder.module.eval().to(device), images, self.loading, title, device)

    def _cached_loaders(self, size: int, *features: Features) -> tuple[DataLoader, DataLoader]:
        train, val = map(FeatureBatches, features)
        sampler = EpochSampler(train, self.loop.seed, shards=False)
        return (
            ResumableLoader(train, size, sampler=sampler, drop_last=True, collate_fn=_as_it_is),
            DataLoader(val, size, collate_fn=_as_it_is),
        )

    def result(
        self,
        trained: Trained,
        metrics: Mapping[str, float],
        settings: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]],
        columns: Mapping[str, str],
        **data: Any,
    ) -> Evaluated:
        """Return the result, which is also written into the run's folder.

        Args:
            trained: what `fit` returned.
            metrics: none if nothing was validated; then nothing is written.
            settings: the evaluation's own, beside those of the training.
            rows: of the table.
            columns: of the table.
            **data: further facts about the images.
        """
        recorded = {name: trained.settings[name] for name in _RECORDED} | dict(settings)
        recorded["deviations"] = self.deviations(trained.settings)
        if self.cached:
            recorded["features"] = "cached, without augmentation"
        seconds = time.monotonic() - self.started
        described, method = {**trained.data, **data}, self.given.method
        result = Result(self.evaluation, metrics, recorded, described, rows, columns, method=method, seconds=seconds)
        result = result.of(self.encoder, self.command)
        if not metrics:
            say("nothing was validated: no result is written")
        elif is_main_process():
            result.save(trained.run.folder / f"{self.evaluation}.json")
        result = replace(result, origin={**result.origin, "run": trained.run.folder})
        return Evaluated(result, trained.run, self.started, f"solo-hcsc summary {self.records.checkpoint_dir}")


class FeatureBatches(Dataset):
    """Hand out cached features, a batch at a time; every epoch has the same."""

    def __init__(self, features: Features) -> None:
        self.features = features

    def __getitems__(self, places: list[Place]) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.tensor([split_place(place)[1] for place in places])
        return self.features.x[index], self.features.y[index]

    def __len__(self) -> int:
        return len(self.features.y)


def _as_it_is(batch: Any) -> Any:
    return batch
