"""solo-learn's method registry, with HCSC and what installed packages add to it."""

from importlib.metadata import entry_points

from solo.methods import METHODS

from solo_hcsc.errors import UserError
from solo_hcsc.methods.names import METHOD_GROUP
from solo_hcsc.solo102.method import HCSC

METHODS["hcsc"] = HCSC


def load_methods() -> dict[str, type]:
    """Return `solo.methods.METHODS` by name, with every package's methods of the entry point group.

    A package adds its method in its setup.cfg, under `[options.entry_points]`:
    `solo_learn.methods = name = package.module:Class`.
    """
    for entry in entry_points(group=METHOD_GROUP):
        try:
            METHODS[entry.name] = entry.load()
        except Exception as error:
            # Somebody else's package may fail in any way; the run must say whose it is.
            raise UserError(
                f"method {entry.name!r} ({entry.value}) cannot be loaded: {error!r}; "
                "repair or uninstall the package that declares it"
            ) from error
    return METHODS
