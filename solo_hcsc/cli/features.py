"""The features that the commands about few labels compute: of which images, and in whose tree."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.recorded import RunFiles, find_run
from solo_hcsc.errors import UserError
from solo_hcsc.runs.images import check_splits, choose_labels, embedded_images
from solo_hcsc.settings import Settings, take

if TYPE_CHECKING:
    from solo_hcsc.encoders.embedding import Embedder, Embeddings
    from solo_hcsc.runs.run import Run


def find_images(flags: Settings, *splits: str) -> tuple[RunFiles, ImageSource]:
    """Find the run and the images without torch; refuse those that are not there."""
    files = find_run(flags.pretrained_feature_extractor)
    source = embedded_images(flags, files.settings)
    check_splits(source, *splits)
    return files, source


def prepare(run: "Run", source: ImageSource, flags: Settings, split: str, tree: bool = False) -> "Embedder":
    """Prepare to embed the images of a split; `tree`: to find their clusters in the run's tree, too."""
    chosen = choose_labels(source, flags.but(split=split), run.settings)
    return run.embedder(chosen, split=split, features=flags.features, accelerator=flags.accelerator, tree=tree)


def compute(embedder: "Embedder", flags: Settings) -> "Embeddings":
    """Embed the images; say which."""
    from solo_hcsc.data.loaders import Loading

    told = f"{flags.features} features of {embedder.encoder.name}, {embedder.device}"
    print(f"{len(embedder.images)} images, {told}", flush=True)
    return embedder.embeddings(take(Loading, flags))


def check_classes(embedders: "Sequence[Embedder]") -> None:
    """Refuse images without labels, and those of one class."""
    sets = [embedder.images for embedder in embedders]
    if any(one.labels is None or not (one.labels >= 0).any() for one in sets):
        raise UserError("fewlabels compares with true labels: give images in class folders")
    if len(classes := {name for one in sets for name in one.classes}) < 2:
        raise UserError(f"fewlabels needs at least two classes; all images are {min(classes)!r}")


def picks_from_run(run: "Run", flags: Settings) -> bool:
    """Return whether to pick from the run's own tree rather than from one made of the features; say so."""
    if flags.tree == "run" and run.tree is None:
        raise UserError(f"--tree run: {run.checkpoint} carries no tree; leave it out")
    own = run.tree is not None and flags.way != "farthest"
    own = own and (flags.tree == "run" or (flags.tree == "auto" and not run.settings.get("init_weights")))
    if flags.way != "farthest":
        print("picking from the run's own tree" if own else "picking from a tree built from the features")
    return own
