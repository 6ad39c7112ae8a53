"""Speed up convolutions of small images on the CPU; the sums are the same."""

import torch
import torch.nn.functional as F
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import nn


class Trimmed(nn.Conv2d):
    """A convolution that skips kernel positions which only see padding.

    A ResNet's last stage sees one pixel of a 32 x 32 image, so of a 3 x 3 kernel only the middle counts; the gradient
    of the whole kernels takes a fifth to a third of the backward pass there.
    """

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows, columns = (self._used(axis, input.size(axis - 2)) for axis in (0, 1))
        if (rows, columns) == tuple((0, size) for size in self.kernel_size):
            return super()._conv_forward(input, weight, bias)
        padding = (self._padding_before(0, rows[0]), self._padding_before(1, columns[0]))
        kernel = weight[:, :, slice(*rows), slice(*columns)]
        return F.conv2d(input, kernel, bias, self.stride, padding, self.dilation, self.groups)

    def _used(self, axis: int, size: int) -> tuple[int, int]:
        """Return the first and last + 1 of the kernel's places that lie on a pixel at any step.

        All places where none does, and where a convolution with the others alone would have another number of steps:
        its padding is as wide on the right as on the left.
        """
        kernel, stride, padding = self.kernel_size[axis], self.stride[axis], self._padding_before(axis, 0)
        dilation = self.dilation[axis]
        steps = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        pixels = (range(place * dilation - padding, size, stride)[: max(steps, 0)] for place in range(kernel))
        used = [place for place, seen in enumerate(pixels) if seen and seen[-1] >= 0]
        if not used:
            return 0, kernel
        first, end = used[0], used[-1] + 1
        left = self._padding_before(axis, first)
        same = (size + 2 * left - dilation * (end - first - 1) - 1) // stride + 1 == steps
        return (first, end) if left >= 0 and same else (0, kernel)

    def _padding_before(self, axis: int, place: int) -> int:
        """Return the padding that is left where the kernel begins at this place."""
        return int(self.padding[axis]) - place * self.dilation[axis]


class FastConvolutions(Callback):
    """Have a model's plain convolutions skip padding and work channel by channel while it trains on a CPU.

    The modules are of another class only from the beginning of a fit to its end.
    """

    def __init__(self) -> None:
        self._changed: list[nn.Module] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._changed = make_fast(pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._undo()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._undo()  # Lightning tears down only what came to its end

    def _undo(self) -> None:
        make_plain(self._changed)
        self._changed = []


def make_fast(model: nn.Module) -> list[nn.Module]:
    """Replace the model's plain convolutions and lay its weights out channels last; return what it replaced."""
    plain = [module for module in model.modules() if _is_plain(module)]
    for module in plain:
        module.__class__ = Trimmed
    model.to(memory_format=torch.channels_last)
    return plain


def make_plain(modules: list[nn.Module]) -> None:
    for module in modules:
        module.__class__ = nn.Conv2d


def _is_plain(module: nn.Module) -> bool:
    if type(module) is not nn.Conv2d:
        return False
    return module.padding_mode == "zeros" and not isinstance(module.padding, str)
