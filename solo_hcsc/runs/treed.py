"""The embeddings of images and the tree that a command works on: the run's own, a saved one, or one that is built."""

from pathlib import Path

import numpy as np

from solo_hcsc.data.folders import files_and_labels
from solo_hcsc.data.loaders import Loading
from solo_hcsc.data.source import ImageSource
from solo_hcsc.encoders.cache import chosen_cache
from solo_hcsc.encoders.embedding import Embedder, Embeddings
from solo_hcsc.encoders.table import placed
from solo_hcsc.errors import ArgumentError, UserError
from solo_hcsc.files import folder_written_whole
from solo_hcsc.hcsc.kmeans import import_faiss
from solo_hcsc.hcsc.vectors import as_unit_vectors
from solo_hcsc.progress import note, say
from solo_hcsc.runs.asked import is_tree, record_tree
from solo_hcsc.runs.images import choose_labels
from solo_hcsc.runs.results import versions
from solo_hcsc.runs.run import Run
from solo_hcsc.settings import Settings, take
from solo_hcsc.trees.building import build_tree
from solo_hcsc.trees.picking import sizes_for
from solo_hcsc.trees.tree import Tree


def prepare(
    run: Run, source: ImageSource, settings: Settings, split: str, tree: bool = False, by_tree: bool = False
) -> Embedder:
    """Prepare to embed the images of a split.

    Args:
        run: whose encoder embeds them.
        source: the images.
        settings: those of `frozen_settings.EMBED`.
        split: `train` or `val`.
        tree: whether to find their clusters in the run's tree, too.
        by_tree: whether the features are those of the encoder that the run's tree was made by: one pass for both.
    """
    chosen = choose_labels(run.seen(source, settings.typed), settings.but(split=split), run.settings)
    told = {"features": settings.features, "accelerator": settings.accelerator, "cache": chosen_cache(settings)}
    return run.embedder(chosen, split=split, tree=tree, by_tree=by_tree, **told)


def compute(embedder: Embedder, settings: Settings) -> Embeddings:
    """Embed the images; say which."""
    told = f"{settings.features} features of {embedder.encoder.name}, {embedder.device}"
    say(f"{len(embedder.images)} images, {told}")
    return embedder.embeddings(take(Loading, settings))


def image_files(embedder: Embedder, found: Embeddings) -> list[str] | None:
    """Return the files of embedded images, in their order; None for images that are no files."""
    dataset = embedder.images.without(found.skipped).dataset
    if hasattr(dataset, "samples") or hasattr(dataset, "images"):
        return files_and_labels(dataset)[0]
    return None


def files_to_hand_over(embedder: Embedder, settings: Settings) -> dict[str, str] | None:
    """Return the file of each path, where `format` needs files; refuse images that are none."""
    if settings.format == "csv":
        return None
    images = embedder.images
    if not (hasattr(images.dataset, "samples") or hasattr(images.dataset, "images")):
        raise ArgumentError(f"`format` {settings.format}: these images are no files in folders; leave it out")
    return dict(zip(images.paths, files_and_labels(images.dataset)[0], strict=True))


def takes_own_tree(run: Run, settings: Settings) -> bool:
    """Return whether to take the run's own tree rather than a saved one or one that is built of the features.

    With `tree` auto it is taken if the run started from random weights: after other weights a tree of the features
    agrees better with labels (benchmarks/README.md).
    """
    if settings.tree == "run" and run.tree is None:
        raise ArgumentError(f"`tree` run: {run.why_no_tree()}; leave it out")
    levels, saved = (vars(settings).get(name) for name in ("levels", "saved"))
    if settings.tree == "run" and levels:
        raise ArgumentError("`levels` are of a tree that is built, and `tree` run means the run's own; leave one out")
    if saved is not None or levels or settings.tree == "features":
        return False
    return run.tree is not None and (settings.tree == "run" or not run.settings.get("init_weights"))


