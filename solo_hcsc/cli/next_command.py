"""The command that comes next, to be copied from the end of another one's output."""

import shlex
from collections.abc import Sequence

from solo_hcsc.settings import Settings


def next_command(command: str, flags: Settings, but: Sequence[str], *more: object) -> str:
    """Return a command line with the same run and images, without the flags `but`, and with `more`."""
    words = [str(flags.pretrained_feature_extractor)]
    for name in sorted(flags.typed - {*but, "pretrained_feature_extractor"}):
        value = getattr(flags, name)
        values = [] if value is True else value if isinstance(value, list | tuple) else [value]
        words += [f"--{name}", *map(str, values)]
    return f"solo-hcsc {command} {shlex.join([*words, *map(str, more)])}"
