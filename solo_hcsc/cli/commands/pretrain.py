"""`solo-hcsc pretrain`: trains any solo-learn method, with solo-learn's flags."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.cli.flags import add, pretraining_parser
from solo_hcsc.cli.parser import Parser
from solo_hcsc.data.source import ImageSource
from solo_hcsc.hcsc.options import PRESETS, Options
from solo_hcsc.methods.names import METHODS
from solo_hcsc.methods.settings import OWN, check_method
from solo_hcsc.settings import Settings, rows_of
from solo_hcsc.training.request import check_early, completed
from solo_hcsc.training.settings import DEFAULT_METHOD


def run(argv: Sequence[str]) -> None:
    refuse_early(argv)
    flags = typed(argv)

    from solo_hcsc.training.pretraining import pretrain_as

    done = pretrain_as(flags)
    if done.session is not None:
        done.session.report(done.started, next_command(done.folder, done.source, done.has_tree), done.warnings)


def next_command(folder: Path, source: ImageSource, has_tree: bool) -> str:
    """Return the command that a user would try first, on the run's own images."""
    if source.no_labels and has_tree:
        return f"solo-hcsc explore {shlex.quote(str(folder))} --out {shlex.quote(str(folder / 'explore'))}"
    if source.no_labels:
        return f"solo-hcsc analyse --pretrained_feature_extractor {shlex.quote(str(folder))}"
    words = ["--pretrained_feature_extractor", folder]
    if source.dataset == "custom" and source.val_dir is None:
        words += ["--val_dir", "LABELLED_IMAGES"]
    return f"solo-hcsc knn {shlex.join(map(str, words))}"


def check_images(flags: Settings, images: int) -> None:
    """Refuse what `run` would on so many training images, without a word and without reading them."""
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()):
        job = resolve(flags)
        batches_of(job, images)
        suited(job, images)


def batches_of(job: "Job", images: int) -> int:
    """Return the batches of an epoch with so many images."""
    from solo_hcsc.training.run import batches_per_epoch

    share = job.flags.data_fraction
    source = "--train_dir" if share == 1 else f"--data_fraction {share:g}"
    return batches_per_epoch(source, images, job.loading.batch_size, job.devices, job.loop)


# ---- from the flags to what trains ----


@dataclass(frozen=True)
class Job:
    """What the flags of a pretraining mean."""

    flags: Settings  # as typed
    method: type
    source: ImageSource
    loading: "Loading"
    devices: Devices
    loop: Loop
    records: Records
    wandb: Wandb
    dali_device: str | None
    folder: Path  # of the run to be
    settings: Mapping[str, Any]  # every flag as solo-learn's own setup resolves it
    start: "nn.Module | None"  # an encoder with the weights of --init_weights, if no checkpoint may replace them


@dataclass(frozen=True)
class Work:
    """What trains, and on what."""

    started: float
    model: "LightningModule"
    train_set: "Dataset"
    val_set: "Dataset | None"
    flags: Mapping[str, Any]  # what args.json is to have

    @property
    def images(self) -> int:
        return len(self.train_set)  # type: ignore[arg-type]


def resolve(flags: Settings) -> Job:
    """Check the flags, and resolve them for this machine and this data set."""
    import torch

    from solo_hcsc.data.loaders import Loading
    from solo_hcsc.encoders.recorded import recorded_flags
    from solo_hcsc.solo102 import load_methods
    from solo_hcsc.solo102.method import HCSC
    from solo_hcsc.solo102.settings import pretraining_settings, resolve_dali
    from solo_hcsc.training.run import new_folder

    method = load_methods()[flags.method]
    check_flags(flags)
    shorter = shorten(flags)
    if shorter and flags.resume_from_checkpoint is None:
        told = " ".join(f"--{name} {value}" for name, value in shorter.items())
        say(f"{told}: shorter than usual, since --max_epochs is {flags.max_epochs}")
    devices = resolve_devices(flags, torch.cuda.device_count())
    dali_device = resolve_dali(flags, flags.dataset, devices.accelerator)
    name = flags.name or f"{flags.method}-{flags.dataset}"
    records, wandb = take(Records, flags, name=name), take(Wandb, flags, name=name)
    check_wandb(wandb)
    source = ImageSource.of_flags(flags).located(needs_val=False)
    settings = pretraining_settings(flags, source, devices, dali_device)
    settings |= {"name": name, "role": "pretraining", **shorter}
    if flags.method == "dino" and flags.warmup_teacher_temperature_epochs > flags.max_epochs:
        note(f"--warmup_teacher_temperature_epochs: shortened to the run's {flags.max_epochs} epochs")
        settings["warmup_teacher_temperature_epochs"] = flags.max_epochs
    batch = flags.batch_size * devices.processes
    if issubclass(method, HCSC):
        method.check_batch(settings, batch)
    check_queue(flags, devices, batch)
    start = None
    if flags.resume_from_checkpoint is not None and flags.init_weights is None:
        settings["init_weights"] = recorded_flags(flags.resume_from_checkpoint).get("init_weights")
    elif flags.init_weights is not None and not (flags.resume_from_checkpoint or flags.auto_resume):
        start = initial_encoder(flags, settings, source)
    return Job(
        flags,
        method,
        source,
        take(Loading, flags),
        devices,
        take(Loop, flags),
        records,
        wandb,
        dali_device,
        new_folder(records, flags.method),
        settings,
        start,
    )


