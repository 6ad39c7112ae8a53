"""A run's folder as a value: what it recorded, its checkpoint, encoder and tree, and what is written beside them."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from solo_hcsc.data.folders import BareImages, listed, tell_listing
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.sets import one_split
from solo_hcsc.data.source import DEFAULTS, ClassLevel, ImageSource
from solo_hcsc.data.stored import stored_images
from solo_hcsc.data.views import evaluation_transforms
from solo_hcsc.encoders.at_hand import is_auto
from solo_hcsc.encoders.checkpoints import Checkpoint, open_checkpoint
from solo_hcsc.encoders.embedding import Embedder, Embeddings, Origin, choose_device
from solo_hcsc.encoders.images import images_given, images_in_folder, images_of
from solo_hcsc.encoders.loading import Encoder, check_arguments, encoder_in, load_encoder
from solo_hcsc.encoders.recorded import RunFiles, find_run, is_timm
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.runs.exporting import refuse_evaluation, write_export
from solo_hcsc.runs.images import choose_labels, embedded_images
from solo_hcsc.runs.results import Invocation, Result, beside, read_metrics, results_of
from solo_hcsc.settings import Settings
from solo_hcsc.tables import data_frame

if TYPE_CHECKING:
    import pandas

    from solo_hcsc.runs.methods import RunTree


class Run:
    """A run, or a file of weights: what `open_run` and `pretrain` return.

    `args.json` is read once, and the checkpoint found and read once, when they are first needed.

    Args:
        files: the run's checkpoints and settings, as `find_run` found them.
        encoder: the architecture, where the run did not record it.
        encoder_args: settings of a `timm/NAME`, each as `key=value`, where the run did not record them.
        crop_size: side of the images in pixels; the run's own if not given.
        mean: of each colour; the run's own if not given.
        std: of each colour; the same.
    """

    def __init__(
        self,
        files: RunFiles,
        encoder: str | None = None,
        encoder_args: Sequence[str] = (),
        crop_size: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self.files = files
        self._architecture = (encoder, encoder_args)
        self._crop_size = crop_size
        self._colours = (mean, std)
        self._encoders: dict[int | None, Encoder] = {}

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def folder(self) -> Path:
        """Return the folder that the checkpoint lies in."""
        return self.files.folder

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return what the run was trained with; empty for foreign weights."""
        return self.files.settings

    @property
    def method(self) -> str | None:
        """Return the method's name; None for foreign weights."""
        return self.settings.get("method")

    @property
    def checkpoint(self) -> Path:
        """Return the checkpoint that got furthest; `timm/NAME` for weights that timm has."""
        return self.files.checkpoints[0] if self.files.is_timm else self.content.path

    @cached_property
    def content(self) -> Checkpoint:
        """Return what is in the checkpoint."""
        return open_checkpoint(self.files)

    @property
    def encoder(self) -> Encoder:
        """Return the encoder, for images of the run's own size."""
        return self.encoder_for(self._crop_size)

    def encoder_for(self, crop_size: int | None) -> Encoder:
        """Return the encoder for images of another size, in pixels; loaded once for each."""
        if crop_size not in self._encoders:
            architecture, arguments = self._architecture
            if self.files.is_timm:
                found = load_encoder(self.checkpoint, None, crop_size, arguments, *self._colours)
            else:
                found = encoder_in(self.content, architecture, crop_size, arguments, *self._colours)
            self._encoders[crop_size] = found
        return self._encoders[crop_size]

    def seen(self, source: ImageSource, typed: Collection[str]) -> ImageSource:
        """Return images as weights of timm's are shown them, but for what was typed; for other weights the same."""
        if not self.files.is_timm:
            return source
        view = self.encoder_for(source.crop_size[0] if "crop_size" in typed else None).view
        own: dict[str, Any] = {"crop_size": (view.crop_size,), "mean": view.mean, "std": view.std}
        return replace(source, **{name: value for name, value in own.items() if value and name not in typed})

    @cached_property
    def tree(self) -> "RunTree | None":
        """Return the tree of an HCSC run; None for another method, or before the first clustering."""
        if self.files.is_timm or not any(name.startswith("coding.") for name in self.content.weights):
            return None  # known without solo-learn
        from solo_hcsc.runs.methods import tree_in

        return tree_in(self.content)

    def why_no_tree(self) -> str:
        """Say why `tree` is None."""
        if self.method == "hcsc":
            return f"{self.checkpoint} carries no tree: it is from before the run's first clustering"
        return f"{self.checkpoint} carries no tree: only runs of hcsc do"

    @cached_property
    def projector(self) -> nn.Module:
        """Return what the method put on top of the encoder."""
        from solo_hcsc.runs.methods import load_projector

        return load_projector(self.content)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what was wrong with the run when its checkpoint was written."""
        return self.encoder.warnings

    def embed(
        self,
        images: Any = None,
        *,
        split: str = "train",
        no_labels: bool = False,
        class_level: ClassLevel = None,
        features: str = "backbone",
        batch_size: int = 128,
        num_workers: int = 0,
        accelerator: str = "auto",
        skip_unreadable: bool = False,
        cache: str | Path | None = None,
    ) -> Embeddings:
        """Compute the embeddings of images; see `embed` for the arguments."""
        check_arguments(batch_size=batch_size, num_workers=num_workers, cache=cache)
        embedder = self.embedder(
            images,
            split=split,
            no_labels=no_labels,
            class_level=class_level,
            features=features,
            accelerator=accelerator,
            cache=cache,
        )
        return embedder.embeddings(Loading(batch_size, num_workers, skip_unreadable))

    def embedder(
        self,
        images: Any = None,
        *,
        split: str = "train",
        no_labels: bool = False,
        class_level: ClassLevel = None,
        features: str = "backbone",
        accelerator: str = "auto",
        tree: bool = True,
        by_tree: bool = False,
        cache: str | Path | None = None,
    ) -> Embedder:
        """Prepare to embed images: what `embed` does in one step, for more of them than fit in memory.

        Args:
            images: as for `embed`, or an `ImageSource` whose folders are there.
            split: `train` or `val` of the run's own images.
            no_labels: whether class folders are no labels.
            class_level: which folder is an image's class, from 1, or `leaf`.
            features: `backbone` or `projector`.
            accelerator: `auto`, `cpu` or `gpu`.
            tree: whether to find the images' places in the run's tree.
            by_tree: whether the features are those of the encoder that the tree was made by, in one pass with these.
            cache: a folder that keeps the vectors of image files; see `embed`.
        """
        check_arguments(split=split, features=features, accelerator=accelerator)
        if images is None and "dataset" not in self.settings:
            raise ArgumentError("`images`: give them; no run has recorded which ones were trained on")
        if images is None or isinstance(images, str | os.PathLike):
            images = self._source(images, split, no_labels, class_level)
        if isinstance(images, ImageSource):
            encoder = self.encoder_for(images.crop_size[0])
            if images.in_folders:
                dataset = BareImages(images.folder(split), evaluation_transforms(images)[1])
                tell_listing(dataset)
                dataset = listed(dataset, images, split)
                found = images_in_folder(dataset, images.class_level, images.no_labels)
            elif images.is_stored:
                stored = stored_images(images, split, evaluation_transforms(images)[1], partly=True)
                found = images_of(listed(stored, images, split))
            else:
                found = images_of(one_split(images, split), split)
        else:
            encoder = self.encoder
            found = images_given(images, encoder.view)
        own = self.tree if tree else None
        if own is not None:
            import_faiss("an HCSC run finds clusters")
        origin = Origin(encoder, features, images if isinstance(images, ImageSource) else None, split)
        projector = self.projector if features == "projector" else None
        kept = None if cache is None else Path(cache)
        return Embedder(origin, found, choose_device(accelerator), projector, own, kept, by_tree)

    def curves(self) -> "pandas.DataFrame":
        """Return what the run logged in metrics.csv: a row for each epoch, with its last value of each measure."""
        file = self.folder / "metrics.csv"
        if not file.is_file():
            raise UserError(f"{self.folder}: no metrics.csv there, which a pretraining run of ours writes")
        found = read_metrics(file, lambda name: name not in ("epoch", "step"))
        return data_frame(found).sort_index().rename_axis("epoch")

    def results(self) -> "pandas.DataFrame":
        """Return what evaluations found for this checkpoint: a row for each, with its metrics and its file."""
        found = results_of(self.checkpoint, self.encoder.fingerprint)
        rows = [{name: one.get(name) for name in ("evaluation", "dataset")} | one["metrics"] for one in found]
        return data_frame([row | {"file": one["file"]} for row, one in zip(rows, found, strict=True)])

    def save(self, result: Result, name: str | None = None, invocation: Invocation | None = None) -> Path:
        """Write a result beside the checkpoint, in place of an earlier one of the same evaluation and data.

        Args:
            result: what an evaluation returned.
            name: of its file, before the data set's name; the evaluation's if not given.
            invocation: the command that asked for it.
        """
        file = beside(self.checkpoint, name or result.evaluation, result.data["name"], result.data.get("data_dir"))
        return result.of(self.encoder, invocation).save(file)

    def export(self, path: str | Path, format: str = "safetensors", method: str | None = None) -> Path:
        """Write the encoder for another library or the hub, or the run as a folder for solo-learn; return its path.

        Args:
            path: the file, or the folder.
            format: `timm`, `torchvision`, `safetensors`, `onnx`, `detectron2`, `hub` or `solo-learn`.
            method: what trained foreign weights, for the file's metadata.
        """
        refuse_evaluation(self.content)  # before its encoder is looked for
        return write_export(self.encoder, self.content, Path(path), format, method).path

    def _source(
        self, folder: str | os.PathLike[str] | None, split: str, no_labels: bool, class_level: ClassLevel
    ) -> ImageSource:
        """Return the images of a folder, or the run's own."""
        given: dict[str, Any] = {} if folder is None else {"data_dir": Path(folder)}
        given |= {} if class_level is None else {"class_level": class_level}
        given |= {} if self._crop_size is None else {"crop_size": [self._crop_size]}
        colours = zip(("mean", "std"), self._colours, strict=True)
        given |= {name: [*map(float, values)] for name, values in colours if values is not None}
        values: dict[str, Any] = DEFAULTS | given | {"split": split, "no_labels": no_labels}
        flags = Settings(given=given, typed=given, **values)
        return choose_labels(embedded_images(flags, self.settings), flags, self.settings)


