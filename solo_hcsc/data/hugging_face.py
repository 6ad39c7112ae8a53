"""The images of a Hugging Face data set, by number. Imported only where one is asked for: `datasets` takes seconds."""

import hashlib
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
from pyarrow import compute

from solo_hcsc.data import tables
from solo_hcsc.data.images import Encoded, UnreadableImage
from solo_hcsc.data.tables import check_columns, find_tables, is_saved
from solo_hcsc.errors import ArgumentError, UserError, on_one_line

_BYTES = ("binary", "large_binary")


class TableImages:
    """The images of a saved data set, or of Parquet files.

    Args:
        where: the folder, or a pattern of Parquet files.
        image_column: the column of the images; the only one of images if not given.
        label_column: the column of the labels: numbers, names or classes; `label` if not given and there.
    """

    def __init__(self, where: Path, image_column: str | None = None, label_column: str | None = None) -> None:
        self.where = where
        table = _opened(where)
        check_columns(where, image_column=image_column, label_column=label_column)
        self._image = _image_column(table, image_column)
        self._table = table.cast_column(self._image, datasets.Image(decode=False))
        self._label = tables.label_column(where, label_column)
        self.classes: tuple[str, ...] | None = None
        self._labels = np.full(len(table), -1, "<i4")
        if self._label is not None:
            self.classes, self._labels = _labels(table, self._label)
        self.unlabelled = 0 if self.classes is None else int((self._labels < 0).sum())

    def __len__(self) -> int:
        return len(self._table)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the columns, the number of images and the sizes of the files."""
        files = sorted({Path(file["filename"]) for file in self._table.cache_files})
        sizes = [file.stat().st_size for file in files]
        told = (self._image, self._label, len(self), sizes, self.classes)
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def image(self, number: int) -> Encoded:
        """Return an image's file; raise `UnreadableImage` where there is none."""
        found, name = self._table[int(number)][self._image], self._name(number)
        content = None if found is None else found["bytes"]
        if content is None and found is not None and found["path"]:
            try:
                content = Path(found["path"]).read_bytes()
            except OSError as error:
                told = f"{on_one_line(found['path'])}: cannot be read ({error.strerror})"
                raise UnreadableImage(f"{told}; restore it, or add `skip_unreadable`", name) from error
        if content is None:
            raise UnreadableImage(f"{self.where}: row {number} has no image; add `skip_unreadable`", name)
        return Encoded(name, content)

    def label(self, number: int) -> int:
        """Return the number of an image's class; -1 for none."""
        return int(self._labels[number])

    def labels(self) -> np.ndarray:
        """Return the numbers of all images' classes (N,)."""
        return self._labels

    def names(self) -> list[str]:
        """Return what the images are called: `row-0`, `row-1`, ..."""
        return [self._name(number) for number in range(len(self))]

    def _name(self, number: int) -> str:
        return f"row-{number}"


def _labels(table: Any, column: str) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the classes' names and the images' labels (N,), -1 for none."""
    values = table.select_columns([column]).with_format("arrow")[:].column(column)
    if pyarrow.types.is_integer(values.type):
        numbers = compute.fill_null(values, -1).to_numpy().astype("<i4")
        feature = table.features[column]
        if isinstance(feature, datasets.ClassLabel):
            return tuple(feature.names), numbers
        return tuple(str(number) for number in range(int(numbers.max(initial=-1)) + 1)), numbers
    if not (pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type)):
        raise ArgumentError(f"`label_column` {column}: its values are neither whole numbers nor names")
    names = sorted(compute.unique(values).drop_null().to_pylist())
    found = compute.index_in(values, value_set=pyarrow.array(names, values.type))
    return tuple(names), compute.fill_null(found, -1).to_numpy().astype("<i4")


def _opened(where: Path) -> Any:
    try:
        if is_saved(where):
            return datasets.load_from_disk(str(where))
        files = [str(path) for path in find_tables(where, "data_dir")]
        with_progress = datasets.is_progress_bar_enabled()
        datasets.disable_progress_bars()
        try:
            return datasets.Dataset.from_parquet(files)
        finally:
            if with_progress:
                datasets.enable_progress_bars()
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"{where}: cannot be read as a data set ({on_one_line(str(error).splitlines()[0])})") from error


def _image_column(table: Any, asked: str | None) -> str:
    kinds = {name: feature for name, feature in table.features.items() if _may_be_image(feature)}
    if asked is not None:
        if asked not in kinds:
            raise ArgumentError(f"`image_column` {asked}: is not a column of images")
        return asked
    if len(kinds) == 1:
        return next(iter(kinds))
    told = f"several columns may be images ({', '.join(kinds)})" if kinds else f"none of {', '.join(table.features)} is"
    raise ArgumentError(f"`image_column` is missing: {told}")


def _may_be_image(feature: Any) -> bool:
    """Return whether a column has images: as Hugging Face stores them, or the bytes of files."""
    if isinstance(feature, dict):
        return {"bytes", "path"} <= feature.keys()
    return isinstance(feature, datasets.Image) or getattr(feature, "dtype", None) in _BYTES
