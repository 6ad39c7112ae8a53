"""Adds HCSC to the methods of a checkout."""

from solo.methods import METHODS

from solo_hcsc.solo106.method import HCSC
from solo_hcsc.solo106.repairs import FIXES


def register() -> None:
    """`solo.methods.METHODS` has "hcsc" from now on, and what is broken in solo-learn is mended."""
    METHODS["hcsc"] = HCSC
    FIXES.apply()  # once: `solo-hcsc solo main_pretrain.py` comes here twice
