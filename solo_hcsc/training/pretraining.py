"""Pretraining: from settings to a run's folder."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from pytorch_lightning import LightningModule, seed_everything
from torch import nn
from torch.utils.data import Dataset

from solo_hcsc.data.folders import Part, classes_of, fingerprint, labels_of, whole
from solo_hcsc.data.images import BACKGROUND, SkipUnreadable, UnreadableFiles
from solo_hcsc.data.label_hierarchy import find_levels, labels_by_level
from solo_hcsc.data.loaders import BalancedSampler, Loading, ResumableLoader
from solo_hcsc.data.sets import centre_crops, validation_set
from solo_hcsc.data.source import ImageSource
from solo_hcsc.devices import Devices, resolve_devices
from solo_hcsc.encoders.loading import load_initial
from solo_hcsc.encoders.make import timm_colours
from solo_hcsc.encoders.recorded import recorded_flags
from solo_hcsc.errors import MissingPackage, UserError
from solo_hcsc.hcsc.options import levels_for, longest_warmup, options_in
from solo_hcsc.methods.settings import check_method
from solo_hcsc.progress import note, say, unheard
from solo_hcsc.quiet import hushed
from solo_hcsc.runs.run import Run, open_run
from solo_hcsc.settings import Settings, settle, take
from solo_hcsc.solo102 import load_methods
from solo_hcsc.solo102.datasets import Augmentation, pretraining_set
from solo_hcsc.solo102.method import HCSC
from solo_hcsc.solo102.settings import for_framework, method_rows, pretraining_settings, resolve_dali
from solo_hcsc.training.balancing import BalanceByTree, given_clusters
from solo_hcsc.training.callbacks import TellUnreadable
from solo_hcsc.training.convolutions import FastConvolutions
from solo_hcsc.training.freezing import FreezeEncoder
from solo_hcsc.training.loggers import Logging, check_logging
from solo_hcsc.training.request import (
    WHOLE_BATCHES,
    check_centroids,
    check_early,
    check_method_settings,
    check_queue,
    check_request,
    completed,
    tell_found,
)
from solo_hcsc.training.resume import FinishedError, find_resume
from solo_hcsc.training.session import Session, batches_per_epoch, new_folder
from solo_hcsc.training.settings import DEFAULT_METHOD, Loop, Records, Resume, pretraining
from solo_hcsc.training.waiting import TellWaiting, faster_images
from solo_hcsc.typed import renamed, typed

ONLINE_KNN = (
    "`knn_eval`: val_knn_acc1 is an online figure: its bank is the epoch's augmented views as training saw them. "
    "solo-hcsc knn has plain images in the bank, and is often much higher (docs/evaluation.md)"
)


@typed
def pretrain(
    train: str | PathLike[str],
    val: str | PathLike[str] | None = None,
    *,
    method: str = DEFAULT_METHOD,
    encoder: str = "resnet18",
    epochs: int | None = None,
    batch_size: int | None = None,
    out: str | PathLike[str] = "trained_models",
    **settings: Any,
) -> Run:
    """Train an encoder on a folder of images, and return the run.

    Args:
        train: a folder of images, in class folders or not; or one that has `train`, and maybe `val`, below it. With
            `dataset`, the folder that holds the data set.
        val: a folder of labelled images; they are used to follow the training, never to train.
        method: "hcsc", or any method of solo-learn.
        encoder: one of solo-learn's, or any model of timm as "timm/NAME".
        epochs: epochs to train; 100 if not given.
        batch_size: images per step and process; 128 if not given.
        out: the folder that gets the run's, METHOD/ID.
        **settings: any other setting of `solo-hcsc pretrain` by name, such as `lr=0.03` or `num_prototypes=[60, 6]`.

    Returns:
        The run: its folder, checkpoint, encoder and tree.

    Raises:
        ArgumentError: for an unknown setting, a value outside its bounds, or settings that do not go together.
        UserError: where the images or the machine do not allow it, or the loss is not finite.

    Example:
        >>> run = pretrain("photos/train", "photos/val", encoder="timm/resnet18", epochs=50)  # doctest: +SKIP
        >>> run.method, run.folder  # doctest: +SKIP
        ('hcsc', PosixPath('trained_models/hcsc/2v8gqk1d'))
        >>> pretrain("photos", batchsize=64)
        Traceback (most recent call last):
        solo_hcsc.errors.ArgumentError: unknown setting `batchsize`: did you mean batch_size?
    """
    given = {"data_dir": train, "method": method, "encoder": encoder, "max_epochs": epochs, "batch_size": batch_size}
    given |= {"checkpoint_dir": out} | ({} if val is None else {"val_dir": Path(val).absolute()})
    with hushed(), renamed(data_dir="train", val_dir="val", max_epochs="epochs", checkpoint_dir="out"):
        done = pretrain_as(settled(given | settings))
    return open_run(done.folder)


def settled(given: Mapping[str, Any]) -> Settings:
    """Check settings of pretraining by name, and fill in the defaults of the method."""
    check_method(given.get("method") or DEFAULT_METHOD)
    rows = [row for group in pretraining().values() for row in group]
    return settle(method_rows(load_methods()[given.get("method") or DEFAULT_METHOD], rows), given)


@dataclass(frozen=True)
class Pretrained:
    """A training that came to its end."""

    folder: Path
    source: ImageSource
    session: Session | None  # None where the run had been finished before
    started: float = 0.0
    has_tree: bool = False
    warnings: tuple[str, ...] = ()  # what stands against the run


def pretrain_as(given: Settings) -> Pretrained:
    """Train as settings say; every check comes before the first thing written."""
    settings = completed(given)
    tell_found(given, settings)
    check_early(settings)
    job = resolve(settings)
    work = prepare(job)
    batches = batches_of(job, work.images)
    wanted = take(Resume, settings, recorded=work.recorded, given=settings.given)
    try:
        resume = find_resume(wanted, job.folder.parent, job.loop, work.model)
    except FinishedError as finished:
        if not settings.auto_resume:
            raise
        say(f"nothing to do: {finished}")
        return Pretrained(finished.checkpoint.parent, job.source, None)
    if resume is None:
        begin_from_weights(job, work.model)
    recorded = {**work.recorded, "resume_from_checkpoint": resume}
    train_loader, early = None, []
    if job.dali_device is None:
        balanced = settings.balance == "tree"
        train_loader = job.loading.repeatable(work.train_set, job.loop.seed, job.devices.shards, balanced=balanced)
        early = [balancing(job, work, train_loader)] if balanced else []
    session = Session(
        job.folder, job.devices, job.loop, job.records, job.logging, recorded, resume, callbacks(job, work), early
    )
    val_loader = None if work.val_set is None else job.loading.validation(work.val_set, job.devices.processes)

    session.begin(work.model)
    labels = "no labels" if job.source.no_labels else f"{work.recorded['num_classes']} classes"
    say(
        f"{settings.method} ({settings.encoder}) on {job.source.dataset}: {work.images} images, {labels}; "
        f"{job.devices}; {batches} batches of {job.loading.batch_size} per epoch, "
        f"{job.loop.max_epochs} epochs; writing to {session.folder}"
    )
    if settings.knn_eval:
        say(ONLINE_KNN)
    if resume is not None:
        say(f"resuming from {resume}")
    session.fit(work.model, train_loader, val_loader)
    health, coding = (getattr(work.model, name, None) for name in ("health", "coding"))
    return Pretrained(
        session.checkpoints.folder,
        job.source,
        session,
        work.started,
        coding is not None and coding.hierarchy is not None,
        tuple(sign.text for sign in health.standing) if health else (),
    )


# ---- from settings to what trains ----


@dataclass(frozen=True)
class Job:
    """What the settings of a pretraining mean."""

    asked: Settings  # as they were given
    method: type
    source: ImageSource
    loading: Loading
    devices: Devices
    loop: Loop
    records: Records
    logging: Logging
    dali_device: str | None
    folder: Path  # of the run to be
    settings: Mapping[str, Any]  # every setting as solo-learn's own setup resolves it
    start: nn.Module | None  # an encoder with the weights of `init_weights`, if no checkpoint may replace them


@dataclass(frozen=True)
class Work:
    """What trains, and on what."""

    started: float
    model: LightningModule
    train_set: Dataset
    val_set: Dataset | None
    recorded: Mapping[str, Any]  # what args.json is to have

    @property
    def images(self) -> int:
        return len(self.train_set)  # type: ignore[arg-type]


def resolve(asked: Settings) -> Job:
    """Check the settings, and resolve them for this machine and this data set."""
    method = load_methods()[asked.method]
    check(asked)
    shorter = shorten(asked)
    if shorter and asked.resume_from_checkpoint is None:
        told = " ".join(f"`{name}` {value}" for name, value in shorter.items())
        say(f"{told}: shorter than usual, since `max_epochs` is {asked.max_epochs}")
    devices = resolve_devices(asked, torch.cuda.device_count())
    dali_device = resolve_dali(asked, asked.dataset, devices.accelerator)
    name = asked.name or f"{asked.method}-{asked.dataset}"
    records, logging = take(Records, asked, name=name), take(Logging, asked, name=name)
    check_logging(logging)
    source = ImageSource.of_flags(asked).located(needs_val=False)
    settings = pretraining_settings(asked, source, devices, dali_device)
    settings |= {"name": name, "role": "pretraining", **shorter}
    if asked.method == "dino" and asked.warmup_teacher_temperature_epochs > asked.max_epochs:
        note(f"`warmup_teacher_temperature_epochs`: shortened to the run's {asked.max_epochs} epochs")
        settings["warmup_teacher_temperature_epochs"] = asked.max_epochs
    batch = asked.batch_size * devices.processes
    if issubclass(method, HCSC):
        method.check_batch(settings, batch)
    check_queue(asked, devices.processes)
    start = None
    if asked.resume_from_checkpoint is not None and asked.init_weights is None:
        settings["init_weights"] = recorded_flags(asked.resume_from_checkpoint).get("init_weights")
    elif asked.init_weights is not None and not (asked.resume_from_checkpoint or asked.auto_resume):
        start = initial_encoder(asked, settings, source)
    return Job(
        asked,
        method,
        source,
        take(Loading, asked),
        devices,
        take(Loop, asked),
        records,
        logging,
        dali_device,
        new_folder(records, asked.method),
        settings,
        start,
    )


def initial_encoder(asked: Settings, settings: Mapping[str, Any], source: ImageSource) -> nn.Module:
    """Build an encoder with the weights of `init_weights`; say what was taken, and timm's colours if they differ."""
    start, taken = load_initial(asked.init_weights, asked.encoder, settings["backbone_args"])
    say(taken)
    for name, value in (timm_colours(asked.encoder) if asked.init_weights == "timm" else {}).items():
        differs = any(abs(a - b) > 0.01 for a, b in zip(value, getattr(source, name), strict=True))
        if differs and (source.dataset == "custom" or source.is_stored):
            say(f"`{name}`: these weights were trained with {' '.join(map(str, value))}")
    return start


