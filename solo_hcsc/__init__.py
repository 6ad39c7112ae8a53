"""HCSC for solo-learn, and in any training loop."""

from solo_hcsc.version import __version__

__all__ = ["__version__"]
