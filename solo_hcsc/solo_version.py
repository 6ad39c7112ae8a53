"""Which solo-learn Python would import, told without importing it."""

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

RELEASE, HYDRA = "1.0.2", "1.0.6"
# setup.py says 1.0.6 from the tag 1.0.6 on; that tag itself needs pl_bolts, which runs on no current Lightning.
CHECKOUTS = "tag 1.0.8 or 1.0.7, or the main branch, whose setup.py says 1.0.6"
OLD_TAG = "1.0.6 (the tag of this name, which needs pl_bolts)"
INSTALL = f"python -m pip install --no-deps solo-learn=={RELEASE}"


@dataclass(frozen=True)
class SoloLearn:
    """A solo-learn on this machine."""

    version: str  # RELEASE, HYDRA, OLD_TAG, or what else it is
    folder: Path  # of its package `solo`


def installed_solo() -> SoloLearn | None:
    """Return the solo-learn that `import solo` takes; None if there is none."""
    spec = find_spec("solo")
    if spec is None or not spec.submodule_search_locations:
        return None
    return solo_in(Path(next(iter(spec.submodule_search_locations))))


def solo_in(folder: Path) -> SoloLearn:
    """Recognise the solo-learn of a package folder by its files: a checkout does not tell its version."""
    file = folder / "methods" / "base.py"
    base = file.read_text(errors="replace") if file.is_file() else ""
    if (folder / "args" / "pretrain.py").is_file():
        return SoloLearn(OLD_TAG if "from pl_bolts" in base else HYDRA, folder)
    return SoloLearn(RELEASE if "self.encoder" in base else "1.0.3 to 1.0.5", folder)


def wrong_version(found: SoloLearn) -> str:
    """Say why our own commands cannot use this solo-learn, and what to do."""
    what = f"found solo-learn {found.version} in {found.folder}, and this command needs {RELEASE}"
    if sys.path and found.folder.parent == Path(sys.path[0] or ".").resolve():
        return f"{what}; you are in its checkout: type solo-hcsc instead of python -m solo_hcsc, or go elsewhere"
    return f"{what}; take an environment of its own and run there: {INSTALL}"
