from solo.methods import linear
from solo.methods.base import BaseMomentumMethod


class Other(BaseMomentumMethod):
    """A method that reads a key of its own: cfg.method_kwargs.pred_hidden_dim."""


METHODS = {"other": Other}
__all__ = ["METHODS", "linear"]
