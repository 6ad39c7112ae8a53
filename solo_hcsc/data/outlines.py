"""COCO's segmentations: polygons, or run lengths as numbers or text; checked before pycocotools, which trusts them."""

from typing import Any

_MOST_BITS = 60  # of a run length in text: more would not be a number of pixels
_WHOLE, _NUMBERS = {int}, {int, float}


def encoded(outline: Any, width: int, height: int) -> dict[str, Any]:
    """Return an outline as COCO's compressed run lengths; `ValueError` where it is not one of such an image."""
    from pycocotools import mask

    check_outline(outline, width, height)
    if isinstance(outline, list):
        return mask.merge(mask.frPyObjects(outline, height, width))
    if isinstance(outline["counts"], list):
        return mask.frPyObjects(outline, height, width)
    return outline


def check_outline(outline: Any, width: int, height: int) -> None:
    """Raise `ValueError` unless an outline is one of an image of this size; says what is wrong with it.

    Example:
        >>> check_outline([[0, 0, 9, 0, 9, 9]], 10, 10)
        >>> check_outline({"size": [10, 10], "counts": [0, 99]}, 10, 10)
        Traceback (most recent call last):
        ...
        ValueError: its counts add up to 99 pixels, not to 100
    """
    if isinstance(outline, list):
        for polygon in outline:
            _check_polygon(polygon, width, height)
        return
    if not isinstance(outline, dict) or not {"size", "counts"} <= outline.keys():
        raise ValueError("it is neither polygons nor run lengths with size and counts")
    if outline["size"] != [height, width]:
        raise ValueError(f"its size is {str(outline['size'])[:60]}, not [{height}, {width}]")
    counts = outline["counts"]
    if isinstance(counts, str):
        counts = _run_lengths(counts)
    if not isinstance(counts, list) or not set(map(type, counts)) <= _WHOLE or min(counts, default=0) < 0:
        raise ValueError("its counts are not whole numbers from 0")
    if sum(counts) != width * height:
        raise ValueError(f"its counts add up to {sum(counts)} pixels, not to {width * height}")


def _check_polygon(polygon: Any, width: int, height: int) -> None:
    """Refuse points so far outside of the image that drawing the polygon takes memory without end."""
    if not isinstance(polygon, list) or not set(map(type, polygon)) <= _NUMBERS:
        raise ValueError("a polygon of it is not a list of numbers")
    if len(polygon) < 6 or len(polygon) % 2:
        raise ValueError(f"a polygon of it has {len(polygon)} numbers; x and y of three points or more are expected")
    for side, places in ((width, polygon[::2]), (height, polygon[1::2])):
        if not all(-side <= place <= 2 * side for place in places):  # nor is NaN
            raise ValueError(f"a polygon of it is far outside of the image of {width} x {height} pixels")


def _run_lengths(text: str) -> list[int]:
    """Decode run lengths in COCO's text: five bits in a character, and whether more follow; differences from the 4th.

    Example:
        >>> _run_lengths("g03400000<")  # of the pixels 2 to 4 in the columns 3 to 6 of an image 7 high and 9 wide
        [23, 3, 4, 3, 4, 3, 4, 3, 16]
    """
    counts: list[int] = []
    value = bits = 0
    for character in text:
        part = ord(character) - 48
        if not 0 <= part < 64 or bits > _MOST_BITS:
            raise ValueError("its counts are not text as COCO's tools write it")
        value |= (part & 31) << bits
        bits += 5
        if not part & 32:  # the last one, whose highest bit is the sign
            value -= (part & 16) << bits - 4
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = bits = 0
    if bits:
        raise ValueError("its counts end within a number")
    return counts
