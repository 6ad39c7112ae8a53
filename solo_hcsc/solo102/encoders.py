"""timm's models as encoders of solo-learn's methods."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from solo.methods.base import BaseMethod
from torch import nn

from solo_hcsc.encoders.make import timm_encoder
from solo_hcsc.encoders.names import TIMM


def _with_timm(original: Callable[..., None]) -> Callable[..., None]:
    """Wrap solo-learn's constructor, which asserts that an encoder is one of its ten."""

    @wraps(original)
    def __init__(self: Any, encoder: str, num_classes: int, backbone_args: dict[str, Any], **kwargs: Any) -> None:
        if not encoder.startswith(TIMM):
            return original(self, encoder=encoder, num_classes=num_classes, backbone_args=backbone_args, **kwargs)
        original(self, encoder="resnet18", num_classes=num_classes, backbone_args={}, **kwargs)
        self.base_model = partial(timm_encoder, encoder)  # of which a method with momentum makes a second one
        self.backbone_args = backbone_args
        self.encoder_name = "timm"  # in which it looks for resnet and swin
        self.encoder = self.base_model(**backbone_args)
        self.features_dim = self.encoder.num_features
        self.classifier = nn.Linear(self.features_dim, num_classes)

    return __init__


BaseMethod.__init__ = _with_timm(BaseMethod.__init__)
