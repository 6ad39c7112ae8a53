"""What a caller asks of a pretraining: gaps filled in, mistakes refused. Needs neither torch nor solo-learn."""

from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.data.augmentation import AUGMENTATIONS, pipelines
from solo_hcsc.data.settings import check_label_hierarchy
from solo_hcsc.data.source import STORED, ImageSource, check_folder, class_folders, splits_in, stored_kind
from solo_hcsc.encoders.names import ENCODERS, TIMM
from solo_hcsc.encoders.recorded import newest_checkpoints
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.hcsc.options import options_in
from solo_hcsc.progress import say
from solo_hcsc.settings import Settings
from solo_hcsc.training.settings import check_training

WHOLE_BATCHES = ("mocov2plus", "ressl", "nnclr", "nnbyol", "nnsiam")  # whose queue takes whole batches
# solo-learn's methods that unpack exactly two features and have no term for small crops.
_TWO_CROPS = "barlow_twins deepclusterv2 dino mocov2plus nnbyol nnclr nnsiam ressl simsiam vicreg wmse".split()


def completed(settings: Settings) -> Settings:
    """Fill in what was not given: the folders of images where only `data_dir` was, and the crops of two pipelines."""
    if settings.dataset is None:
        settings = _with_folders(settings)
    if settings.dataset in STORED:
        settings = _with_parts(settings)
    two_large = pipelines(settings) == 2 and len(set(settings.crop_size)) == 1
    if two_large and "num_crops_per_aug" not in settings.typed:  # as in solo-learn's files before that flag
        return settings.but(num_crops_per_aug=[1, 1])
    return settings


def _with_folders(settings: Settings) -> Settings:
    """Take the images in a folder, `data_dir`, for the data set: those in its train/ and val/ where it has them.

    Where they are in no class folders, the run is without labels.
    """
    if "data_dir" not in settings.typed and settings.train_dir is None:
        raise ArgumentError("`data_dir` is missing: give a folder of images, or `dataset` NAME for a known data set")
    stored = stored_kind(settings.data_dir)
    if stored is not None:
        return settings.but(dataset=stored)
    check_folder("data_dir", settings.data_dir)
    train_dir, val_dir = splits_in(settings.data_dir)
    if settings.train_dir is not None:
        train_dir, val_dir = settings.train_dir, settings.val_dir
    found = settings.but(dataset="custom", train_dir=train_dir, val_dir=settings.val_dir or val_dir)
    folder = found.data_dir / train_dir
    if found.no_labels or found.class_level is not None or not folder.is_dir() or class_folders(folder):
        return found
    return found.but(no_labels=True)


def _with_parts(settings: Settings) -> Settings:
    """Name the training and the validation images of shards or of a table; without labels where there are none."""
    source = ImageSource.of_flags(settings).located(needs_val=False)
    settings = settings.but(train_dir=source.train_dir, val_dir=source.val_dir)
    return settings if settings.no_labels or source.has_labels("train") else settings.but(no_labels=True)


def tell_found(given: Settings, found: Settings) -> None:
    """Say which images `completed` found."""
    stored = found.dataset in STORED
    if given.dataset is not None and not stored:
        return
    val = "" if found.val_dir is None else f", and of validation in {found.data_dir / found.val_dir}"
    say(f"`dataset` {found.dataset}: images in {found.data_dir / found.train_dir}{val}")
    if found.no_labels and not given.no_labels:
        told = "has none" if stored else "has no class folders"
        say(f"without labels: {found.data_dir / found.train_dir} {told}")


def check_early(settings: Settings) -> None:
    """Refuse wrong values, files and folders."""
    if settings.dataset in ("custom", *STORED):
        ImageSource.of_flags(settings).located(needs_val=False).labelled()
    check_request(settings)
    if settings.method == "hcsc":
        options_in(vars(settings))
    check_label_hierarchy(settings)
    if settings.resume_from_checkpoint is not None:
        if settings.resume_from_checkpoint.is_dir():
            raise UserError(f"{settings.resume_from_checkpoint}: a folder; give a file")
        newest_checkpoints(settings.resume_from_checkpoint)
    if settings.init_weights not in (None, "", "timm") and not settings.auto_resume:  # whose checkpoint has them
        newest_checkpoints(Path(settings.init_weights))


