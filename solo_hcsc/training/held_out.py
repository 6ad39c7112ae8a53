"""Hold images out, and judge features by them: with labels if there are some, without if not.

Shapes: `N` images of the bank, `n` held-out ones, `P` size of a point, `D` of a feature.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from solo_hcsc.encoders.adapter import Adapter
from solo_hcsc.encoders.embedding import Embeddings
from solo_hcsc.trees.votes import knn_votes

FEATURES = Callable[[torch.Tensor], torch.Tensor]  # from points (n, P) to features (n, D)
NEIGHBOURS = 20  # that vote
SHARED = 10  # neighbours of an image, of which a view of it should have the same
DRAWS = 20  # of few labels
_HELD_OUT, _MOST_HELD_OUT = 0.1, 1000  # of the images, where there are none of validation
_ENOUGH_LABELS = 100  # held-out ones; with fewer, all labelled images are judged
_LARGEST_BANK = 20_000  # images that neighbours are looked for among


@dataclass(frozen=True)
class Judged:
    """How features do on held-out images.

    Args:
        measures: `knn`, `labels_1` and `labels_5` in percent with labels; `agreement` in percent without.
        hits: (n,) the queries that KNN gets right; with no labels the agreement of each image.
    """

    measures: dict[str, float]
    hits: np.ndarray

    def beats(self, other: "Judged") -> bool:
        """Return whether the measures are higher on average, and the first is not lower by more than its noise."""
        differences = self.hits.astype(float) - other.hits
        error = float(differences.std() / max(1, len(differences)) ** 0.5)
        mean = sum(self.measures.values()) - sum(other.measures.values())
        return mean > 0 and float(differences.mean()) >= -error


@dataclass(frozen=True)
class Held:
    """Images that decide whether features have become better.

    Args:
        bank: (N, P) points that are known.
        queries: (n, P) points that are held out.
        views: (n, P) points of one other view of each; None with labels.
        labels: (N,) of the bank; None without labels, like the next two.
        wanted: (n,) labels of the queries.
        features: of the bank (N, F) and of the queries (n, F), as the encoder gives them.
    """

    bank: torch.Tensor
    queries: torch.Tensor
    views: torch.Tensor | None = None
    labels: torch.Tensor | None = None
    wanted: torch.Tensor | None = None
    features: tuple[torch.Tensor, torch.Tensor] | None = None

    def judge_frozen(self) -> Judged:
        """Judge the encoder's features as they are; without labels their principal components."""
        if self.labels is not None and self.wanted is not None and self.features is not None:
            bank, queries = self.features
            return judge_labelled(bank, self.labels, queries, self.wanted)
        return self.judge(lambda points: points)

    @torch.no_grad()
    def judge(self, features: FEATURES) -> Judged:
        """Judge what makes features of points."""
        bank, queries = features(self.bank), features(self.queries)
        if self.labels is not None and self.wanted is not None:
            return judge_labelled(bank, self.labels, queries, self.wanted)
        assert self.views is not None, "given where there are no labels"
        return judge_views(bank, queries, features(self.views))


def judge_labelled(bank: torch.Tensor, labels: torch.Tensor, queries: torch.Tensor, wanted: torch.Tensor) -> Judged:
    """Classify queries by KNN, and by the nearest class mean of one and of five labelled images a class."""
    classes = 1 + int(max(labels.max(), wanted.max()))
    votes = torch.cat([one for (one,) in knn_votes(bank, labels, queries, [NEIGHBOURS], classes)])
    hits = (votes.argmax(dim=1) == wanted).numpy()
    few = {f"labels_{each}": few_labels(bank, labels, queries, wanted, each) for each in (1, 5)}
    return Judged({"knn": 100 * float(hits.mean()), **few}, hits)


def few_labels(
    bank: torch.Tensor, labels: torch.Tensor, queries: torch.Tensor, wanted: torch.Tensor, each: int, draws: int = DRAWS
) -> float:
    """Return the accuracy in percent by the nearest class mean, of `each` labelled images a class, over draws.

    A draw takes the same images whatever their features are.
    """
    present = labels.unique()
    members = [torch.nonzero(labels == one)[:, 0] for one in present]
    bank, queries, right = F.normalize(bank, dim=1), F.normalize(queries, dim=1), []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        chosen = [own[torch.randperm(len(own), generator=generator)[:each]] for own in members]
        means = F.normalize(torch.stack([bank[own].mean(dim=0) for own in chosen]), dim=1)
        right.append((present[(queries @ means.T).argmax(dim=1)] == wanted).double().mean())
    return 100 * float(torch.stack(right).mean())


def judge_views(bank: torch.Tensor, queries: torch.Tensor, views: torch.Tensor) -> Judged:
    """Find which of a query's nearest images in the bank are also among those of another view of it."""
    bank = F.normalize(bank[:: -(-len(bank) // _LARGEST_BANK)], dim=1)
    count = min(SHARED, len(bank))
    near, other = (
        torch.cat([(F.normalize(part, dim=1) @ bank.T).topk(count).indices for part in points.split(512)])
        for points in (queries, views)
    )
    shared = (near[:, :, None] == other[:, None]).any(dim=2).double().mean(dim=1)
    return Judged({"agreement": 100 * float(shared.mean())}, shared.numpy())


@dataclass(frozen=True)
class Labels:
    """The classes of images, if there are at least two.

    Args:
        numbers: (N,), -1 for an image without a class.
        classes: their names.
    """

    numbers: torch.Tensor
    classes: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str | None]) -> "Labels":
        """Number the names of classes; None for an image without one."""
        classes = tuple(sorted({name for name in names if name}))
        return cls(numbered(names, classes if len(classes) > 1 else ()), classes)

    @property
    def known(self) -> torch.Tensor:
        """Return which images (N,) have one."""
        return self.numbers >= 0


def numbered(names: Sequence[str | None], classes: Sequence[str]) -> torch.Tensor:
    """Return the numbers of some classes' names; -1 for other names and for none."""
    numbers = {name: number for number, name in enumerate(classes)}
    return torch.tensor([numbers.get(name or "", -1) for name in names])


def hold_out(
    adapter: Adapter, views: torch.Tensor, train: Embeddings, val: Embeddings | None, labels: Labels, seed: int
) -> tuple[Held, torch.Tensor]:
    """Choose the images that judge; also return the rows of those that are trained on."""
    numbers, features = labels.numbers, torch.from_numpy(train.vectors)
    if val is not None and val.names is not None:
        wanted = numbered(val.names, labels.classes)
        bank, asked = labels.known, wanted >= 0
        if bool(bank.any()) and bool(asked.any()):
            theirs = torch.from_numpy(val.vectors)[asked]
            told = numbers[bank], wanted[asked], (features[bank], theirs)
            return Held(views[bank, 0].float(), adapter.points(theirs), None, *told), torch.arange(len(views))
    order = torch.randperm(len(views), generator=torch.Generator().manual_seed(seed))
    count = min(_MOST_HELD_OUT, max(10, round(_HELD_OUT * len(views))))
    held, kept = order[:count], order[count:].sort().values
    known, asked = kept[labels.known[kept]], held[labels.known[held]]
    if len(asked) < _ENOUGH_LABELS:  # two halves of the labelled images
        some = order[labels.known[order]]
        known, asked = some[::2], some[1::2]
    if len(known) and len(asked):
        told = numbers[known], numbers[asked], (features[known], features[asked])
        return Held(views[known, 0].float(), views[asked, 0].float(), None, *told), kept
    return Held(views[kept, 0].float(), views[held, 0].float(), views[held, 1].float()), kept
