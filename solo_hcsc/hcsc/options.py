"""HCSC's options: one frozen dataclass, three presets, and the flags made from them.

The presets differ where the paper and its authors' released code do; `docs/presets.md` has the table with the reasons.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from solo_hcsc.cli.errors import UserError
from solo_hcsc.cli.flags import yes_or_no


def option(default: Any, help: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True)
class Options:
    """Everything that decides what HCSC computes. The defaults are those of preset `recommended`."""

    preset: str = "recommended"

    # ---- sizes and schedule ----
    num_prototypes: tuple[int, ...] = option((3000, 2000, 1000), "prototypes per level, bottom first (M_1 ... M_L)")
    queue_size: int = option(16384, "keys kept as negatives (Q)")
    batch_negatives: bool = option(True, "the batch's other keys are negatives at once, not only in later steps")
    temperature: float = option(0.2, "temperature of the instance loss (tau)")
    epsilon: float = option(10.0, "smoothing of the cluster temperatures (Eq. 3)")
    proto_warmup_epochs: int = option(20, "first epochs without the prototype loss")
    clustering_start: int = option(-1, "epoch of the first clustering and selection; -1: where the warm-up ends")
    recluster_every: int = option(1, "epochs between clusterings")
    proto_weight: float = option(0.2, "weight of the prototype loss")
    proto_ramp_epochs: int = option(5, "epochs over which that weight grows, after the warm-up")
    symmetric: bool = option(False, "each view is query and key, at twice the cost")

    # ---- the paper's ablation ----
    hierarchy: bool = option(True, "use all levels; false: the bottom one only")
    instance_loss: bool = option(True, "use the instance loss (Eq. 6)")
    prototype_loss: bool = option(True, "use the prototype loss (Eq. 9)")
    instance_selection: bool = option(True, "leave out likely false negatives of the instance loss (Eq. 4)")
    prototype_selection: bool = option(True, "leave out related prototypes of the prototype loss (Eq. 7)")

    # ---- where the paper and the released code differ ----
    left_out: str = option("removed", "a left-out negative is removed, or has logit 0", ("removed", "zero_logit"))
    query_cluster: str = option(
        "assignment",
        "a query's cluster: the most similar by Eq. 3, the nearest by cosine, or its image's in k-means, if it had one",
        ("similarity", "cosine", "assignment"),
    )
    icsc_levels: str = option("mean", "the instance loss over levels (Eq. 6)", ("mean", "sum"))
    temperature_members: str = option(
        "images", "what an upper level's temperature is taken over (Eq. 3)", ("images", "children")
    )
    temperature_centre: str = option(
        "prototype",
        "distances in Eq. 3 go to the prototype, or the centroid before normalising",
        ("prototype", "centroid"),
    )
    temperature_scaling: str = option(
        "clipped", "temperatures as Eq. 3 gives them, or clipped and rescaled to mean tau", ("none", "clipped")
    )
    min_cluster_size: int = option(10, "clusters of fewer images are dropped")
    proto_negatives: str = option(
        "all", "candidates: all other prototypes, or only those of no image in the batch", ("all", "outside_batch")
    )
    clamp_probabilities: bool = option(False, "clamp probabilities as the released code: [0, 0.999], [0.0001, 0.999]")
    clustered_encoder: str = option("momentum", "whose embeddings are clustered", ("online", "momentum"))
    clustered_features: str = option(
        "keys",
        "what is clustered: centre crops, by a forward pass; or, once there are enough, averages of each image's keys",
        ("images", "keys"),
    )
    cluster_sample: int = option(0, "images that are clustered at most; 0: all")
    local_views: str = option("mean", "losses of small crops over crops", ("mean", "sum"))
    local_selection: bool = option(True, "leave negatives out for small crops too, the same as for their image's query")
    kmeans: str = option(
        "fast",
        "k-means from images drawn evenly; or from k-means++, on from the last tree and coarse before fine where large",
        ("plain", "fast"),
    )
    kmeans_iterations: int = option(20, "iterations of a k-means run, at most")
    kmeans_restarts: int = option(1, "k-means runs per level, of which the best counts")
    kmeans_points: int = option(1000, "images per prototype that k-means reads at most")
    kmeans_seed: str = option(
        "run", "k-means seeds: from --seed and the epoch, or the level's number", ("run", "level")
    )


PRESETS: dict[str, dict[str, Any]] = {
    # The equations to the letter.
    "paper": {
        "batch_negatives": False,
        "clustering_start": 0,
        "proto_weight": 1.0,
        "proto_ramp_epochs": 0,
        "query_cluster": "similarity",
        "temperature_scaling": "none",
        "clustered_encoder": "online",
        "clustered_features": "images",
        "kmeans": "plain",
        "kmeans_restarts": 5,
    },
    # The authors' released code.
    "official": {
        "batch_negatives": False,
        "proto_weight": 1.0,
        "proto_ramp_epochs": 0,
        "left_out": "zero_logit",
        "icsc_levels": "sum",
        "temperature_members": "children",
        "temperature_centre": "centroid",
        "min_cluster_size": 0,
        "proto_negatives": "outside_batch",
        "clamp_probabilities": True,
        "local_views": "sum",
        "clustered_features": "images",
        "kmeans": "plain",
        "kmeans_restarts": 5,
        "kmeans_seed": "level",
    },
    # The paper's terms with what makes them train on small data too: the defaults above.
    "recommended": {},
}


def add_option_flags(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("hcsc")
    group.add_argument("--preset", default="recommended", help=f"a set of the options below: {', '.join(PRESETS)}")
    for item in fields(Options):
        if item.name == "preset":
            continue
        shown = " ".join(map(str, item.default)) if isinstance(item.default, tuple) else item.default
        settings: dict[str, Any] = {"help": f"{item.metadata['help']} (recommended: {shown})", "default": None}
        if isinstance(item.default, tuple):
            settings |= {"type": int, "nargs": "+"}
        elif isinstance(item.default, bool):
            settings |= {"type": yes_or_no, "nargs": "?", "const": True}
        else:
            settings |= {"type": type(item.default)}
        if item.metadata["choices"]:
            settings["choices"] = item.metadata["choices"]
        group.add_argument(f"--{item.name}", **settings)


def resolve_options(given: Mapping[str, Any] | Namespace) -> Options:
    """The preset's options with those overridden that were given (not None), checked."""
    values = vars(given) if isinstance(given, Namespace) else given
    preset = values.get("preset") or "recommended"
    if preset not in PRESETS:
        raise UserError(f"--preset {preset}: choose from {', '.join(PRESETS)}")
    options = replace(Options(preset=preset), **PRESETS[preset])
    names = [item.name for item in fields(Options) if item.name != "preset"]
    overrides = {name: values[name] for name in names if values.get(name) is not None}
    if "num_prototypes" in overrides:
        overrides["num_prototypes"] = tuple(overrides["num_prototypes"])
    options = replace(options, **overrides)
    if not options.hierarchy:
        options = replace(options, num_prototypes=options.num_prototypes[:1])
    if options.clustering_start < -1:
        raise UserError(f"--clustering_start {options.clustering_start}: give an epoch, or -1")
    if options.clustering_start == -1:
        options = replace(options, clustering_start=options.proto_warmup_epochs)
    _check(options)
    return options