def check_request(settings: Settings) -> None:
    """Refuse settings of any method that do not go together."""
    check_training(settings)
    encoder, size = settings.encoder, ImageSource.of_flags(settings).crop_size[0]
    if settings.scheduler in ("reduce", "exponential"):
        raise ArgumentError(f"`scheduler` {settings.scheduler}: pretraining has warmup_cosine, cosine, step and none")
    of_timm = encoder.startswith(TIMM)
    for name in ("zero_init_residual", "patch_size"):
        if of_timm and name in settings.typed:
            raise ArgumentError(f"`{name}`: is for solo-learn's own encoders; give timm's settings with `encoder_args`")
    if settings.encoder_args and not of_timm:
        raise ArgumentError(f"`encoder_args` {settings.encoder_args[0]}: is for `encoder` {TIMM}NAME, not {encoder}")
    if settings.freeze_batchnorm and settings.init_weights is None and settings.resume_from_checkpoint is None:
        raise ArgumentError(
            "`freeze_batchnorm`: keeps the statistics of `init_weights`, and there are none; leave it out"
        )
    frozen, epochs = settings.freeze_encoder_epochs, settings.max_epochs
    if frozen >= epochs and frozen:
        raise ArgumentError(
            f"`freeze_encoder_epochs` {frozen}: the encoder would never learn in `max_epochs` {epochs}; give fewer"
        )
    if "vit" in encoder and settings.patch_size > size and not of_timm:
        raise ArgumentError(f"`patch_size` {settings.patch_size}: larger than `crop_size` {size}")
    _check_data(settings)
    _check_balance(settings)
    _check_oracle(settings)
    _check_crops(settings)


def _check_data(settings: Settings) -> None:
    if settings.no_labels and settings.dataset not in ("custom", *STORED):
        raise ArgumentError(f"`no_labels` is for `dataset` custom, shards and hf, not {settings.dataset}")
    if settings.no_labels and settings.knn_eval:
        raise ArgumentError("`knn_eval` needs labels, and `no_labels` says there are none; leave one out")
    if settings.keep_best == "val_knn_acc1" and not settings.knn_eval:
        raise ArgumentError("`keep_best` val_knn_acc1 needs `knn_eval`, of pretraining; use val_acc1")
    if settings.dali and any(settings.equalization_prob):
        raise ArgumentError("`equalization_prob`: `dali` cannot equalise; leave out one of them")


def _check_balance(settings: Settings) -> None:
    if settings.balance == "none":
        for name in ("balance_strength", "balance_tree"):
            if name in settings.given:
                raise ArgumentError(f"`{name}`: is for `balance` tree; add it")
        return
    if settings.dali:
        raise ArgumentError("`balance` tree: `dali` draws each image once; leave out one of them")
    if settings.overfit_batches:
        raise ArgumentError("`balance` tree: `overfit_batches` takes the same images in each epoch; leave out one")
    if settings.balance_tree is not None and not (settings.balance_tree / "tree.safetensors").is_file():
        raise ArgumentError(f"`balance_tree` {settings.balance_tree}: no tree.safetensors there; give a saved tree")
    source = ImageSource.of_flags(settings)
    if settings.balance_tree is not None and not (source.in_folders or source.is_stored):
        raise ArgumentError(f"`balance_tree`: `dataset` {settings.dataset} is not in folders; leave it out")


