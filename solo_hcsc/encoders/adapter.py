"""An adapter: a small network that turns a frozen encoder's features into ones that suit some images better.

Shapes: `n` images, `F` features of the encoder, `P` principal components.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from solo_hcsc.errors import UserError

HIDDEN = 512
WIDTH = 256  # principal components, at most
SHARE = 0.6  # of the adapted points in the length of both
PREFIX = "adapter."  # of its weights in a checkpoint
_FITTED_ON = 50_000  # images whose features decide the principal components, at most


class Adapter(nn.Module):
    """Turns features (n, F) into frozen points and adapted ones, side by side, at unit length (n, 2 P).

    Frozen points are the principal components at unit length; a residual network with one hidden layer adapts them.
    Before training it changes nothing.

    Args:
        mean: (F,) taken off first.
        components: (F, P) onto which the rest is projected.
        hidden: the size of the hidden layer.
        share: how long the adapted part is; the frozen one has `1 - share`, before both are brought to unit length.

    Example:
        >>> adapter = Adapter(torch.zeros(8), torch.eye(8)[:, :4])
        >>> adapter(torch.randn(5, 8)).shape
        torch.Size([5, 8])
    """

    mean: torch.Tensor
    components: torch.Tensor
    weights: torch.Tensor  # of the two parts

    def __init__(
        self, mean: torch.Tensor, components: torch.Tensor, hidden: int = HIDDEN, share: float = SHARE
    ) -> None:
        super().__init__()
        width = components.shape[1]
        self.register_buffer("mean", mean.float())
        self.register_buffer("components", components.float())
        self.register_buffer("weights", F.normalize(torch.tensor([1 - share, share]), dim=0))
        self.inner, self.outer = nn.Linear(width, hidden), nn.Linear(hidden, width)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    @classmethod
    def of(cls, features: np.ndarray, width: int = WIDTH) -> "Adapter":
        """Make an adapter for features (N, F), with their principal components, `width` of them at most."""
        strided = features[:: -(-len(features) // _FITTED_ON)].astype("float64")
        mean = strided.mean(axis=0)
        vectors = np.linalg.eigh(np.cov((strided - mean).T))[1][:, ::-1]
        kept = min(width, len(strided) - 1, len(mean))
        return cls(torch.from_numpy(mean), torch.from_numpy(vectors[:, :kept].copy()))

    @classmethod
    def within(cls, weights: Mapping[str, Any], where: object) -> "Adapter | None":
        """Make the adapter that the weights of a checkpoint have; None where they have none.

        Args:
            weights: of an encoder and its adapter.
            where: the checkpoint, for messages.
        """
        own = {name.removeprefix(PREFIX): value for name, value in weights.items() if name.startswith(PREFIX)}
        if not own:
            return None
        try:
            made = cls(own["mean"], own["components"], len(own["inner.bias"]))
            made.load_state_dict(own)
        except (LookupError, TypeError, AttributeError, RuntimeError) as error:
            raise UserError(f"{where}: its adapter is not whole; give a checkpoint that `adapt` wrote") from error
        if not all(bool(value.isfinite().all()) for value in made.state_dict().values()):
            raise UserError(f"{where}: its adapter has NaN or infinite values; adapt the encoder again")
        return made.eval()

    def points(self, features: torch.Tensor) -> torch.Tensor:
        """Return the frozen points (n, P) of features (n, F), at unit length."""
        return F.normalize((features.float() - self.mean) @ self.components, dim=-1)

    def adapted(self, points: torch.Tensor) -> torch.Tensor:
        """Return the adapted points (n, P) of frozen ones, at unit length."""
        return F.normalize(points + self.outer(F.relu(self.inner(points))), dim=1)

    def beside(self, points: torch.Tensor) -> torch.Tensor:
        """Return frozen points (n, P) and the adapted ones side by side, at unit length (n, 2 P)."""
        return torch.cat([self.weights[0] * points, self.weights[1] * self.adapted(points)], dim=1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.beside(self.points(features))


class Adapted(nn.Module):
    """An encoder with an adapter on top: one network from images to features."""

    encoder: nn.Module
    adapter: Adapter

    def __init__(self, encoder: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.encoder, self.adapter = encoder, adapter

    @property
    def num_features(self) -> int:
        """Return the size of a feature."""
        return 2 * self.adapter.components.shape[1]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.adapter(self.encoder(images))
