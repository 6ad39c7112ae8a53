"""HCSC's options as flags."""

from dataclasses import fields
from typing import Any

from solo_hcsc.cli.parser import yes_or_no
from solo_hcsc.hcsc.options import PRESETS, Options


def add_option_flags(group: Any) -> None:
    """A flag for each of HCSC's options."""
    group.add_argument("--preset", default="recommended", help=f"a set of the options below: {', '.join(PRESETS)}")
    for item in fields(Options):
        if item.name == "preset":
            continue
        default = item.metadata["default"]
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        settings: dict[str, Any] = {"help": f"{item.metadata['help']} (recommended: {shown})", "default": None}
        if isinstance(default, tuple):
            settings |= {"type": int, "nargs": "+"}
        elif isinstance(default, bool):
            settings |= {"type": yes_or_no, "nargs": "?", "const": True}
        else:
            settings |= {"type": type(default)}
        if item.metadata["choices"]:
            settings["choices"] = item.metadata["choices"]
        group.add_argument(f"--{item.name}", **settings)
