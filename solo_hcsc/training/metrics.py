"""Write metrics.csv: every row is whole whenever the run is killed, and a resumed run has the whole history."""

import csv
import io
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities.rank_zero import rank_zero_only

from solo_hcsc.files import written_whole

NAME = "metrics.csv"


class MetricsFile(Logger):
    """Lightning's CSV logger, which loses all rows if it is killed while new columns come in.

    A row is appended in one write; where a metric is new, the whole file is written beside its place and renamed. The
    same row again, as when an epoch's metrics are wanted before its checkpoint, takes the first one's place.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = folder / NAME
        self._columns: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._written = 0  # rows that the file has

    @property
    def name(self) -> str:
        return self.file.parent.parent.name

    @property
    def version(self) -> str:
        return self.file.parent.name

    @property
    def log_dir(self) -> str:
        return str(self.file.parent)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing: args.json has them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        row = {name: float(value) if isinstance(value, torch.Tensor) else value for name, value in metrics.items()}
        row["step"] = len(self._rows) if step is None else step
        same = [old for old in self._rows[-3:] if old.keys() == row.keys() and _place(old) == _place(row)]
        if same and same[-1] != row:
            same[-1].update(row)
            self._written = -1  # of which one is out of date
        if not same:
            self._rows.append(row)

    @rank_zero_only
    def go_on_from(self, file: Path, steps: int) -> None:
        """Take over the rows that another run's file has of its first `steps` steps."""
        if file.is_file():
            with file.open(newline="", encoding="utf-8") as lines:
                before = [row for row in csv.DictReader(lines) if (row.get("step") or "").isdigit()]
            self._rows = [
                {name: value for name, value in row.items() if value} for row in before if int(row["step"]) < steps
            ]

    @rank_zero_only
    def save(self) -> None:
        known = set(self._columns)
        new = [name for row in self._rows for name in row if name not in known]
        if not new and self._written >= 0:
            self._append(self._rows[self._written :])
        elif self._rows:
            columns = sorted({*self._columns, *new})
            with written_whole(self.file) as part:
                part.write_text(_as_csv(columns, self._rows, header=True), encoding="utf-8")
            self._columns = columns
        self._written = len(self._rows)

    def _append(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            with self.file.open("ab", buffering=0) as file:
                file.write(_as_csv(self._columns, rows).encode())

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()


def _as_csv(columns: list[str], rows: list[dict[str, Any]], header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _place(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row.get("epoch"), row["step"]
