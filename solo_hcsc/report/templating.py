"""Pages from templates: every value is escaped, and one style sheet is part of each page."""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, **content: Any) -> str:
    """Render a page, which needs nothing but a browser.

    Args:
        template: Its file below `templates`.
        content: What it shows. Nothing in it is markup but `Markup`.
    """
    return _environment().get_template(template).render(content)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("solo_hcsc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_spelled_out,
    )
    found.globals["style"] = Markup(files("solo_hcsc.report").joinpath("style.css").read_text(encoding="utf-8"))
    return found


def _spelled_out(value: Any) -> Any:
    """Write invalid Unicode in a text as escapes."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if type(value) is str else value
