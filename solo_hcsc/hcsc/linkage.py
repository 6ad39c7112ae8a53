"""Ward's linkage of vectors with weights: of all pairs, and along a graph of nearest neighbours for many vectors.

Both merge in rounds: every pair of clusters that are each other's nearest neighbour becomes one cluster. For Ward's
distance the order of such merges does not matter (Murtagh 1983; Müllner 2011), so that the rounds end in the same
tree as merging the nearest pair of all each time, with array operations and without a matrix of distances.

Ward's distance of two clusters is the squared distance of their means times their sizes' harmonic mean, to the power
`power` of 1. A lower power lets large clusters merge sooner, so that sizes are less equal; 0 is centroid linkage. Below
1 a merged cluster may be nearer to a third one than its parts were; it counts as high as they are.

Shapes: `points (N, D)` float32, `weights (N,)`, merge tables `(N - 1, 4)` float64 as scipy's `linkage` has them: two
nodes, the height of their merge, and their images. Nodes below N are points; node N + i is what row i makes.
"""

from collections.abc import Callable

import numpy as np
import torch

from solo_hcsc.hcsc.kmeans import import_faiss

Progress = Callable[[int, int], None]  # called with what is done and what there is to do

NEIGHBOURS = 15  # of each point in the graph
EXACT = 10_000  # clusters from which the graph's tree is finished exactly: seconds
REFRESHED = 4  # the graph is made anew where so many times fewer clusters are left
FLAT = 10_000  # points up to which all pairs are compared for the graph
PROBES = 8  # of about 4 sqrt(N) lists of faiss's IVF
FEW = 0.01  # share of clusters that merge in a round; below it, equal distances are in the way
BLUR = 1e-4  # length of the noise that tells equal distances of unit vectors apart
NARROW = 256  # dimensions: more are brought to their principal ones for the graph, which changed no AMI by 0.02
BLOCK = 2**24  # distances that are held at once


