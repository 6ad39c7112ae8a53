"""Several views of each image at once: its centre, as evaluations see it, and random crops."""

import zlib

import torch
from PIL import Image
from torchvision import transforms

from solo_hcsc.data.views import View

JITTER = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation and hue: MoCo v2's


class ManyViews:
    """Turns a PIL image into its centre and random views of it, (V + 1, 3, H, W).

    Beside a centre, which views these are follows from the picture itself: the same in any order and any process.

    Args:
        view: how the encoder is shown an image.
        views: V.
        centre: whether the centre comes first; without it, views are drawn anew each time by torch's own numbers.
        min_scale: the smallest share of the image that a crop covers.
    """

    def __init__(self, view: View, views: int, centre: bool = True, min_scale: float = 0.2) -> None:
        self.view, self.views, self.centre, self.min_scale = view, views, centre, min_scale
        self._centre = view.transform
        self._random = transforms.Compose(
            [
                transforms.RandomResizedCrop(view.crop_size, scale=(min_scale, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.RandomApply([transforms.ColorJitter(*JITTER)], p=0.8),
                transforms.RandomGrayscale(p=0.2),
                *self._centre.transforms[-2:],  # to a tensor, normalised
            ]
        )

    def __call__(self, image: Image.Image) -> torch.Tensor:
        if not self.centre:
            return torch.stack([self._random(image) for _ in range(self.views)])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(image.tobytes()))
            return torch.stack([self._centre(image), *(self._random(image) for _ in range(self.views))])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.views}, {self.min_scale}, {self._centre}, {self._random})"