def needs_tree(options: Options) -> bool:
    """False where nothing selects and the loss is InfoNCE."""
    return options.instance_selection or options.prototype_loss


def negatives(options: Options) -> int:
    """How many negatives a query has: the queue without this step's keys of its image."""
    return options.queue_size - (2 if options.symmetric else 1) * options.batch_negatives


def check_schedule(options: Options, max_epochs: int) -> None:
    if options.prototype_loss and options.proto_warmup_epochs >= max_epochs:
        raise UserError(
            f"--proto_warmup_epochs {options.proto_warmup_epochs}: must be shorter than the run, --max_epochs "
            f"{max_epochs}; a tenth of it is usual"
        )
    if needs_tree(options) and options.clustering_start >= max_epochs:
        raise UserError(
            f"--clustering_start {options.clustering_start}: nothing would be clustered in --max_epochs {max_epochs}; "
            "start earlier (it follows --proto_warmup_epochs)"
        )


def clustered_at_most(options: Options, images: int) -> int:
    """How many embeddings are clustered."""
    return min(options.cluster_sample or images, images)


def clustered_at_least(options: Options) -> int:
    """How many embeddings the bottom level's prototypes need."""
    return options.num_prototypes[0] * max(1, options.min_cluster_size)


def check_images(options: Options, images: int) -> None:
    """Refuses more prototypes than the images can carry."""
    bottom, needed = options.num_prototypes[0], clustered_at_least(options)
    images = clustered_at_most(options, images)
    if images < needed:
        most = images // max(1, options.min_cluster_size)
        raise UserError(
            f"--num_prototypes {bottom}: needs {needed} images (--min_cluster_size {options.min_cluster_size} each) "
            f"and there are {images}; ask for at most {most} at the bottom level"
        )


def as_dict(options: Options) -> dict[str, Any]:
    return asdict(options) | {"num_prototypes": list(options.num_prototypes)}


def _check(options: Options) -> None:
    levels = options.num_prototypes
    if not levels or min(levels) < 1:
        raise UserError(f"--num_prototypes {' '.join(map(str, levels))}: every level needs at least 1")
    if any(upper >= lower for lower, upper in pairwise(levels)):
        raise UserError(f"--num_prototypes {' '.join(map(str, levels))}: each level must have fewer than the one below")
    for name in ("temperature", "epsilon"):
        if getattr(options, name) <= 0:
            raise UserError(f"--{name} {getattr(options, name)}: must be greater than 0")
    for name in ("queue_size", "recluster_every", "kmeans_iterations", "kmeans_restarts", "kmeans_points"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} {getattr(options, name)}: must be at least 1")
    for name in ("proto_warmup_epochs", "proto_ramp_epochs", "min_cluster_size", "proto_weight", "cluster_sample"):
        if getattr(options, name) < 0:
            raise UserError(f"--{name} {getattr(options, name)}: must not be negative")
    if options.clustered_features == "keys" and options.clustered_encoder == "online":
        raise UserError("--clustered_encoder online: keys are the momentum one's; add --clustered_features images")
    if not options.instance_loss and not options.prototype_loss:
        raise UserError("--instance_loss false --prototype_loss false: nothing is left to train with; keep one")
    if not options.instance_loss and (options.proto_warmup_epochs or options.clustering_start):
        raise UserError("--instance_loss false: nothing trains before the prototype loss; add --proto_warmup_epochs 0")
    if options.prototype_loss and options.clustering_start > options.proto_warmup_epochs:
        raise UserError(
            f"--clustering_start {options.clustering_start}: the prototype loss starts at epoch "
            f"{options.proto_warmup_epochs} (--proto_warmup_epochs) and needs prototypes by then"
        )
