"""`solo-hcsc pretrain`: trains any solo-learn method, with solo-learn's flags."""

import shlex
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solo_hcsc.cli.flags import (
    METHOD_BOUNDS,
    METHOD_HELP,
    add_augmentation_flags,
    add_dataset_flags,
    add_known_flags,
    add_method_flags,
    add_record_flags,
    add_resume_flags,
    add_trainer_flags,
    check_label_hierarchy,
    check_method,
    check_training,
)
from solo_hcsc.cli.parser import Parser
from solo_hcsc.cli.terminal import in_flags
from solo_hcsc.data.augmentation import AUGMENTATIONS
from solo_hcsc.data.source import ImageSource, check_folder, class_folders, splits_in
from solo_hcsc.devices import Devices, resolve_devices
from solo_hcsc.encoders.names import ENCODERS, TIMM
from solo_hcsc.encoders.recorded import newest_checkpoints
from solo_hcsc.errors import UserError
from solo_hcsc.hcsc.options import PRESETS, Options, options_in
from solo_hcsc.methods.names import METHODS, method_names
from solo_hcsc.progress import note, say
from solo_hcsc.settings import NOT_NEGATIVE, POSITIVE_SHARE, Settings, add_fields, take
from solo_hcsc.training.settings import Loop, Records, Resume, Wandb, check_wandb

if TYPE_CHECKING:
    import torch
    from pytorch_lightning import LightningModule
    from torch import nn
    from torch.utils.data import Dataset

    from solo_hcsc.data.loaders import Loading

# solo-learn's methods that unpack exactly two features and have no term for small crops.
_TWO_CROPS = "barlow_twins deepclusterv2 dino mocov2plus nnbyol nnclr nnsiam ressl simsiam vicreg wmse".split()
DEFAULT_METHOD = "hcsc"
ONLINE_KNN = (
    "--knn_eval: val_knn_acc1 is an online figure: its bank is the epoch's augmented views as training saw them. "
    "solo-hcsc knn has plain images in the bank, and is often much higher (docs/evaluation.md)"
)
_WHOLE_BATCHES = ("mocov2plus", "ressl", "nnclr", "nnbyol", "nnsiam")  # whose queue takes whole batches


def run(argv: Sequence[str]) -> None:
    refuse_early(argv)
    flags = parse(argv)
    tell_found(flags, argv)

    from solo_hcsc.training.resume import FinishedError, find_resume
    from solo_hcsc.training.run import Run

    # ---- every check comes before the first thing written ----
    job = resolve(flags)
    work = prepare(job)
    batches = batches_of(job, work.images)
    try:
        resume = find_resume(
            take(Resume, flags, recorded=work.flags, given=flags.given), job.folder.parent, job.loop, work.model
        )
    except FinishedError as finished:
        if not flags.auto_resume:
            raise
        return say(f"nothing to do: {finished}")
    if resume is None:
        begin_from_weights(job, work.model)
    recorded = {**work.flags, "resume_from_checkpoint": resume}
    session = Run(job.folder, job.devices, job.loop, job.records, job.wandb, recorded, resume, callbacks(job, work))
    train_loader = None
    if job.dali_device is None:
        train_loader = job.loading.repeatable(work.train_set, job.loop.seed, job.devices.shards)
    val_loader = None if work.val_set is None else job.loading.validation(work.val_set, job.devices.processes)

    # ---- the run ----
    session.begin(work.model)
    labels = "no labels" if job.source.no_labels else f"{work.flags['num_classes']} classes"
    say(
        f"{flags.method} ({flags.encoder}) on {job.source.dataset}: {work.images} images, {labels}; "
        f"{job.devices}; {batches} batches of {job.loading.batch_size} per epoch, "
        f"{job.loop.max_epochs} epochs; writing to {session.folder}"
    )
    if flags.knn_eval:
        say(ONLINE_KNN)
    if resume is not None:
        say(f"resuming from {resume}")
    session.fit(work.model, train_loader, val_loader)
    health = getattr(work.model, "health", None)
    warnings = [in_flags(sign.text) for sign in health.standing] if health else []
    coding = getattr(work.model, "coding", None)
    has_tree = coding is not None and coding.hierarchy is not None
    session.report(work.started, next_command(session.folder, job.source, has_tree), warnings)


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
    """Parse the flags. A method's own come from its class; a help without a method needs none."""
    method = method_in(argv)
    if method is None and {"-h", "--help"} & set(argv):
        build_parser(None).parse(argv)
    method = method or DEFAULT_METHOD
    check_method(method)

    from solo_hcsc.solo102 import load_methods

    return completed(build_parser(load_methods()[method]).parse(argv))


