"""Adds HCSC to the methods of a checkout."""

from solo.methods import METHODS

from solo_hcsc.solo106.method import HCSC
from solo_hcsc.solo106.repairs import FIXES


def register() -> None:
    """Add "hcsc" to `solo.methods.METHODS`, and mend what is broken in solo-learn."""
    METHODS["hcsc"] = HCSC
    FIXES.apply()  # once: `solo-hcsc solo main_pretrain.py` comes here twice