def tree_of(found: Embeddings, settings: Settings) -> tuple[Embeddings, Tree | None]:
    """Return embeddings with clusters, and their tree: the saved one of the settings, or one that is built.

    The tree is None where the embeddings have the clusters of a run's own tree, and where a saved tree has not the same
    images: then each of these has the clusters that it has there, and a new one those of the most similar leaf.
    """
    if found.clusters is not None:
        return found, None
    if settings.saved is not None and not settings.levels:
        return _in_saved(found, _load(settings.saved))
    tree = build(found, settings)
    return placed(found, tree), tree


def picks_from_run(run: Run, settings: Settings) -> bool:
    """Return whether to pick from the run's own tree rather than from another one; say so."""
    own = takes_own_tree(run, settings) and settings.way != "farthest"
    if settings.way != "farthest":
        saved = vars(settings).get("saved")
        built = "a tree built from the features" if saved is None else f"the tree in {saved}"
        say("picking from the run's own tree" if own else f"picking from {built}")
    return own


def clusters_to_pick(found: Embeddings, settings: Settings, wanted: int) -> np.ndarray | None:
    """Return the clusters (N, L) that images are picked from, so many in all; None where `pick` makes them."""
    if found.clusters is not None or not (settings.levels or settings.saved):
        return found.clusters
    found, tree = tree_of(found, settings)
    if tree is None or settings.levels:
        return found.clusters
    sizes = dict.fromkeys(min(size, len(tree.means)) for size in sizes_for(len(found), wanted))
    return np.stack([tree.cut(size) for size in sizes], axis=1)


def clusters_to_spread(found: Embeddings, settings: Settings) -> np.ndarray | None:
    """Return the clusters (N, L) that labels spread in: of a saved tree, or at given levels; None for its own."""
    return grouped(found, settings).clusters if settings.levels or settings.saved else None


def build(found: Embeddings, settings: Settings) -> Tree:
    """Build a tree of embeddings, with the levels of the settings or those that the images have."""
    import_faiss("a tree is built")
    if len(found) < 2:
        raise UserError(f"a tree has at least 2 images, and there is {len(found)}")
    say(f"building a tree of {len(found):,} images")
    return build_tree(found, settings.levels or None)


def grouped(found: Embeddings, settings: Settings) -> Embeddings:
    """Return embeddings with their clusters in the tree of `tree_of`."""
    return tree_of(found, settings)[0]


def save_tree(folder: Path, tree: Tree, found: Embeddings, settings: Settings, command: str = "") -> None:
    """Write a tree, and which settings embed its images, into a folder that commands take in place of a run."""
    assert found.origin is not None, "they were embedded from settings"
    facts = {
        "images": len(tree),
        "levels": list(tree.level_sizes),
        "encoder": found.origin.encoder.name,
        "checkpoint_sha256": found.origin.encoder.fingerprint,
        "versions": versions("pyarrow"),
        "command": command,
    }
    with folder_written_whole(folder, is_tree) as part:
        tree.save(part)
        record_tree(part, settings, facts)


def _load(folder: Path) -> Tree:
    try:
        return Tree.load(folder)
    except ValueError as error:
        raise UserError(str(error)) from None


def _in_saved(found: Embeddings, tree: Tree) -> tuple[Embeddings, Tree | None]:
    """Find where embeddings are in a saved tree."""
    points = as_unit_vectors(found, "embeddings")
    if points.shape[1] != tree.means.shape[1]:
        numbers = f"{tree.means.shape[1]} numbers, not {points.shape[1]}"
        raise UserError(f"the saved tree was built of vectors of {numbers}: build it anew, or give its own weights")
    if tuple(found.paths) == tree.keys:
        return placed(found, tree), tree
    rows = {key: row for row, key in enumerate(tree.keys or ())}
    known = np.array([rows.get(path, -1) for path in found.paths])
    if new := int((known < 0).sum()):
        note(f"{new} images are not in the saved tree: each goes to the cluster of the most similar ones there")
    if gone := len(tree) - int((known >= 0).sum()):
        note(f"{gone} images of the saved tree are not there")
    clusters = tree.levels[known]
    if new:
        clusters[known < 0] = tree.assign(points[known < 0])
    return placed(found, clusters), None
