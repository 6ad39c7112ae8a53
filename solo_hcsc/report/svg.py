"""SVG files as part of a page: checked, and with names of their own."""

import re
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from markupsafe import Markup

from solo_hcsc.errors import UserError, on_one_line

_ELEMENTS = frozenset(
    "svg g defs style symbol use title desc path rect circle ellipse line polyline polygon text tspan textPath image"
    " clipPath mask marker pattern linearGradient radialGradient stop filter feColorMatrix feComponentTransfer"
    " feFuncA feGaussianBlur feOffset feBlend".split()
)
_PICTURES = ("data:image/png;base64,", "data:image/jpeg;base64,")
_WIDE = 2.2  # from this width over height on, a picture has a row of its own
_URL = re.compile(r"url\(\s*['\"]?(.?)", re.IGNORECASE)


@dataclass(frozen=True)
class Shown:
    """A picture on a page, checked and with ids of its own."""

    title: str
    caption: str
    svg: Markup
    wide: bool

    @classmethod
    def of(cls, title: str, caption: str, element: str, wide: bool | None = None) -> "Shown":
        """Read a picture; `wide`: whether it has a row of its own; if not given, its proportions decide."""
        return cls(title, caption, Markup(element), proportions(element) >= _WIDE if wide is None else wide)


def read(file: Path, prefix: str, label: str) -> str:
    """Return a picture's element, from a file that one of our commands wrote."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{file}: cannot be read ({reason}); run solo-hcsc analyse again") from error
    return inline(text, prefix, label, str(file))


def inline(text: str, prefix: str, label: str, source: str) -> str:
    """Return the picture as an element for a page, every id in it starting with `prefix`.

    It is parsed and written anew, so that a browser reads in it what was checked here and nothing else.
    """
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise UserError(f"{source}: not readable as SVG ({error}); run solo-hcsc analyse again") from error
    for element in root.iter():
        element.tag = _local(element.tag)
        attributes = {_local(name): value for name, value in element.attrib.items()}
        reason = _refusal(element, attributes)
        if reason:
            raise UserError(f"{source}: has {reason}, which a picture does not need; it is not taken into the page")
        element.attrib.clear()
        element.attrib.update({name: _renamed(name, value, prefix) for name, value in attributes.items()})
    if root.tag != "svg":
        raise UserError(f"{source}: not an SVG picture but <{root.tag}>; run solo-hcsc analyse again")
    root.attrib.update({"role": "img", "aria-label": on_one_line(label)})
    root.tail = None
    return ElementTree.tostring(root, encoding="unicode")


def proportions(picture: str) -> float:
    """Return width over height of an inlined picture; 1 if it does not tell."""
    box = re.match(r'<svg[^>]* viewBox="([^"]*)"', picture)
    sides = [float(side) for side in re.findall(r"[\d.]+", box[1])] if box else []
    return sides[2] / sides[3] if len(sides) == 4 and sides[3] else 1.0


def _refusal(element: ElementTree.Element, attributes: dict[str, str]) -> str | None:
    if element.tag not in _ELEMENTS:
        return f"an element <{element.tag}>"
    for name, value in attributes.items():
        if name.lower().startswith("on"):
            return f"a handler {name}"
        inside = value.startswith("#") or (element.tag == "image" and value.startswith(_PICTURES))
        if name.lower() in ("href", "src") and not inside:
            return f"a link to {value:.60}"
    styles = [*attributes.values(), element.text or ""] if element.tag == "style" else attributes.values()
    for style in styles:
        if any(start != "#" for start in _URL.findall(style)) or "@import" in style.lower():
            return f"a link in {style.strip():.60}"
    return None


def _renamed(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name == "href" and value.startswith("#"):
        return f"#{prefix}{value[1:]}"
    return re.sub(r"url\(\s*['\"]?#([^)'\"]*)['\"]?\s*\)", rf"url(#{prefix}\1)", value)


def _local(name: object) -> str:
    return str(name).rpartition("}")[2]
