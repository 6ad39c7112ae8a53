"""Text in CSV files that people open in a spreadsheet, which takes some of it for formulas and runs them."""

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")  # explore.js has the same


def as_cell(text: str) -> str:
    """Return text with an apostrophe before what a spreadsheet would take for a formula; `from_cell` takes it away.

    Text that has apostrophes there already gets one more, so that each text comes back as it was.

    Example:
        >>> [as_cell(text) for text in ("=1+2", "-x.png", "'=1+2", "a=b", "'tis")]
        ["'=1+2", "'-x.png", "''=1+2", 'a=b', "'tis"]
    """
    return f"'{text}" if _FORMULA.match(text) else text


def from_cell(cell: str) -> str:
    """Return the text that `as_cell` was given.

    Example:
        >>> [from_cell(as_cell(text)) for text in ("=1+2", "'=1+2", "'tis")]
        ['=1+2', "'=1+2", "'tis"]
    """
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
