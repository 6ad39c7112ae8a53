"""HCSC's options: one frozen dataclass and three presets.

The presets differ where the paper and its authors' released code do; `docs/presets.md` has the table with the reasons.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from solo_hcsc.errors import ArgumentError

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
        "temperature_floor": "instances",
        "min_cluster_size": 0,
        "proto_negatives": "outside_batch",
        "clamp_probabilities": True,
        "local_views": "sum",
        "local_proto_selection": "crop",
        "clustered_features": "images",
        "kmeans": "plain",
        "kmeans_restarts": 5,
        "kmeans_seed": "level",
    },
    # The paper's terms with what makes them train on small data too: each option's own default.
    "recommended": {},
}


KINDS: dict[type, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a word"),
    tuple: (tuple, "one whole number per level"),
}


def option(
    default: Any, help: str, choices: tuple[str, ...] = (), above: float | None = None, least: float | None = None
) -> Any:
    """Declare a field that is None until the preset fills it; `default` is what preset `recommended` fills in."""
    facts = {"help": help, "choices": choices, "default": default, "above": above, "least": least}
    return field(default=None, metadata=facts)


IMAGES_EACH = 40  # for a prototype of the bottom level: with 20, a fifth to a third of its clusters came out too small


def levels_for(images: int, min_cluster_size: int = 10) -> tuple[int, ...]:
    """Return how many prototypes suit so many images: the paper's, or fewer in its proportions, of 40 images each.

    Clusters with fewer than `min_cluster_size` images are dropped: they are to be half as large at most.

    Example:
        >>> levels_for(1_281_167), levels_for(2640), levels_for(100), levels_for(50)
        ((3000, 2000, 1000), (66, 44, 22), (2,), (2,))
    """
    bottom = min(3000, images // max(IMAGES_EACH, 2 * min_cluster_size))
    levels = (bottom, round(bottom * 2 / 3), round(bottom / 3))
    return tuple(dict.fromkeys(level for level in levels if level >= 2)) or (2,)


@dataclass(frozen=True)
class Options:
    """Everything that decides what HCSC computes.

    An option that is not given, or None, has the preset's value. What exists is valid: options that make no sense
    raise `ArgumentError`, whose message names them. All options are arguments; the first three are used most. The
    metadata of each field has its `help`, its `choices`, its bounds `above` and `least`, and its `default` in preset
    `recommended`.

    Args:
        preset: `recommended`, `paper` (the equations to the letter) or `official` (the authors' released code).
        num_prototypes: prototypes per level, the bottom first; each level has fewer than the one below.
        queue_size: how many keys are kept as negatives.

    Example:
        >>> options = Options(preset="official", queue_size=4096)
        >>> options.queue_size, options.left_out, options.clustering_start
        (4096, 'zero_logit', 20)
        >>> Options(num_prototypes=(3, 4))
        Traceback (most recent call last):
        solo_hcsc.errors.ArgumentError: `num_prototypes` 3 4: each level must have fewer than the one below
    """

    preset: str = field(
        default="recommended",
        metadata={"help": "a set of options", "choices": tuple(PRESETS), "default": "recommended"},
    )

    # ---- sizes and schedule ----
    num_prototypes: tuple[int, ...] = option(
        (3000, 2000, 1000), "prototypes per level, bottom first (M_1 ... M_L); pretrain asks for fewer of few images"
    )
    queue_size: int = option(16384, "keys kept as negatives (Q)", least=1)
    batch_negatives: bool = option(True, "the batch's other keys are negatives at once, not only in later steps")
    temperature: float = option(0.2, "temperature of the instance loss (tau)", above=0)
    epsilon: float = option(10.0, "smoothing of the cluster temperatures (Eq. 3)", above=0)
    proto_warmup_epochs: int = option(
        20, "first epochs without the prototype loss; pretrain takes a fifth of a short run", least=0
    )
    clustering_start: int = option(-1, "epochs before the first clustering and selection; -1: those of the warm-up")
    recluster_every: int = option(1, "epochs between clusterings", least=1)
    proto_weight: float = option(0.2, "weight of the prototype loss", least=0)
    proto_ramp_epochs: int = option(5, "epochs over which that weight grows, after the warm-up", least=0)
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
    temperature_floor: str = option(
        "everywhere",
        "temperatures are at least 0.001 everywhere, or only where instances are selected (Eq. 4)",
        ("everywhere", "instances"),
    )
    min_cluster_size: int = option(10, "clusters of fewer images are dropped", least=0)
    proto_negatives: str = option(
        "all",
        "candidates: all other prototypes, or only those of no image in the batch (each process looks at its own part)",
        ("all", "outside_batch"),
    )
    clamp_probabilities: bool = option(False, "clamp probabilities as the released code: [0, 0.999], [0.0001, 0.999]")
    clustered_encoder: str = option("momentum", "whose embeddings are clustered", ("online", "momentum"))
    clustered_features: str = option(
        "keys",
        "what is clustered: centre crops, by a forward pass; or, once there are enough, averages of each image's keys",
        ("images", "keys"),
    )
    cluster_sample: int = option(0, "images that are clustered at most; 0: all", least=0)

    # ---- what neither has; docs/when-hcsc.md says what each was worth ----
    clustered_space: str = option(
        "projector",
        "what k-means compares: the projector's embeddings; or the encoder's features, as DeepCluster (Caron et al., "
        "2018), whose clusters have the mean embedding of their images as prototype",
        ("projector", "encoder"),
    )
    tree_builder: str = option(
        "kmeans",
        "levels by k-means of k-means (Alg. 1); or Ward's linkage of the images, then of the clusters of each level by "
        "their sizes",
        ("kmeans", "ward"),
    )
    entry_cluster: str = option(
        "drawn",
        "a queue entry's cluster where negatives are left out: drawn by Eq. 4; or its image's in k-means, without "
        "chance, as in FNC (Huynh et al., 2022)",
        ("drawn", "assignment"),
    )
    oracle_labels: bool = option(
        False,
        "for studies only: the true labels are the tree's clusters, which says what a tree that is right could give; "
        "such a run is no longer self-supervised",
    )

    # ---- where the paper and the released code differ, continued ----
    local_views: str = option("mean", "losses of small crops over crops", ("mean", "sum"))
    local_selection: bool = option(
        True, "leave out queue entries for small crops too, the same as for their image's query (Eq. 4)"
    )
    local_proto_selection: str = option(
        "query",
        "which prototypes small crops leave out (Eq. 7): the query's, others that are drawn for each crop, or none",
        ("query", "crop", "none"),
    )
    kmeans: str = option(
        "fast",
        "k-means from images drawn evenly; or from k-means++ in fewer iterations, coarse before fine where large",
        ("plain", "fast"),
    )
    kmeans_iterations: int = option(20, "iterations of a k-means run, at most", least=1)
    kmeans_restarts: int = option(1, "k-means runs per level, of which the best counts", least=1)
    kmeans_points: int = option(1000, "images per prototype that k-means reads at most", least=1)
    kmeans_seed: str = option(
        "run", "k-means seeds: from the run's seed and the epoch, or the level's number", ("run", "level")
    )

    def __post_init__(self) -> None:
        self._fill()
        self._check_bounds()
        if self.clustering_start == -1:
            object.__setattr__(self, "clustering_start", self.proto_warmup_epochs)
        self._check_together()

    def _fill(self) -> None:
        """Set what was not given, and the levels that are used."""
        preset = PRESETS.get(self.preset, {})
        for item in fields(self):
            if getattr(self, item.name) is None:
                object.__setattr__(self, item.name, preset.get(item.name, item.metadata["default"]))
        if isinstance(self.num_prototypes, list | tuple):
            levels = tuple(self.num_prototypes)
            object.__setattr__(self, "num_prototypes", levels if self.hierarchy else levels[:1])

    def _check_bounds(self) -> None:
        """Refuse a single option's value."""
        for item in fields(self):
            value, facts = getattr(self, item.name), item.metadata
            kind, allowed = KINDS[type(facts["default"])]
            numbers = value if isinstance(value, tuple) else ()
            if not isinstance(value, kind) or not all(isinstance(number, Integral) for number in numbers):
                raise ArgumentError(f"`{item.name}` {value}: must be {allowed}")
            if facts["choices"] and value not in facts["choices"]:
                raise ArgumentError(f"`{item.name}` {value}: choose from {', '.join(facts['choices'])}")
            above, least = facts.get("above"), facts.get("least")
            if above is not None and not value > above:  # nan is not above either
                raise ArgumentError(f"`{item.name}` {value}: must be greater than {above}")
            if least is not None and not value >= least:
                needed = "must not be negative" if least == 0 else f"must be at least {least}"
                raise ArgumentError(f"`{item.name}` {value}: {needed}")
        if self.clustering_start < -1:
            raise ArgumentError(f"`clustering_start` {self.clustering_start}: give a number of epochs, or -1")

    def _check_together(self) -> None:
        """Refuse options that contradict each other."""
        levels = " ".join(map(str, self.num_prototypes))
        if not self.num_prototypes or min(self.num_prototypes) < 1:
            raise ArgumentError(f"`num_prototypes` {levels}: every level needs at least 1")
        if any(upper >= lower for lower, upper in pairwise(self.num_prototypes)):
            raise ArgumentError(f"`num_prototypes` {levels}: each level must have fewer than the one below")
        if self.clustered_features == "keys" and self.clustered_encoder == "online":
            raise ArgumentError(
                "`clustered_encoder` online: keys are the momentum one's; add `clustered_features` images"
            )
        if self.clustered_features == "keys" and self.clustered_space == "encoder":
            raise ArgumentError("`clustered_space` encoder: keys are the projector's; add `clustered_features` images")
        if self.entry_cluster == "assignment" and self.query_cluster != "assignment":
            raise ArgumentError(
                f"`entry_cluster` assignment: needs the images' clusters, which `query_cluster` {self.query_cluster} "
                "does not keep; add `query_cluster` assignment"
            )
        if self.entry_cluster == "assignment" and self.clamp_probabilities:
            raise ArgumentError("`entry_cluster` assignment: has no probabilities; add `clamp_probabilities` false")
        if self.oracle_labels and self.tree_builder != "kmeans":
            raise ArgumentError(
                f"`tree_builder` {self.tree_builder}: `oracle_labels` are the clusters; leave one of them out"
            )
        if self.oracle_labels and self.cluster_sample:
            raise ArgumentError("`oracle_labels`: has the labels of all images; leave out `cluster_sample`")
        if not self.instance_loss and not self.prototype_loss:
            raise ArgumentError("`instance_loss` false `prototype_loss` false: nothing is left to train with; keep one")
        if not self.instance_loss and (self.proto_warmup_epochs or self.clustering_start):
            raise ArgumentError(
                "`instance_loss` false: nothing trains before the prototype loss; add `proto_warmup_epochs` 0"
            )
        if self.prototype_loss and self.clustering_start > self.proto_warmup_epochs:
            raise ArgumentError(
                f"`clustering_start` {self.clustering_start}: the prototype loss starts after "
                f"{self.proto_warmup_epochs} epochs (`proto_warmup_epochs`) and needs prototypes by then"
            )

    # ---- what follows from the options ----

    @property
    def needs_tree(self) -> bool:
        """Return whether a tree is used: without selection the loss is InfoNCE.

        Example:
            >>> Options(instance_selection=False, prototype_loss=False).needs_tree
            False
        """
        return self.instance_selection or self.prototype_loss

    @property
    def negatives(self) -> int:
        """Return how many negatives a query has: the queue without this step's keys of its image.

        Example:
            >>> Options(queue_size=64).negatives, Options(queue_size=64, preset="paper").negatives
            (63, 64)
        """
        return self.queue_size - (2 if self.symmetric else 1) * self.batch_negatives

    @property
    def clustered_at_least(self) -> int:
        """Return how many embeddings the bottom level's prototypes need.

        Example:
            >>> Options(num_prototypes=(30, 5)).clustered_at_least
            300
        """
        return self.num_prototypes[0] * max(1, self.min_cluster_size)

    def clustered_at_most(self, images: int) -> int:
        """Return how many embeddings are clustered of a data set with so many `images`.

        Example:
            >>> Options(cluster_sample=500).clustered_at_most(2000), Options().clustered_at_most(2000)
            (500, 2000)
        """
        return min(self.cluster_sample or images, images)

    def clusters_in(self, epoch: int) -> bool:
        """Return whether a new tree is made before this epoch (the first is 0).

        Example:
            >>> options = Options(clustering_start=3, recluster_every=2)
            >>> [epoch for epoch in range(10) if options.clusters_in(epoch)]
            [3, 5, 7, 9]
        """
        since = epoch - self.clustering_start
        return self.needs_tree and since >= 0 and since % self.recluster_every == 0

    def proto_weight_at(self, epoch: int) -> float:
        """Return the prototype loss's weight in an epoch: 0 in the warm-up, then growing to its full size.

        Example:
            >>> options = Options(proto_weight=1.0, proto_warmup_epochs=2, proto_ramp_epochs=1)
            >>> [options.proto_weight_at(epoch) for epoch in range(5)]
            [0.0, 0.0, 0.5, 1.0, 1.0]
        """
        since = epoch - self.proto_warmup_epochs
        return 0.0 if since < 0 else self.proto_weight * min(1.0, (since + 1) / (self.proto_ramp_epochs + 1))

    def as_dict(self) -> dict[str, Any]:
        """Return all options by name, as JSON has them; `Options(**options.as_dict())` are the same.

        Example:
            >>> Options(num_prototypes=(9, 4)).as_dict()["num_prototypes"]
            [9, 4]
        """
        return asdict(self) | {"num_prototypes": list(self.num_prototypes)}

    # ---- whether they fit a run ----

    def check_schedule(self, max_epochs: int) -> None:
        """Raise `ArgumentError` where a run of so many epochs would never come to the clustering or its loss.

        Example:
            >>> Options().check_schedule(max_epochs=200)
        """
        if self.prototype_loss and self.proto_warmup_epochs >= max_epochs:
            raise ArgumentError(
                f"`proto_warmup_epochs` {self.proto_warmup_epochs}: must be shorter than the run, `max_epochs` "
                f"{max_epochs}; a tenth of it is usual"
            )
        if self.needs_tree and self.clustering_start >= max_epochs:
            raise ArgumentError(
                f"`clustering_start` {self.clustering_start}: nothing would be clustered in `max_epochs` {max_epochs}; "
                "start earlier (it follows `proto_warmup_epochs`)"
            )

    def check_images(self, images: int) -> None:
        """Raise `ArgumentError` for more prototypes than so many images can carry.

        Example:
            >>> Options(num_prototypes=(100, 10)).check_images(1000)
        """
        images, needed = self.clustered_at_most(images), self.clustered_at_least
        if self.needs_tree and images < needed:
            most = images // max(1, self.min_cluster_size)
            raise ArgumentError(
                f"`num_prototypes` {self.num_prototypes[0]}: needs {needed} images (`min_cluster_size` "
                f"{self.min_cluster_size} each) and there are {images}; ask for at most {most} at the bottom level"
            )

    @property
    def few_images(self) -> int:
        """Return how many images the bottom level needs: of fewer, many clusters are too small and are dropped.

        Example:
            >>> Options(num_prototypes=(100, 10), min_cluster_size=10).few_images
            2000
        """
        return 2 * self.min_cluster_size * self.num_prototypes[0]

    def check_batch(self, batch: int) -> None:
        """Raise `ArgumentError` for more keys in a batch of so many images, over all processes, than the queue takes.

        Example:
            >>> Options(queue_size=64).check_batch(64)
        """
        keys = 2 * batch if self.symmetric else batch
        if self.queue_size < keys:
            raise ArgumentError(
                f"`queue_size` {self.queue_size}: smaller than the {keys} keys of a batch over all processes; "
                "give at least as many"
            )


# ---- options that somebody gave, and what suits a run where nobody did ----


def options_in(values: Mapping[str, Any]) -> Options:
    """Take HCSC's options from other settings; what is None is the preset's.

    Example:
        >>> options_in({"queue_size": 64, "temperature": None, "lr": 0.1}).queue_size
        64
    """
    return Options(**{item.name: values[item.name] for item in fields(Options) if values.get(item.name) is not None})


def longest_warmup(max_epochs: int) -> int:
    """Return how many epochs a warm-up may take that nobody asked for: a fifth of the run, or one.

    Example:
        >>> longest_warmup(200), longest_warmup(3), longest_warmup(1)
        (40, 1, 0)
    """
    return max(max_epochs // 5, min(1, max_epochs - 1))


def suitable_warmup(values: Mapping[str, Any], max_epochs: int) -> dict[str, Any]:
    """Return a shorter warm-up than the preset's for a short run; empty if the preset's suits.

    Example:
        >>> suitable_warmup({}, max_epochs=20), suitable_warmup({}, max_epochs=200)
        ({'proto_warmup_epochs': 4}, {})
    """
    most = max(longest_warmup(max_epochs), values.get("clustering_start") or 0)
    return {} if options_in(values).proto_warmup_epochs <= most else {"proto_warmup_epochs": most}


def suitable_levels(values: Mapping[str, Any], images: int) -> tuple[dict[str, Any], str | None]:
    """Return how many prototypes suit the images, where nobody has said, and a line to show.

    Args:
        values: settings, in which `num_prototypes` may be given.
        images: N.

    Returns:
        `num_prototypes` if it is to be another than the preset's; and why, or that many prototypes will be dropped.

    Example:
        >>> suitable_levels({}, images=2640)[0]
        {'num_prototypes': [66, 44, 22]}
        >>> suitable_levels({"num_prototypes": [1]}, images=14)  # no fewer can be asked for
        ({}, None)
    """
    options = options_in(values)
    clustered = options.clustered_at_most(images)
    levels = levels_for(clustered, options.min_cluster_size)
    given = values.get("num_prototypes") is not None
    if not options.needs_tree:
        return {}, None
    if not given and levels != options.num_prototypes:
        shown = " ".join(map(str, levels))
        return {"num_prototypes": list(levels)}, (
            f"`num_prototypes` {shown}: chosen for {clustered} images, at least {IMAGES_EACH} for each prototype "
            "of the bottom level, and the levels in the paper's proportions"
        )
    bottom = options.num_prototypes[0]
    if given and bottom > levels[0] and options.min_cluster_size * bottom <= clustered < options.few_images:
        return {}, (
            f"`num_prototypes` {bottom}: {clustered} images are {clustered // bottom} for each, and many clusters will "
            f"be dropped, those of fewer than {options.min_cluster_size} (`min_cluster_size`); ask for at most "
            f"{levels[0]}"
        )
    return {}, None
