"""How good features are, judged without labels: on torch alone.

Features (n, D) are those of n images: a tensor, an array or `Embeddings`. None of these measures is an accuracy;
docs/judging.md says what each can tell.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F

from solo_hcsc.errors import ArgumentError
from solo_hcsc.hcsc.vectors import as_features

STILL = 1e-3  # of the features' root mean square: a standard deviation from which on a dimension counts as alive


def rankme(features: Any, eps: float = 1e-7) -> float:
    """Compute RankMe (Garrido et al., ICML 2023, Eq. 1): exp of the entropy of the normalised singular values.

    It is a smooth rank: D if the features have the same extent in D directions, 1 if they all lie on one line. They are
    not centred. It cannot exceed n: compare figures of equally many images only.

    Args:
        features: (n, D).
        eps: added to each normalised singular value, as in the paper.

    Returns:
        Between 1 and min(n, D); NaN if the features are not finite or all zero.

    Example:
        >>> round(rankme(torch.eye(8)), 3), round(rankme(torch.ones(8, 4)), 3)
        (8.0, 1.0)
    """
    values = as_features(features, "features")
    if not torch.isfinite(values).all() or not values.any():
        return math.nan
    gram = values @ values.T if len(values) < values.size(1) else values.T @ values
    # Half the time of svdvals; singular values that this loses are far below eps.
    singular = torch.linalg.eigvalsh(gram.cpu()).clamp(min=0).sqrt()
    shares = singular / singular.sum() + eps
    return float((-shares * shares.log()).sum().exp())


def alignment(z1: Any, z2: Any, alpha: float = 2.0) -> float:
    """Compute alignment (Wang & Isola, ICML 2020, Section 4.1): mean distance to the power alpha of positive pairs.

    Args:
        z1: (n, D) features of n images; they are scaled to unit length here.
        z2: (n, D) features of another view of each.
        alpha: the paper's exponent.

    Returns:
        0 if both views of every image agree; at most 4 for alpha = 2. Lower is better, if uniformity is not worse.

    Example:
        >>> z = torch.eye(4)
        >>> alignment(z, z), alignment(z, -z), round(alignment(z, z.flip(0)), 3)
        (0.0, 4.0, 2.0)
    """
    first, second = _unit(z1, "z1"), _unit(z2, "z2")
    if first.shape != second.shape:
        raise ArgumentError(
            f"`z2` has shape {tuple(second.shape)} and `z1` {tuple(first.shape)}: give two views of each"
        )
    return float((first - second).norm(dim=1).pow(alpha).mean())


def uniformity(z: Any, t: float = 2.0) -> float:
    """Compute uniformity (Wang & Isola, ICML 2020, Section 4.1): log of the mean Gaussian potential of all pairs.

    Args:
        z: (n, D) features of n >= 2 images; they are scaled to unit length here.
        t: the paper's t.

    Returns:
        0 if all features are the same direction; about -2t if they are spread evenly over a sphere of many dimensions.
        Lower is better, if alignment is not worse. Features behind a ReLU have no negative parts and cannot reach -2t.

    Example:
        >>> round(uniformity(torch.eye(5)), 3), abs(round(uniformity(torch.ones(5, 3)), 3))
        (-4.0, 0.0)
    """
    unit = _unit(z, "z")
    potentials = (2 * t * (unit @ unit.T - 1)).exp()  # of unit vectors |a - b|^2 = 2 - 2ab
    pairs = len(unit) * (len(unit) - 1)
    return float(((potentials.sum() - potentials.trace()) / pairs).log())


def dead_dimensions(features: Any, still: float = STILL) -> float:
    """Return the share of collapsed dimensions: those that hardly vary over the images (Jing et al., ICLR 2022).

    Jing et al. count vanishing singular values of the covariance; this counts vanishing entries of its diagonal, which
    are what a ReLU or a pruned unit leaves behind. Collapse in other directions is what `rankme` sees.

    Args:
        features: (n, D).
        still: a dimension is dead if its standard deviation is at most this share of the root mean square of all
            entries, so that the features' scale does not matter.

    Returns:
        Between 0 and 1, which is total collapse: one constant vector.

    Example:
        >>> dead_dimensions(torch.tensor([[1.0, 5.0, 0.0, 2.0], [2.0, 5.0, 0.0, 1.0]]))
        0.5
    """
    values = as_features(features, "features")
    scale = values.pow(2).mean().sqrt()
    return float((values.std(dim=0, correction=0) <= still * scale).double().mean())


def _unit(features: Any, argument: str) -> torch.Tensor:
    return F.normalize(as_features(features, argument), dim=1)
