"""HCSC as a solo-learn method, and solo-learn 1.0.2 on today's PyTorch."""

import importlib.util

from solo_hcsc.version import __version__

__all__ = ["__version__"]

if importlib.util.find_spec("solo") is None:
    # `name` makes `python -m solo_hcsc.x` print this as one line instead of a traceback.
    raise ImportError(
        "solo-learn is missing; install it without its outdated pins: "
        "python -m pip install --no-deps solo-learn==1.0.2",
        name=__name__,
    )
