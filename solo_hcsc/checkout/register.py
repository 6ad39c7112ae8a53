"""Adds HCSC to the methods of a checkout."""

from pathlib import Path

from solo.methods import METHODS

from solo_hcsc.checkout.method import HCSC
from solo_hcsc.checkout.repairs import repair

CONFIGS = Path(__file__).parent / "configs"


def register() -> None:
    """`solo.methods.METHODS` has "hcsc" from now on, and what is broken in solo-learn is mended."""
    if METHODS.get("hcsc") is not HCSC:  # `solo-hcsc solo main_pretrain.py` comes here twice
        METHODS["hcsc"] = HCSC
        repair()
