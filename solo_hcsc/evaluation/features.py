"""Features of a frozen encoder: which checkpoint, which images, on which device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import Dataset

from solo_hcsc.data.images import Skipped
from solo_hcsc.data.loaders import Loading
from solo_hcsc.encoders.embedding import choose_device
from solo_hcsc.encoders.loading import Encoder
from solo_hcsc.errors import UserError, on_one_line
from solo_hcsc.progress import note, watch
from solo_hcsc.runs.run import Run
from solo_hcsc.typed import typed

Module = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Features:
    """Feature vectors `x (N, D)` and labels `y (N,)` of a data set's images, in its order, on the CPU."""

    x: torch.Tensor
    y: torch.Tensor
    skipped: tuple[Skipped, ...] = ()  # images that could not be read and are not among them


class Frozen:
    """A run's encoder, or its encoder and projector, on a device."""

    def __init__(self, run: Run, crop_size: int, features: str = "backbone", accelerator: str = "auto") -> None:
        self.run, self.device = run, choose_device(accelerator)
        self.encoder: Encoder = run.encoder_for(crop_size)
        module = self.encoder.module
        if features == "projector":
            module = nn.Sequential(module, run.projector)
        self.module = module.eval().to(self.device)

    def of(self, dataset: Dataset, loading: Loading, title: str) -> Features:
        return extract(self.module, dataset, loading, title, self.device)

    def head(self, kind: str) -> Callable[[Features], Features]:
        """Return a function from the encoder's features to those of a kind, `backbone` (themselves) or `projector`."""
        if kind == "backbone":
            return lambda features: features
        projector = self.run.projector.eval().to(self.device)

        def project(features: Features) -> Features:
            x = features_of(lambda part: projector(part.to(self.device)), features.x)
            check_finite(x, kind)
            return Features(x, features.y, features.skipped)

        return project


@torch.no_grad()
def extract(module: Module, dataset: Dataset, loading: Loading, title: str, device: torch.device) -> Features:
    """Pass every image once through a module in evaluation mode."""
    images, done = len(dataset), 0  # type: ignore[arg-type]
    x, y = torch.empty(0), torch.empty(0)
    skipped: list[Skipped] = []
    for batch, labels in watch(loading.readable(dataset, skipped), images, title):
        out = module(batch.to(device, non_blocking=True)).float().cpu()
        if not done:  # written in place: collecting and joining would take the memory twice
            x, y = out.new_empty(images, *out.shape[1:]), labels.new_empty(images, *labels.shape[1:])
        x[done : done + len(out)] = out
        y[done : done + len(out)] = labels
        done += len(out)
    x, y = x[:done], y[:done]
    check_finite(x, title)
    return Features(x, y, tuple(skipped))


def tell_skipped(skipped: Sequence[Skipped], images: int, most: int = 20) -> None:
    """List the images that could not be read, of so many; nothing where all could."""
    if skipped:
        more = [f"... and {len(skipped) - most} more"] * (len(skipped) > most)
        paths = [on_one_line(one.path) for one in skipped[:most]]
        lines = "\n".join(f"  {line}" for line in [*paths, *more])
        note(f"{len(skipped)} of {images} images could not be read and are left out:\n{lines}")


def check_finite(x: torch.Tensor, title: str) -> None:
    if not x.isfinite().all():
        raise UserError(f"{title}: the encoder's output has NaN or infinite values; take a checkpoint from before that")


@torch.no_grad()
@typed
def features_of(module: Module, images: torch.Tensor, batch_size: int = 256) -> torch.Tensor:
    """Compute features of images that are in memory.

    Args:
        module: an encoder in evaluation mode, such as `load_encoder(path).module.eval()`.
        images: (N, 3, H, W), normalised as in training.
        batch_size: images per forward pass.

    Returns:
        Features (N, D) on the CPU.

    Example:
        >>> features_of(torch.nn.Flatten(), torch.zeros(5, 3, 2, 2)).shape
        torch.Size([5, 12])
    """
    return torch.cat([module(part).float().cpu() for part in images.split(batch_size)])
