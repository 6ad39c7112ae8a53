"""Text of evaluations that trained something."""

from typing import TYPE_CHECKING

from solo_hcsc.progress import say

if TYPE_CHECKING:
    from solo_hcsc.evaluation.probe import Evaluated


def show(evaluated: "Evaluated", remark: str = "", images: str = "of {} images") -> None:
    """Print the table and what stands below it, if anything was validated, and where things are."""
    result = evaluated.result
    if result.metrics:
        say(result.table())
        say("; ".join(filter(None, [images.format(result.data["val_images"]), remark])))
        if "features" in result.settings:
            say("features were computed once, without augmentation: a quick answer, not the paper's protocol")
    evaluated.tell()
