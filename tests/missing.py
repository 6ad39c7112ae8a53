"""Run a program as if packages were not installed: `python missing.py NAME,NAME ARGUMENTS...`."""

import importlib.metadata
import runpy
import sys
from importlib.machinery import PathFinder

MISSING = set(sys.argv[1].split(","))


def hide() -> None:
    """Have neither imports nor queries of what is installed find the packages."""
    find, distribution = PathFinder.find_spec, importlib.metadata.distribution

    def found(cls, name, path=None, target=None):
        return None if name.split(".")[0] in MISSING else find(name, path, target)

    def installed(name):
        if name in MISSING:
            raise importlib.metadata.PackageNotFoundError(name)
        return distribution(name)

    PathFinder.find_spec = classmethod(found)
    importlib.metadata.distribution = installed


if __name__ == "__main__":
    hide()
    sys.argv = ["solo-hcsc", *sys.argv[2:]]
    runpy.run_module("solo_hcsc", run_name="__main__")
