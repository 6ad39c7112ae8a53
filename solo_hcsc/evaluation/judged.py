"""What an evaluation of a run returns: results by their files, and what is said of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from solo_hcsc.data.images import Skipped
from solo_hcsc.evaluation.features import tell_skipped
from solo_hcsc.progress import say
from solo_hcsc.runs.results import Result


@dataclass(frozen=True)
class Judged:
    """Hold the results of an evaluation by their files, and what there is to say of them."""

    results: Mapping[Path, Result]
    lines: Sequence[str]
    skipped: Sequence[Skipped]
    images: int  # with those that were skipped

    def tell(self, *further: str) -> None:
        """Say the figures and where they are; list images that could not be read."""
        for line in (*self.lines, *further):
            say(line)
        tell_skipped(self.skipped, self.images)
