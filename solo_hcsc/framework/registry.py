"""The framework's method registry, with what installed packages add to it."""

from importlib.metadata import entry_points

from solo_hcsc.framework import repairs as compat
from solo_hcsc.cli.errors import UserError

GROUP = "solo_learn.methods"
_NOT_METHODS = ("base", "linear")


def load_methods() -> dict[str, type]:
    """`solo.methods.METHODS` by name, after the fixes, with every package's methods of the entry point group.

    A package adds its method in its setup.cfg, under `[options.entry_points]`:
    `solo_learn.methods = name = package.module:Class`.
    """
    compat.apply()
    from solo.methods import METHODS

    for entry in entry_points(group=GROUP):
        try:
            METHODS[entry.name] = entry.load()
        except Exception as error:
            # Somebody else's package may fail in any way; the run must say whose it is.
            raise UserError(
                f"method {entry.name!r} ({entry.value}) cannot be loaded: {error!r}; "
                "repair or uninstall the package that declares it"
            ) from error
    return METHODS


def method_names() -> list[str]:
    """The names `--method` takes."""
    return sorted(name for name in load_methods() if name not in _NOT_METHODS)
