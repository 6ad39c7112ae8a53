"""The command that comes next, to be copied from the end of another one's output; and where a command writes."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from solo_hcsc.settings import Settings


def next_command(command: str, flags: Settings, but: Sequence[str], *more: object) -> str:
    """Return a command line with the same run and images, without the flags `but`, and with `more`."""
    flags = vars(flags).get("as_typed", flags)
    what = flags.pretrained_feature_extractor
    words = [] if what is None else [str(what)]
    for name in sorted(flags.typed - {*but, "pretrained_feature_extractor"}):
        value = getattr(flags, name)
        values = [] if value is True else value if isinstance(value, list | tuple) else [value]
        words += [f"--{name}", *map(str, values)]
    return f"solo-hcsc {command} {shlex.join([*words, *map(str, more)])}"


def default_place(flags: Settings, kind: str) -> Settings:
    """Return settings with a folder `out`: NAME_kind for a folder of images NAME, here or, among the images, beside."""
    if flags.out is not None:
        return flags
    asked = flags.data_dir if "data_dir" in flags.typed else flags.pretrained_feature_extractor
    folder = asked.resolve()
    out = Path(f"{folder.name or 'images'}_{kind}")
    among = out.resolve().is_relative_to(folder)
    return flags.but(out=folder.with_name(out.name) if among and folder.name else out)
