"""Makes solo-learn 1.0.2 (2021) run on current torch, Lightning 2, torchmetrics and timm.

Every workaround is here and nowhere else: one function per incompatibility, whose docstring says what breaks
and why, with a probe that tells whether it still does. `apply()` runs them all, once.
`tests/test_compat.py` checks in a fresh process that each probe finds its fault before the fix and not after it.
"""

from importlib import import_module

from solo_hcsc.framework.repairs.fix import FIXES
from solo_hcsc.framework.repairs.stand_ins import install

install()  # before the modules below: `import solo` fails without the stand-ins
for _module in ("knn_metric", "lightning_hooks", "methods", "optimisation", "umap"):
    import_module(f"{__name__}.{_module}")

__all__ = ["FIXES", "apply"]

_applied = False


def apply() -> None:
    """Applies every fix. Safe to call again."""
    global _applied
    if not _applied:
        for fix in FIXES:
            fix.apply()
        _applied = True