class _EncoderAlone(Run):
    """An encoder that is in memory, embedding images as a run does."""

    tree = None

    def __init__(self, encoder: Encoder) -> None:
        view = encoder.view
        files = RunFiles((encoder.checkpoint,), encoder.trained_with)
        super().__init__(files, None, (), view.crop_size, view.mean, view.std)
        self._encoder = encoder

    def encoder_for(self, crop_size: int | None) -> Encoder:
        return self._encoder

    @property
    def projector(self) -> nn.Module:
        raise ArgumentError("`features` projector: an encoder has none; give the path of its run, or the run")


def open_run(
    path: str | Path,
    encoder: str | None = None,
    encoder_args: Sequence[str] = (),
    crop_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Run:
    """Open a run, or a file of weights of any origin.

    Args:
        path: the run's folder, a folder above it, of whose runs the newest is taken, or a checkpoint.
        encoder: the architecture of a checkpoint without args.json.
        encoder_args: settings of a `timm/NAME`, each as `key=value`, for a checkpoint without args.json.
        crop_size: side of the images in pixels; as in pretraining if not given.
        mean: of each colour, by which images are normalised; as in pretraining if not given, or ImageNet's.
        std: of each colour; the same.

    Returns:
        The run; nothing but its settings is read yet.

    Example:
        >>> run = open_run("trained_models/hcsc")  # doctest: +SKIP
        >>> run.method, run.encoder.name, run.tree.hierarchy.num_levels  # doctest: +SKIP
        ('hcsc', 'resnet18', 3)
    """
    view = {"crop_size": crop_size, "mean": mean, "std": std}
    check_arguments(path=path, encoder=encoder, encoder_args=encoder_args, **view)
    return Run(find_run(path), encoder, encoder_args, crop_size, mean, std)


def embed(
    what: Run | Encoder | str | Path,
    images: Any = None,
    *,
    split: str = "train",
    no_labels: bool = False,
    class_level: ClassLevel = None,
    features: str = "backbone",
    encoder: str | None = None,
    encoder_args: Sequence[str] = (),
    crop_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_size: int = 128,
    num_workers: int = 0,
    accelerator: str = "auto",
    skip_unreadable: bool = False,
    cache: str | Path | None = None,
) -> Embeddings:
    """Compute the embeddings of images by a run, a file of weights or one of timm's models.

    Args:
        what: a `Run`, an `Encoder`, the path of a run or of weights, `timm/NAME`, or `auto` for the best weights that
            this machine has (see `at_hand.weights_at_hand`).
        images: a folder, with class folders or not; a list of paths or of PIL images; a batch (N, 3, H, W) that is
            normalised; or a data set of (image, label). The run's own images if not given.
        split: `train` or `val` of the run's own images.
        no_labels: whether class folders are no labels.
        class_level: which folder is an image's class: 1, the first below the folder, 2 the second, ..., or `leaf`.
        features: `backbone`, the encoder's, or `projector`, what the method's projector makes of them.
        encoder: the architecture of a checkpoint without args.json.
        encoder_args: settings of a `timm/NAME`, each as `key=value`, for a checkpoint without args.json.
        crop_size: side of the images in pixels; as in pretraining if not given.
        mean: of each colour, by which images are normalised; as in pretraining if not given, or ImageNet's.
        std: of each colour; the same.
        batch_size: images per forward pass.
        num_workers: processes that load images.
        accelerator: `auto`, `cpu` or `gpu`.
        skip_unreadable: leave out images that cannot be read, which else end it with an error.
        cache: a folder that keeps the vectors of image files, from which those come that have not changed since the
            same encoder embedded them; nothing is kept if not given. The commands use the user's folder for caches.

    Returns:
        A row for each image, all in memory; the command `embed` writes any number of them to disk.

    Example:
        >>> found = embed("trained_models/hcsc", "photos")  # doctest: +SKIP
        >>> found.paths[0], found.vectors.shape, found.clusters.shape  # doctest: +SKIP
        ('cats/1.jpg', (2000, 512), (2000, 3))
    """
    given: dict[str, Any] = {"encoder": encoder, "encoder_args": encoder_args, "crop_size": crop_size}
    given |= {"mean": mean, "std": std}
    if not isinstance(what, Run | Encoder):
        check_arguments(what=what, **given)
        what = load_encoder(what, **given) if is_timm(what) or is_auto(what) else open_run(what, **given)
    elif changed := [name for name, value in given.items() if value is not None and value != ()]:
        raise ArgumentError(f"`{changed[0]}` is for a path: `what` is {type(what).__name__}, which has its own")
    run = _EncoderAlone(what) if isinstance(what, Encoder) else what
    return run.embed(
        images,
        split=split,
        no_labels=no_labels,
        class_level=class_level,
        features=features,
        batch_size=batch_size,
        num_workers=num_workers,
        accelerator=accelerator,
        skip_unreadable=skip_unreadable,
        cache=cache,
    )


def export(what: Run | str | Path, path: str | Path, format: str = "safetensors", method: str | None = None) -> Path:
    """Write the encoder of a run, or of a file of weights, for another library or the hub.

    Args:
        what: a `Run`, or the path of a run or of weights.
        path: the file; for `hub` and `solo-learn` a folder that is new or empty.
        format: `timm`, `torchvision`, `safetensors`, `onnx`, `detectron2`, `hub`, or `solo-learn` for the whole run.
        method: what trained foreign weights, for the file's metadata.

    Returns:
        The path. The command `export` writes a model card beside it too.

    Example:
        >>> export("trained_models/hcsc", "encoder.safetensors", format="timm")  # doctest: +SKIP
        PosixPath('encoder.safetensors')
    """
    run = what if isinstance(what, Run) else open_run(what)
    return run.export(path, format, method)
