"""Makes solo-learn 1.0.2 (2021) run on current torch, Lightning 2, torchmetrics and timm.

Every workaround is here and nowhere else: one function per incompatibility, whose docstring says what breaks
and why, with a probe that tells whether it still does. Importing this package applies them all, once.
`tests/solo102/test_repairs.py` checks in a fresh process that each probe finds its fault before the fix only.
"""

from importlib import import_module

from solo_hcsc.errors import MissingPackage, UserError
from solo_hcsc.solo102.repairs.fix import FIXES, apply
from solo_hcsc.solo102.repairs.stand_ins import import_solo, install
from solo_hcsc.solo_version import INSTALL, RELEASE, installed_solo, wrong_version

__all__ = ["FIXES", "apply"]

_found = installed_solo()
if _found is None:
    raise MissingPackage(f"solo-learn is missing; install it without its outdated pins: {INSTALL}")
if _found.version != RELEASE:
    raise UserError(wrong_version(_found))
install()  # before the modules below: `import solo` fails without the stand-ins
import_solo()
for _module in ("knn_metric", "lightning_hooks", "methods", "optimisation"):
    import_module(f"{__name__}.{_module}")
apply()
