"""solo-learn's own steps of a transform, for fast views of an image."""

import random
from collections.abc import Sequence
from functools import partial

from solo.utils.pretrain_dataloader import GaussianBlur, Solarization
from torchvision.transforms import Compose

from solo_hcsc.data.fast_views import Change, FastViews, blur, solarise


def fast_views(made_by: Sequence[Compose]) -> FastViews:
    """Return the views that solo-learn's transforms make, drawn as they draw them."""
    return FastViews(made_by, {GaussianBlur: _blur, Solarization: _solarise})


def _blur(step: GaussianBlur) -> list[Change]:
    return [partial(blur, sigma=random.uniform(*step.sigma))]


def _solarise(_: Solarization) -> list[Change]:
    return [solarise]