def initial_encoder(flags: Settings, settings: Mapping[str, Any], source: ImageSource) -> "nn.Module":
    """Build an encoder with the weights of --init_weights; say what was taken, and timm's colours if they differ."""
    from solo_hcsc.runs.encoders import load_initial
    from solo_hcsc.solo102.encoders import timm_colours

    start, taken = load_initial(flags.init_weights, flags.encoder, settings["backbone_args"])
    say(taken)
    for name, value in (timm_colours(flags.encoder) if flags.init_weights == "timm" else {}).items():
        differs = any(abs(a - b) > 0.01 for a, b in zip(value, getattr(source, name), strict=True))
        if differs and source.dataset == "custom":
            say(f"--{name}: these weights were trained with {' '.join(map(str, value))}")
    return start


def begin_from_weights(job: Job, model: "LightningModule") -> None:
    """Give the encoder, and the momentum encoder if there is one, the weights of --init_weights."""
    if job.flags.init_weights is None:
        return
    start = job.start or initial_encoder(job.flags, job.settings, job.source)
    for name in {"encoder", "momentum_encoder"} & model._modules.keys():
        model.get_submodule(name).load_state_dict(start.state_dict())


def prepare(job: Job) -> Work:
    """Seed, read the lists of images, and make the method; write nothing."""
    from pytorch_lightning import seed_everything

    from solo_hcsc.data.folders import classes_of, fingerprint, whole
    from solo_hcsc.data.images import BACKGROUND, SkipUnreadable, UnreadableFiles
    from solo_hcsc.solo102.datasets import Augmentation, centre_crops, pretraining_set, validation_set
    from solo_hcsc.solo102.method import HCSC
    from solo_hcsc.solo102.settings import for_framework

    flags, source, method = job.flags, job.source, job.method
    seed_everything(job.loop.seed, workers=True)
    started = time.monotonic()
    augmentation = Augmentation.of(job.settings, source)
    transform = augmentation.transform()
    if flags.debug_augmentations:
        print(transform)
    train_set = pretraining_set(source, transform, flags.data_fraction, job.loop.seed)
    val_set = validation_set(source, train_set)
    if val_set is None and flags.knn_eval:
        raise UserError("--knn_eval needs labelled validation images; give --val_dir, or leave it out")
    if val_set is None and flags.keep_best:
        raise UserError(f"--keep_best {flags.keep_best} needs labelled validation images; give --val_dir")

    settings = {**job.settings, "num_images": len(train_set)}  # type: ignore[arg-type]
    if (source.dataset == "custom" or source.class_level is not None) and not source.no_labels:
        settings["num_classes"] = classes_of(whole(train_set))
    true_labels = None
    if issubclass(method, HCSC) and settings["oracle_labels"]:
        true_labels = oracle(train_set, source, flags.label_hierarchy)
        settings |= {"num_prototypes": [int(level.max()) + 1 for level in true_labels.T], "min_cluster_size": 0}
    else:
        batches_of(job, len(train_set))  # type: ignore[arg-type]
        settings |= suited(job, len(train_set))  # type: ignore[arg-type]
    if source.in_folders:
        settings |= {"images": fingerprint(train_set, source.folder("train")), "background": BACKGROUND}
    crops = None
    if job.dali_device is not None:
        from solo_hcsc.solo102 import dali  # an optional package that takes seconds to import

        decoding = dali.Decoding.of(job.dali_device, job.loading, job.loop.seed)
        method = dali.pretraining_class(method, train_set, augmentation, decoding)
        crops = dali.centre_crops(train_set, source, decoding)
    if flags.skip_unreadable:
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
    from solo_hcsc.hcsc.options import levels_for, options_in
    from solo_hcsc.solo102.method import HCSC

    flags, settings = job.flags, job.settings
    if issubclass(job.method, HCSC):
        if settings["oracle_labels"]:
            return {}
        chosen: dict[str, Any] = job.method.choose_levels(settings, images)
        options_in({**settings, **chosen}).check_images(images)
        return chosen
    goes_on = flags.resume_from_checkpoint is not None  # with what it began with
    batch = flags.batch_size * job.devices.processes
    if flags.method in _WHOLE_BATCHES and "queue_size" not in flags.typed and not goes_on:
        size = max(1, min(flags.queue_size, images) // batch) * batch
        if size != flags.queue_size:
            say(f"--queue_size {size}: whole batches, and not more than the {images} images")
        return {"queue_size": size}
    if flags.method == "deepclusterv2":
        seen = batches_of(job, images) * flags.batch_size
        if max(flags.num_prototypes) > seen and "num_prototypes" not in flags.typed and not goes_on:
            count = min(seen, levels_for(images)[0])
            say(f"--num_prototypes {count}: chosen for {images} images")
            return {"num_prototypes": [count] * len(flags.num_prototypes)}
        check_centroids(settings["num_prototypes"], images, seen)
    return {}


def oracle(train_set: "Dataset", source: ImageSource, file: Path | None) -> "torch.Tensor":
    """Return the training images' labels (N, L) at each level of their hierarchy; say that the run has them."""
    import torch

    from solo_hcsc.data.folders import Part, labels_of, whole
    from solo_hcsc.data.label_hierarchy import find_levels, labels_by_level

    if source.no_labels:
        raise UserError("--oracle_labels: there are no labels to take; leave it out, or leave out --no_labels")
    labels = labels_of(whole(train_set))
    chosen = [labels[place] for place in train_set.indices] if isinstance(train_set, Part) else labels
    _, levels_of = find_levels(file, source.dataset)
    found = labels_by_level(chosen, levels_of(whole(train_set).classes))  # type: ignore[attr-defined]
    told = " ".join(str(level.max() + 1) for level in found.T)
    note(f"--oracle_labels: the tree is made of the true labels ({told}); this run is not self-supervised")
    return torch.from_numpy(found)


def callbacks(job: Job, work: Work) -> list[Any]:
    """Build the callbacks that this run has beside those of every run."""
    from solo_hcsc.data.images import SkipUnreadable
    from solo_hcsc.training.callbacks import TellUnreadable
    from solo_hcsc.training.convolutions import FastConvolutions
    from solo_hcsc.training.warm_start import GentleStart

    found: list[Any] = []
    if job.flags.auto_umap:
        from solo_hcsc.solo102.repairs.umap import AutoUMAP  # an optional package that takes seconds to import

        folder = job.flags.auto_umap_dir / job.flags.method
        named = Namespace(**job.settings)  # of which it reads the name
        found.append(AutoUMAP(named, logdir=folder, frequency=job.flags.auto_umap_frequency))
    if isinstance(work.train_set, SkipUnreadable):
        images = work.images + (0 if work.val_set is None else len(work.val_set))  # type: ignore[arg-type]
        found.append(TellUnreadable(work.train_set.unreadable, images))
    if job.flags.freeze_encoder_epochs or job.flags.freeze_batchnorm:
        found.append(GentleStart(job.flags.freeze_encoder_epochs, job.flags.freeze_batchnorm))
    if job.devices.accelerator == "cpu":
        found.append(FastConvolutions())
    return found


# ---- the flags ----


def parse(argv: Sequence[str]) -> Settings:
    """Parse the flags, and fill in what was not typed."""
    return completed(typed(argv))


def typed(argv: Sequence[str]) -> Settings:
    """Parse the flags. A method's own come from its class; a help without a method needs none."""
    method = method_in(argv)
    if method is None and {"-h", "--help"} & set(argv):
        pretraining_parser(None).parse(argv)

    from solo_hcsc.solo102 import load_methods

    return pretraining_parser(load_methods()[method or DEFAULT_METHOD]).parse(argv)


def method_in(argv: Sequence[str]) -> str | None:
    """Return the method that is typed; refuse one that is not there."""
    first = Parser("pretrain", add_help=False)
    first.add_argument("--method")
    method = first.parse_known_args(list(argv))[0].method
    check_method(method or DEFAULT_METHOD)
    return method


def refuse_early(argv: Sequence[str]) -> Settings | None:
    """Refuse mistakes before anything heavy is imported; return the flags without the method's defaults."""
    if {"-h", "--help"} & set(argv):
        return None
    method = method_in(argv) or DEFAULT_METHOD
    parser = pretraining_parser(None)
    add(parser, *(rows_of(Options, PRESETS) if method == "hcsc" else ()), *(OWN if method in METHODS else ()))
    # A method of another package may have any flag.
    flags = completed(parser.parse(argv) if method in METHODS else parser.parse_part(argv)[0])
    check_early(flags)
    return flags