def completed(flags: Settings) -> Settings:
    """Fill in what is not typed: the folders of images where only --data_dir is, and the crops of two pipelines."""
    if flags.dataset is None:
        flags = with_folders(flags)
    two_large = pipelines(flags) == 2 and len(set(flags.crop_size)) == 1
    if two_large and "num_crops_per_aug" not in flags.typed:  # as in solo-learn's files before that flag
        return flags.but(num_crops_per_aug=[1, 1])
    return flags


def with_folders(flags: Settings) -> Settings:
    """Take the images in a folder, --data_dir, for the data set: those in its train/ and val/ where it has them.

    Where they are in no class folders, the run is without labels.
    """
    if "data_dir" not in flags.typed and flags.train_dir is None:
        raise UserError("--data_dir is missing: give a folder of images, or --dataset NAME for a known data set")
    check_folder("--data_dir", flags.data_dir)
    train_dir, val_dir = splits_in(flags.data_dir)
    if flags.train_dir is not None:
        train_dir, val_dir = flags.train_dir, flags.val_dir
    found = flags.but(dataset="custom", train_dir=train_dir, val_dir=flags.val_dir or val_dir)
    folder = found.data_dir / train_dir
    if flags.no_labels or flags.class_level is not None or not folder.is_dir() or class_folders(folder):
        return found
    return found.but(no_labels=True)


def tell_found(flags: Settings, argv: Sequence[str]) -> None:
    """Say what `with_folders` found."""
    if any(word.partition("=")[0] == "--dataset" for word in argv):
        return
    val = "" if flags.val_dir is None else f", and of validation in {flags.data_dir / flags.val_dir}"
    say(f"--dataset custom: images in {flags.data_dir / flags.train_dir}{val}")
    if flags.no_labels and "--no_labels" not in argv:
        say(f"without labels: {flags.data_dir / flags.train_dir} has no class folders")


def pipelines(flags: Namespace) -> int:
    """Count the pipelines that the augmentation flags describe."""
    return max(len(getattr(flags, name)) for name in AUGMENTATIONS)


def method_in(argv: Sequence[str]) -> str | None:
    first = Parser("pretrain", add_help=False)
    first.add_argument("--method")
    return first.parse_known_args(list(argv))[0].method


def refuse_early(argv: Sequence[str]) -> Settings | None:
    """Refuse wrong names, values, files and folders before anything heavy is imported.

    Returns:
        The flags without the defaults of the method; None where a help is asked for.
    """
    if {"-h", "--help"} & set(argv):
        return None
    method = method_in(argv) or DEFAULT_METHOD
    check_method(method)
    parser = build_parser(None)
    if method == "hcsc":
        add_fields(parser, Options, PRESETS)
    if method in METHODS:
        add_known_flags(parser)
        flags = parser.parse(argv)
    else:  # of another package, which may have any flag
        flags, _ = parser.parse_part(argv)
    flags = completed(flags)
    if flags.dataset == "custom":
        ImageSource.of_flags(flags).located(needs_val=False).labelled()
    check_shared(flags)
    if method == "hcsc":
        options_in(vars(flags))
    check_label_hierarchy(flags)
    if flags.resume_from_checkpoint is not None:
        if flags.resume_from_checkpoint.is_dir():
            raise UserError(f"{flags.resume_from_checkpoint}: a folder; give a file")
        newest_checkpoints(flags.resume_from_checkpoint)
    if flags.init_weights not in (None, "", "timm"):
        newest_checkpoints(Path(flags.init_weights))
    return flags


def build_parser(method: type | None) -> Parser:
    """Build the parser of all flags, with those of a method's class."""
    parser = Parser(
        "pretrain",
        "Pretrains any solo-learn method. Add --method NAME to see that method's own flags.",
        "--data_dir FOLDER [--method NAME] [--dataset NAME] [flags]",
    )
    group = parser.add_argument_group("method")
    names = ", ".join(method_names())
    group.add_argument("--method", default=DEFAULT_METHOD, metavar="NAME", help=f"one of {names}")
    group = add_dataset_flags(parser)
    alone = "a folder of images, in train/ and val/ below it or not, in class folders or not"
    parser.change("dataset", default=None, help=f"which data set; if not given, --data_dir is {alone}")
    group.add_argument(
        "--data_fraction",
        type=float,
        default=1.0,
        bound=POSITIVE_SHARE,
        help="train on this share of the images, drawn with --seed",
    )
    group.add_argument(
        "--label_hierarchy",
        type=Path,
        help="a text file of lines `child: parent`, which --oracle_labels of hcsc takes the upper levels from; nothing "
        "else reads labels",
    )
    add_augmentation_flags(parser)
    add_method_flags(parser)
    add_trainer_flags(parser, max_epochs=100)
    group = parser.add_argument_group("gentle start, for --init_weights")
    group.add_argument(
        "--freeze_encoder_epochs",
        type=int,
        default=0,
        bound=NOT_NEGATIVE,
        help="first epochs in which the encoder stays as it is, and only what comes after it learns",
    )
    group.add_argument(
        "--freeze_batchnorm",
        action="store_true",
        help="the encoder's batch norms keep the statistics of --init_weights; their scales and shifts learn. In short "
        "runs at another image size new ones cost more than the run gains (docs/when-hcsc.md)",
    )
    group = add_record_flags(parser, best=("val_acc1", "val_knn_acc1"))
    add_resume_flags(group)
    group.add_argument(
        "--auto_umap", action="store_true", help="a UMAP picture of the validation features (needs the extra umap)"
    )
    group.add_argument("--auto_umap_dir", type=Path, default=Path("auto_umap"), help="folder for the UMAP pictures")
    group.add_argument("--auto_umap_frequency", type=int, default=1, help="epochs between UMAP pictures")
    if method is not None:
        method.add_model_specific_args(parser)  # type: ignore[attr-defined]
        parser.explain(METHOD_HELP, METHOD_BOUNDS)
    return parser


