"""An extension of griffe, which reads the docstrings: our `Example:` is a section of code to it."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Name the section as griffe does."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