def merge_table(
    points: np.ndarray,
    weights: np.ndarray | None = None,
    power: float = 1.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the merge table of `ward` for up to 10,000 points, and of `ward_along_graph` for more.

    Example:
        >>> merge_table(np.float32([[0], [1], [5]]))[:, :2].astype(int).tolist()
        [[0, 1], [2, 3]]
    """
    if len(points) <= EXACT:
        return ward(points, weights, power, progress)
    return ward_along_graph(points, weights, power, seed=seed, progress=progress)


def ward(
    points: np.ndarray,
    weights: np.ndarray | None = None,
    power: float = 1.0,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return the merge table of Ward's linkage of all points.

    Time grows with N squared times D, memory with N.

    Args:
        points: (N, D).
        weights: (N,) images that each point stands for; one each if not given.
        power: of the sizes in the distance; 1 is Ward's.
        progress: called with the number of merges done and N - 1.

    Example:
        >>> ward(np.float32([[0], [1], [5]]))[:, [0, 1, 3]].astype(int).tolist()
        [[0, 1, 2], [2, 3, 3]]
    """
    clusters = _Clusters(points, weights, power, progress)
    clusters.merge_equal()
    clusters.merge_exactly()
    return clusters.table()


def ward_along_graph(
    points: np.ndarray,
    weights: np.ndarray | None = None,
    power: float = 1.0,
    neighbours: int = NEIGHBOURS,
    exact: int = EXACT,
    seed: int = 0,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return a merge table where only neighbours in a graph merge, until few clusters are left; then all may.

    Each point is joined to its nearest neighbours, and a merged cluster has the neighbours of its parts. The graph is
    made anew of the clusters' means as they become fewer, which also joins its components. Points of more than 256
    dimensions are compared in their principal ones.

    Args:
        points: (N, D).
        weights: (N,) images that each point stands for; one each if not given.
        neighbours: of each point in the graph.
        exact: how many clusters are left where the exact linkage takes over.
        seed: of faiss's k-means, which finds neighbours among many points, and of choices among equal distances.
        power: of the sizes in the distance; 1 is Ward's.
        progress: called with the number of merges done and N - 1.

    Example:
        >>> ward_along_graph(np.float32([[0], [1], [5]]), neighbours=1, exact=2)[:, [0, 1, 3]].astype(int).tolist()
        [[0, 1, 2], [2, 3, 3]]
    """
    clusters = _Clusters(_narrow(points, seed), weights, power, progress)
    clusters.merge_equal()
    while len(clusters) > exact:
        clusters.merge_along(neighbours, max(exact, len(clusters) // REFRESHED), seed)
    clusters.merge_exactly()
    return clusters.table()


def lump(merges: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Leave out the lowest merges, so that `most` leaves remain.

    Args:
        merges: (N - 1, 4) of N images.
        most: M, at most N.

    Returns:
        The merges (M - 1, 4) of the clusters that remain, and each image's cluster (N,).

    Example:
        >>> merges = np.float64([[0, 1, 1, 2], [2, 3, 2, 3]])
        >>> lump(merges, 2)[0].tolist(), lump(merges, 2)[1].tolist()
        ([[0.0, 1.0, 2.0, 3.0]], [1, 1, 0])
    """
    count = len(merges) + 1
    left_out = count - most
    owner = np.arange(count + left_out)  # the highest node that is left below each
    for row in reversed(range(left_out)):
        one, other = merges[row, :2].astype(np.int64)
        owner[one] = owner[other] = owner[count + row]
    tops, leaves = np.unique(owner[:count], return_inverse=True)
    number = np.full(count + len(merges), -1)
    number[tops] = np.arange(most)
    number[count + left_out :] = most + np.arange(most - 1)
    kept = merges[left_out:].copy()
    kept[:, :2] = np.sort(number[kept[:, :2].astype(np.int64)], axis=1)
    return kept, leaves


class _Clusters:
    """Clusters on their way to one: the means, weights and nodes of those that are left, and the merges so far."""

    def __init__(self, points: np.ndarray, weights: np.ndarray | None, power: float, progress: Progress | None) -> None:
        self.count = len(points)
        self.means = torch.from_numpy(np.ascontiguousarray(points, "float32"))
        self.weights = torch.ones(self.count) if weights is None else torch.from_numpy(np.asarray(weights, "float32"))
        self.nodes = torch.arange(self.count)
        self.heights = torch.zeros(self.count, dtype=torch.float64)  # of the clusters that are left
        self.merges: list[np.ndarray] = []
        self.power, self.progress = power, progress

    def __len__(self) -> int:
        return len(self.nodes)

    def merge_equal(self) -> None:
        """Merge points that are the same, which have no single nearest neighbour."""
        rows = self.means.numpy().view(np.dtype((np.void, self.means.shape[1] * 4)))[:, 0]
        by_value = np.argsort(rows, kind="stable")
        same = np.r_[False, rows[by_value[1:]] == rows[by_value[:-1]]]
        if not same.any():
            return
        # Halves the runs of equal points, a round for each halving.
        group = torch.from_numpy(np.cumsum(~same) - 1)[torch.from_numpy(np.argsort(by_value, kind="stable"))]
        while len(self) > int(group.max()) + 1:
            order = torch.argsort(group, stable=True)
            sorted_groups = group[order]
            first = torch.searchsorted(sorted_groups, sorted_groups)
            even = (torch.arange(len(order)) - first) % 2 == 0
            left = torch.zeros(len(order), dtype=torch.bool)
            left[:-1] = even[:-1] & (sorted_groups[:-1] == sorted_groups[1:])
            at = left.nonzero()[:, 0]
            a, b = order[at], order[at + 1]
            group = torch.cat([group[self._join(a, b, torch.zeros(len(a), dtype=torch.float64))], group[a]])

    def merge_exactly(self) -> None:
        """Merge all that is left; each cluster's nearest is looked for again only where that has merged."""
        nearest = torch.full((len(self),), -1)
        distances = torch.full((len(self),), torch.inf)
        blurred = False
        while len(self) > 1:
            missing = (nearest < 0).nonzero()[:, 0]
            distances[missing], nearest[missing] = self._nearest(missing)
            mutual = (nearest[nearest] == torch.arange(len(self))) & (torch.arange(len(self)) < nearest)
            a = mutual.nonzero()[:, 0]
            if len(a) < FEW * len(self) and not blurred:
                blurred = True
                noise = torch.randn(self.means.shape, generator=torch.Generator().manual_seed(0))
                self.means = self.means + BLUR / self.means.shape[1] ** 0.5 * noise
                nearest[:] = -1
                continue
            if not len(a):  # rounding errors went round in a circle
                a = distances.argmin()[None]
            b = nearest[a]
            kept = self._join(a, b, self._distances(a, b))
            place = torch.full((len(nearest),), -1)
            place[kept] = torch.arange(len(kept))
            fresh = torch.full((len(a),), -1)
            nearest = torch.cat([torch.where(nearest[kept] < 0, -1, place[nearest[kept]]), fresh])
            distances = torch.cat([distances[kept], fresh.float()])

    def merge_along(self, neighbours: int, until: int, seed: int) -> None:
        """Merge neighbours in a graph until at most `until` clusters are left, or the graph has no edge."""
        draw = torch.Generator().manual_seed(seed)
        edges = _unique(_neighbours(self.means.numpy(), neighbours, seed), len(self))
        lengths = self._distances(*edges)
        while len(self) > until and edges.shape[1]:
            least = torch.full((len(self),), torch.inf, dtype=lengths.dtype)
            for ends in edges:
                least.scatter_reduce_(0, ends, lengths, "amin")
            mutual = ((lengths == least[edges[0]]) & (lengths == least[edges[1]])).nonzero()[:, 0]
            a, b = edges[:, mutual[_matching(edges[:, mutual], len(self), draw)]]
            before = len(self)
            merged = torch.zeros(before, dtype=torch.bool)
            merged[a] = merged[b] = True
            kept = self._join(a, b, self._distances(a, b))
            place = torch.empty(before, dtype=torch.long)
            place[kept] = torch.arange(len(kept))
            place[a] = place[b] = torch.arange(len(kept), len(self))
            touched = merged[edges[0]] | merged[edges[1]]
            changed = _unique(place[edges[:, touched]], len(self))
            lengths = torch.cat([lengths[~touched], self._distances(*changed)])
            edges = torch.cat([place[edges[:, ~touched]], changed], dim=1)

    def _join(self, a: torch.Tensor, b: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """Merge clusters `a` with `b`; return the places of those kept, which come first, before the new ones."""
        heights = torch.maximum(distances.double(), torch.maximum(self.heights[a], self.heights[b]))
        wide, weights = self.weights[a], self.weights[a] + self.weights[b]
        share = (wide / weights)[:, None]
        means = torch.lerp(self.means[b], self.means[a], share)
        self.merges.append(torch.stack([self.nodes[a], self.nodes[b], heights, weights], dim=1).numpy())
        alone = torch.ones(len(self), dtype=torch.bool)
        alone[a] = alone[b] = False
        kept = alone.nonzero()[:, 0]
        first = self.count + sum(map(len, self.merges)) - len(a)
        self.nodes = torch.cat([self.nodes[kept], torch.arange(first, first + len(a))])
        self.means = torch.cat([self.means[kept], means])
        self.weights = torch.cat([self.weights[kept], weights])
        self.heights = torch.cat([self.heights[kept], heights])
        if self.progress:
            self.progress(self.count - len(self), self.count - 1)
        return kept

    def _nearest(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Find the least of Ward's distances (half squared) of some clusters to all others, and to which."""
        means = self.means
        squares = means.square().sum(dim=1)
        shares = 1 / self.weights
        found = []
        for own in rows.split(max(1, BLOCK // len(self))):
            distances = torch.addmm(squares[None, :], means[own], means.T, alpha=-2).add_(squares[own, None])
            if shares.min() == shares.max():
                distances.mul_((2 * shares[0]) ** -self.power)
            else:
                distances.mul_((shares[own, None] + shares[None, :]).pow_(-self.power))
            distances[torch.arange(len(own)), own] = torch.inf
            found.append(distances.min(dim=1))
        return torch.cat([values for values, _ in found]), torch.cat([places for _, places in found])

    def _distances(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return Ward's distance of pairs, as scipy has it: the root of twice what the sum of squares gains."""
        found = torch.empty(len(a))
        for start in range(0, len(a), 2**15):
            one, other = a[start : start + 2**15], b[start : start + 2**15]
            apart = (self.means[one] - self.means[other]).square_().sum(dim=1)
            found[start : start + 2**15] = apart.mul_(
                2 * (1 / self.weights[one] + 1 / self.weights[other]) ** -self.power
            ).sqrt_()
        return found

    def table(self) -> np.ndarray:
        """Return the merges by height, nodes numbered as scipy does."""
        if not self.merges:
            return np.empty((0, 4))
        table = np.concatenate(self.merges)
        order = np.argsort(table[:, 2], kind="stable")  # no cluster is higher than what it merges into
        number = np.arange(self.count + len(table))
        number[self.count + order] = np.arange(self.count, len(number))
        table = table[order]
        table[:, :2] = np.sort(number[table[:, :2].astype(np.int64)], axis=1)
        return table


def _narrow(points: np.ndarray, seed: int) -> np.ndarray:
    """Project points on their principal dimensions, where they have more than `NARROW`."""
    if points.shape[1] <= NARROW:
        return points
    some = points[np.random.default_rng(seed).permutation(len(points))[: 20 * NARROW]]
    axes = np.linalg.eigh(np.cov(some, rowvar=False))[1][:, -NARROW:]
    return points @ axes.astype("float32")


def _neighbours(points: np.ndarray, count: int, seed: int) -> torch.Tensor:
    """Return the edges (2, E) from each point to its nearest ones."""
    faiss = import_faiss("a tree finds neighbours")
    size, dim = points.shape
    if size <= FLAT:
        index = faiss.IndexFlatL2(dim)
    else:
        lists = int(4 * size**0.5)
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(dim), dim, lists)
        index.cp.seed, index.cp.niter = seed, 6
        index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 64
        index.nprobe = PROBES
        index.train(points)
    index.add(points)
    found = index.search(points, min(count, size - 1) + 1)[1]
    del index
    edges = torch.stack([torch.arange(size).repeat_interleave(found.shape[1]), torch.from_numpy(found).flatten()])
    return edges[:, edges[1] >= 0]  # -1: the lists that were looked through have no more


def _unique(edges: torch.Tensor, count: int) -> torch.Tensor:
    """Return each pair of different ends once."""
    low, high = torch.minimum(*edges), torch.maximum(*edges)
    keys = np.unique((low * count + high)[low != high].numpy())
    return torch.from_numpy(np.stack([keys // count, keys % count]))


def _matching(edges: torch.Tensor, count: int, draw: torch.Generator) -> torch.Tensor:
    """Choose edges (2, E) that share no end: of those at one end the one that a lot chooses."""
    lots = torch.randperm(edges.shape[1], generator=draw)
    first = torch.full((count,), edges.shape[1])
    for ends in edges:
        first.scatter_reduce_(0, ends, lots, "amin")
    return ((lots == first[edges[0]]) & (lots == first[edges[1]])).nonzero()[:, 0]