def check_flags(flags: Settings) -> None:
    """Refuse flags that do not go together, before any data is read."""
    from solo_hcsc.solo102 import load_methods
    from solo_hcsc.solo102.method import HCSC

    check_shared(flags)
    method = load_methods()[flags.method]
    if issubclass(method, HCSC):
        method.check_flags(vars(flags) | shorten(flags))
    _check_oracle(flags)
    _check_method_flags(flags)
    if flags.auto_umap:
        try:
            import solo_hcsc.solo102.repairs.umap  # noqa: F401  takes seconds, and needs optional packages
        except ImportError:
            raise UserError("--auto_umap: UMAP is not installed; run: pip install 'solo_hcsc[umap]'") from None


def check_shared(flags: Settings) -> None:
    """Refuse flags of any method that do not go together; needs no torch."""
    check_training(flags)
    if flags.scheduler in ("reduce", "exponential"):
        raise UserError(f"--scheduler {flags.scheduler}: pretraining has warmup_cosine, cosine, step and none")
    of_timm = flags.encoder.startswith(TIMM)
    for name in ("zero_init_residual", "patch_size"):
        if of_timm and name in flags.typed:
            raise UserError(f"--{name}: is for solo-learn's own encoders; give timm's settings with --encoder_args")
    if flags.encoder_args and not of_timm:
        raise UserError(f"--encoder_args {flags.encoder_args[0]}: is for --encoder {TIMM}NAME, not {flags.encoder}")
    if flags.freeze_batchnorm and flags.init_weights is None and flags.resume_from_checkpoint is None:
        raise UserError("--freeze_batchnorm: keeps the statistics of --init_weights, and there are none; leave it out")
    if flags.freeze_encoder_epochs >= flags.max_epochs and flags.freeze_encoder_epochs:
        raise UserError(
            f"--freeze_encoder_epochs {flags.freeze_encoder_epochs}: the encoder would never learn in --max_epochs "
            f"{flags.max_epochs}; give fewer"
        )
    size = ImageSource.of_flags(flags).crop_size[0]
    if "vit" in flags.encoder and flags.patch_size > size and not of_timm:
        raise UserError(f"--patch_size {flags.patch_size}: larger than --crop_size {size}")
    _check_data_flags(flags)
    _check_crops(flags)


def shorten(flags: Settings) -> dict[str, Any]:
    """Shorten default warm-ups that would take most of a short run, to a fifth of its epochs.

    A run that goes on from a checkpoint keeps what was chosen when it began.
    """
    from solo_hcsc.encoders.recorded import recorded_flags
    from solo_hcsc.hcsc.options import longest_warmup
    from solo_hcsc.solo102 import load_methods
    from solo_hcsc.solo102.method import HCSC

    if flags.resume_from_checkpoint is not None:
        before = recorded_flags(flags.resume_from_checkpoint)
        own = {name: before.get(name) for name in ("warmup_epochs", "queue_size", "num_prototypes")}
        chosen = {**own, **(before.get("hcsc_options") or {})}
        names = {"proto_warmup_epochs", *own} - flags.typed
        return {name: chosen[name] for name in sorted(names & vars(flags).keys()) if chosen.get(name) is not None}
    method, most = load_methods()[flags.method], longest_warmup(flags.max_epochs)
    shorter: dict[str, Any] = {}
    if flags.scheduler == "warmup_cosine" and "warmup_epochs" not in flags.typed and flags.warmup_epochs > most:
        shorter["warmup_epochs"] = most
    if issubclass(method, HCSC):
        shorter |= method.shorten(flags)
    return shorter