def begin_from_weights(job: Job, model: LightningModule) -> None:
    """Give the encoder, and the momentum encoder if there is one, the weights of `init_weights`."""
    if job.asked.init_weights is None:
        return
    start = job.start or initial_encoder(job.asked, job.settings, job.source)
    for name in {"encoder", "momentum_encoder"} & model._modules.keys():
        model.get_submodule(name).load_state_dict(start.state_dict())


def prepare(job: Job) -> Work:
    """Seed, read the lists of images, and make the method; write nothing."""
    asked, source, method = job.asked, job.source, job.method
    seed_everything(job.loop.seed, workers=True)
    started = time.monotonic()
    augmentation = Augmentation.of(job.settings, source)
    transform = augmentation.transform()
    if asked.debug_augmentations:
        say(str(transform))
    train_set = pretraining_set(source, transform, asked.data_fraction, job.loop.seed)
    val_set = validation_set(source, train_set)
    if val_set is None and asked.knn_eval:
        raise UserError("`knn_eval` needs labelled validation images; give `val_dir`, or leave it out")
    if val_set is None and asked.keep_best:
        raise UserError(f"`keep_best` {asked.keep_best} needs labelled validation images; give `val_dir`")

    settings = {**job.settings, "num_images": len(train_set)}  # type: ignore[arg-type]
    of_any_classes = source.dataset == "custom" or source.is_stored or source.class_level is not None
    if of_any_classes and not source.no_labels:
        settings["num_classes"] = classes_of(whole(train_set))
    true_labels = None
    if issubclass(method, HCSC) and settings["oracle_labels"]:
        true_labels = oracle(train_set, source, asked.label_hierarchy)
        settings |= {"num_prototypes": [int(level.max()) + 1 for level in true_labels.T], "min_cluster_size": 0}
    else:
        batches_of(job, len(train_set))  # type: ignore[arg-type]
        settings |= suited(job, len(train_set))  # type: ignore[arg-type]
    if source.in_folders or source.is_stored:
        settings |= {"images": fingerprint(train_set, source.folder("train")), "background": BACKGROUND}
    crops = None
    if job.dali_device is not None:
        from solo_hcsc.solo102 import dali  # an optional package that takes seconds to import

        decoding = dali.Decoding.of(job.dali_device, job.loading, job.loop.seed)
        method = dali.pretraining_class(method, train_set, augmentation, decoding)
        crops = dali.centre_crops(train_set, source, decoding)
    if asked.skip_unreadable:
        unreadable = UnreadableFiles(job.folder / "unreadable.txt")
        train_set = SkipUnreadable(train_set, unreadable)
        val_set = None if val_set is None else SkipUnreadable(val_set, unreadable)
    arguments = for_framework(settings, source)
    if issubclass(method, HCSC):
        arguments["centre_crops"] = crops or centre_crops(train_set, source, job.loading)
        arguments["true_labels"] = true_labels
    model = method(**arguments)
    return Work(started, model, train_set, val_set, settings | getattr(model, "resolved_options", {}))