def _check_crops(settings: Settings) -> None:
    count, method, crops = pipelines(settings), settings.method, settings.num_crops_per_aug
    for name in AUGMENTATIONS:
        if len(getattr(settings, name)) not in (1, count):
            raise ArgumentError(f"`{name}`: give one value, or {count} as the other augmentation flags")
    if len(crops) != count:
        raise ArgumentError(
            f"`num_crops_per_aug` has {len(crops)} values for {count} augmentation pipelines; give one number of crops "
            "for each, as in `crop_size` 224 96 `num_crops_per_aug` 2 6"
        )
    lows, highs, sizes = (
        values * count if len(values) == 1 else values
        for values in (settings.min_scale, settings.max_scale, settings.crop_size)
    )
    for low, high in zip(lows, highs, strict=True):
        if low > high:
            raise ArgumentError(f"`min_scale` {low} is larger than `max_scale` {high}")
    large = sum(n for n, size in zip(crops, sizes, strict=True) if size == sizes[0])
    small = sum(crops) - large
    if large != 2 and method != "wmse":
        raise ArgumentError(f"`num_crops_per_aug`: {method} wants two large crops, not {large}")
    if small and method in _TWO_CROPS:
        raise ArgumentError(f"`crop_size`: {method} takes no small crops; byol, simclr and swav do")
    if small and settings.encoder in ENCODERS and "resnet" not in settings.encoder:
        raise ArgumentError(f"`encoder` {settings.encoder} takes crops of one size; use a resnet, or one of timm's")


def _check_oracle(settings: Settings) -> None:
    oracle = bool(getattr(settings, "oracle_labels", None))
    if settings.no_labels and oracle:
        raise ArgumentError("`oracle_labels` needs labels, and `no_labels` says there are none; leave one out")
    if settings.label_hierarchy is not None and not oracle:
        raise ArgumentError(f"`label_hierarchy` {settings.label_hierarchy}: is for `oracle_labels` alone; leave it out")


def check_method_settings(settings: Settings) -> None:
    """Refuse settings of a method that do not go together; it takes the defaults of the method's class."""
    if settings.method == "wmse" and settings.batch_size % settings.whitening_size:
        raise ArgumentError(
            f"`whitening_size` {settings.whitening_size} must divide `batch_size` {settings.batch_size}"
        )
    if (
        settings.method == "wmse"
        and settings.whitening_eps == 0
        and settings.whitening_size <= settings.proj_output_dim
    ):
        raise ArgumentError(
            f"`whitening_size` {settings.whitening_size}: wmse cannot whiten {settings.proj_output_dim} dimensions "
            "(`proj_output_dim`) of so few images; give more than that, or `whitening_eps` above 0"
        )
    if settings.method == "deepclusterv2" and settings.checkpoint_every_n_steps:
        raise ArgumentError("`checkpoint_every_n_steps`: deepclusterv2 cannot go on within an epoch; leave it out")
    if settings.method == "deepclusterv2" and len(set(settings.num_prototypes)) > 1:
        raise ArgumentError(f"`num_prototypes`: deepclusterv2 wants equal numbers, not {settings.num_prototypes}")
    if "base_tau_momentum" in settings and settings.base_tau_momentum > settings.final_tau_momentum:
        raise ArgumentError(
            f"`base_tau_momentum` {settings.base_tau_momentum} is larger than `final_tau_momentum` "
            f"{settings.final_tau_momentum}"
        )


def check_queue(settings: Settings, processes: int) -> None:
    """Refuse a queue that was given and does not suit the batch over all processes."""
    batch = settings.batch_size * processes
    typed = settings.method in WHOLE_BATCHES and "queue_size" in settings.typed
    if typed and (settings.queue_size < 1 or settings.queue_size % batch):
        raise ArgumentError(
            f"`queue_size` {settings.queue_size}: {settings.method} wants a multiple of the batch over all processes, "
            f"{batch}"
        )
    if settings.method == "swav" and 0 < settings.queue_size // processes < settings.batch_size:
        raise ArgumentError(f"`queue_size` {settings.queue_size} is smaller than one batch over all processes")


def check_centroids(clusters: Sequence[int], images: int, seen: int) -> None:
    """Refuse more clusters than the images that a process has `seen` in an epoch, where DeepCluster v2's begin."""
    if max(clusters) <= seen:
        return
    full = "" if seen == images else f", {seen} of them in the full batches of a process"
    raise ArgumentError(
        f"`num_prototypes` {max(clusters)}: more than the training images: there are {images}{full}; "
        f"give at most {seen}"
    )