def _check_data_flags(flags: Namespace) -> None:
    if flags.no_labels and flags.dataset != "custom":
        raise UserError(f"--no_labels is for --dataset custom, not {flags.dataset}")
    if flags.no_labels and flags.knn_eval:
        raise UserError("--knn_eval needs labels, and --no_labels says there are none; leave one out")
    if flags.keep_best == "val_knn_acc1" and not flags.knn_eval:
        raise UserError("--keep_best val_knn_acc1 needs --knn_eval, of pretraining; use val_acc1")
    if flags.dali and any(flags.equalization_prob):
        raise UserError("--equalization_prob: --dali cannot equalise; leave out one of them")


def _check_oracle(flags: Namespace) -> None:
    oracle_asked = bool(getattr(flags, "oracle_labels", None))
    if flags.no_labels and oracle_asked:
        raise UserError("--oracle_labels needs labels, and --no_labels says there are none; leave one out")
    if flags.label_hierarchy is not None and not oracle_asked:
        raise UserError(f"--label_hierarchy {flags.label_hierarchy}: is for --oracle_labels alone; leave it out")


def _check_crops(flags: Namespace) -> None:
    count = pipelines(flags)
    for name in AUGMENTATIONS:
        if len(getattr(flags, name)) not in (1, count):
            raise UserError(f"--{name}: give one value, or {count} as the other augmentation flags")
    if len(flags.num_crops_per_aug) != count:
        raise UserError(
            f"--num_crops_per_aug has {len(flags.num_crops_per_aug)} values for {count} augmentation pipelines; "
            "give one number of crops for each, as in --crop_size 224 96 --num_crops_per_aug 2 6"
        )
    lows, highs, sizes = (
        values * count if len(values) == 1 else values for values in (flags.min_scale, flags.max_scale, flags.crop_size)
    )
    for low, high in zip(lows, highs, strict=True):
        if low > high:
            raise UserError(f"--min_scale {low} is larger than --max_scale {high}")
    large = sum(n for n, size in zip(flags.num_crops_per_aug, sizes, strict=True) if size == sizes[0])
    small = sum(flags.num_crops_per_aug) - large
    if large != 2 and flags.method != "wmse":
        raise UserError(f"--num_crops_per_aug: {flags.method} wants two large crops, not {large}")
    if small and flags.method in _TWO_CROPS:
        raise UserError(f"--crop_size: {flags.method} takes no small crops; byol, simclr and swav do")
    if small and flags.encoder in ENCODERS and "resnet" not in flags.encoder:
        raise UserError(f"--encoder {flags.encoder} takes crops of one size; use a resnet, or one of timm's")


def _check_method_flags(flags: Namespace) -> None:
    if flags.method == "wmse" and flags.batch_size % flags.whitening_size:
        raise UserError(f"--whitening_size {flags.whitening_size} must divide --batch_size {flags.batch_size}")
    if flags.method == "wmse" and flags.whitening_eps == 0 and flags.whitening_size <= flags.proj_output_dim:
        raise UserError(
            f"--whitening_size {flags.whitening_size}: wmse cannot whiten {flags.proj_output_dim} dimensions "
            "(--proj_output_dim) of so few images; give more than that, or --whitening_eps above 0"
        )
    if flags.method == "deepclusterv2" and flags.checkpoint_every_n_steps:
        raise UserError("--checkpoint_every_n_steps: deepclusterv2 cannot go on within an epoch; leave it out")
    if flags.method == "deepclusterv2" and len(set(flags.num_prototypes)) > 1:
        raise UserError(f"--num_prototypes: deepclusterv2 wants equal numbers, not {flags.num_prototypes}")
    if "base_tau_momentum" in flags and flags.base_tau_momentum > flags.final_tau_momentum:
        raise UserError(
            f"--base_tau_momentum {flags.base_tau_momentum} is larger than --final_tau_momentum "
            f"{flags.final_tau_momentum}"
        )


def check_queue(flags: Settings, devices: Devices, batch: int) -> None:
    """Refuse a queue that does not suit a `batch` over all processes; `suited` chooses one where none was typed."""
    typed = flags.method in _WHOLE_BATCHES and "queue_size" in flags.typed
    if typed and (flags.queue_size < 1 or flags.queue_size % batch):
        raise UserError(
            f"--queue_size {flags.queue_size}: {flags.method} wants a multiple of the batch over all processes, {batch}"
        )
    if flags.method == "swav" and 0 < flags.queue_size // devices.processes < flags.batch_size:
        raise UserError(f"--queue_size {flags.queue_size} is smaller than one batch over all processes")


def check_centroids(clusters: Sequence[int], images: int, seen: int) -> None:
    """Refuses more clusters than the images that a process has `seen` in an epoch, where DeepCluster v2's begin."""
    if max(clusters) <= seen:
        return
    full = "" if seen == images else f", {seen} of them in the full batches of a process"
    raise UserError(
        f"--num_prototypes {max(clusters)}: more than the training images: there are {images}{full}; "
        f"give at most {seen}"
    )