def suited(job: Job, images: int) -> dict[str, Any]:
    """Return the sizes that suit so many images where none were typed, and say so; refuse what cannot be."""
    asked, settings = job.asked, job.settings
    if issubclass(job.method, HCSC):
        if settings["oracle_labels"]:
            return {}
        chosen: dict[str, Any] = job.method.choose_levels(settings, images)
        options_in({**settings, **chosen}).check_images(images)
        return chosen
    goes_on = asked.resume_from_checkpoint is not None  # with what it began with
    batch = asked.batch_size * job.devices.processes
    if asked.method in WHOLE_BATCHES and "queue_size" not in asked.typed and not goes_on:
        size = max(1, min(asked.queue_size, images) // batch) * batch
        if size != asked.queue_size:
            say(f"`queue_size` {size}: whole batches, and not more than the {images} images")
        return {"queue_size": size}
    if asked.method == "deepclusterv2":
        seen = batches_of(job, images) * asked.batch_size
        if max(asked.num_prototypes) > seen and "num_prototypes" not in asked.typed and not goes_on:
            count = min(seen, levels_for(images)[0])
            say(f"`num_prototypes` {count}: chosen for {images} images")
            return {"num_prototypes": [count] * len(asked.num_prototypes)}
        check_centroids(settings["num_prototypes"], images, seen)
    return {}


def check_images(asked: Settings, images: int) -> None:
    """Refuse what `run` would on so many training images, without a word and without reading them."""
    with unheard():
        job = resolve(asked)
        batches_of(job, images)
        suited(job, images)


def batches_of(job: Job, images: int) -> int:
    """Return the batches of an epoch with so many images."""
    share = job.asked.data_fraction
    source = "`train_dir`" if share == 1 else f"`data_fraction` {share:g}"
    return batches_per_epoch(source, images, job.loading.batch_size, job.devices, job.loop)


def oracle(train_set: Dataset, source: ImageSource, file: Path | None) -> torch.Tensor:
    """Return the training images' labels (L, N) at each level of their hierarchy; say that the run has them."""
    if source.no_labels:
        raise UserError("`oracle_labels`: there are no labels to take; leave it out, or leave out `no_labels`")
    labels = labels_of(whole(train_set))
    chosen = [labels[place] for place in train_set.indices] if isinstance(train_set, Part) else labels
    _, levels_of = find_levels(file, source.dataset)
    found = labels_by_level(chosen, levels_of(whole(train_set).classes))  # type: ignore[attr-defined]
    told = " ".join(str(level.max() + 1) for level in found.T)
    note(f"`oracle_labels`: the tree is made of the true labels ({told}); this run is not self-supervised")
    return torch.from_numpy(found)


def balancing(job: Job, work: Work, loader: ResumableLoader) -> BalanceByTree:
    """Build the callback that tells the loader's sampler how often each image is drawn."""
    assert isinstance(loader.sampler, BalancedSampler)
    files = work.train_set.dataset if isinstance(work.train_set, SkipUnreadable) else work.train_set
    tree = job.asked.balance_tree
    clusters = None if tree is None else given_clusters(tree, files, job.source)
    crops = centre_crops(work.train_set, job.source, job.loading)
    return BalanceByTree(loader.sampler, job.asked.balance_strength, clusters, crops)


def callbacks(job: Job, work: Work) -> list[Any]:
    """Build the callbacks that this run has beside those of every run."""
    found: list[Any] = [TellWaiting(faster_images(job.asked))]
    if job.asked.auto_umap:
        from solo_hcsc.solo102.repairs.umap import AutoUMAP  # an optional package that takes seconds to import

        folder = job.asked.auto_umap_dir / job.asked.method
        named = SimpleNamespace(**job.settings)  # of which it reads the name
        found.append(AutoUMAP(named, logdir=folder, frequency=job.asked.auto_umap_frequency))
    if isinstance(work.train_set, SkipUnreadable):
        images = work.images + (0 if work.val_set is None else len(work.val_set))  # type: ignore[arg-type]
        found.append(TellUnreadable(work.train_set.unreadable, images))
    if job.asked.freeze_encoder_epochs or job.asked.freeze_batchnorm:
        found.append(FreezeEncoder(job.asked.freeze_encoder_epochs, job.asked.freeze_batchnorm))
    if job.devices.accelerator == "cpu":
        found.append(FastConvolutions())
    return found


def check(asked: Settings) -> None:
    """Refuse settings that do not go together, before any data is read."""
    check_request(asked)
    method = load_methods()[asked.method]
    if issubclass(method, HCSC):
        method.check_flags(vars(asked) | shorten(asked))
    check_method_settings(asked)
    if asked.auto_umap:
        try:
            import solo_hcsc.solo102.repairs.umap  # noqa: F401  takes seconds, and needs optional packages
        except ImportError:
            raise MissingPackage("`auto_umap`: UMAP is not installed; run: pip install 'solo_hcsc[umap]'") from None


def shorten(asked: Settings) -> dict[str, Any]:
    """Shorten default warm-ups that would take most of a short run, to a fifth of its epochs.

    A run that goes on from a checkpoint keeps what was chosen when it began.
    """
    if asked.resume_from_checkpoint is not None:
        before = recorded_flags(asked.resume_from_checkpoint)
        own = {name: before.get(name) for name in ("warmup_epochs", "queue_size", "num_prototypes")}
        chosen = {**own, **(before.get("hcsc_options") or {})}
        names = {"proto_warmup_epochs", *own} - asked.typed
        return {name: chosen[name] for name in sorted(names & vars(asked).keys()) if chosen.get(name) is not None}
    method, most = load_methods()[asked.method], longest_warmup(asked.max_epochs)
    shorter: dict[str, Any] = {}
    if asked.scheduler == "warmup_cosine" and "warmup_epochs" not in asked.typed and asked.warmup_epochs > most:
        shorter["warmup_epochs"] = most
    if issubclass(method, HCSC):
        shorter |= method.shorten(asked)
    return shorter
