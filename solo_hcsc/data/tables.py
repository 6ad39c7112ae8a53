"""Files of Hugging Face data sets: found and refused here, without the package that reads them."""

from pathlib import Path

from solo_hcsc.errors import ArgumentError, UserError, on_one_line
from solo_hcsc.extras import require
from solo_hcsc.files import read_json

PARQUET = ".parquet"
LABEL = "label"  # the column of the labels, if none is given
_SAVED, _PARTS = "state.json", "dataset_dict.json"  # that `save_to_disk` writes of a data set, and of one in parts


def holds_tables(folder: Path) -> bool:
    """Return whether a folder is one of a saved data set, or of Parquet files."""
    return (folder / _SAVED).is_file() or (folder / _PARTS).is_file() or any(folder.glob(f"*{PARQUET}"))


def is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` wrote a folder."""
    return (folder / _SAVED).is_file()


def columns_of(where: Path) -> list[str]:
    """Return the names of the columns, without reading a row."""
    if is_saved(where):
        return list(read_json(where / "dataset_info.json").get("features") or ())
    from pyarrow import parquet  # an optional package

    try:
        return list(parquet.read_schema(find_tables(where, "data_dir")[0]).names)
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: cannot be read as Parquet ({on_one_line(str(error))}); restore it") from error


def check_columns(where: Path, **asked: str | None) -> None:
    """Refuse columns that are not there, given by the arguments that name them."""
    there = columns_of(where)
    for argument, column in asked.items():
        if column is not None and column not in there:
            raise ArgumentError(f"`{argument}` {column}: there are {', '.join(there)}")


def label_column(where: Path, asked: str | None) -> str | None:
    """Return the column of the labels; None where there are none."""
    return asked or (LABEL if LABEL in columns_of(where) else None)


def find_tables(where: Path, name: str) -> list[Path]:
    """Return the Parquet files of a folder, or that a pattern names; nothing for a saved data set.

    `name`: the argument that gives it. Refuses what is neither.
    """
    require("hf", "`dataset` hf")
    if is_saved(where):
        return []
    if (where / _PARTS).is_file():
        parts = ", ".join(sorted(path.name for path in where.iterdir() if is_saved(path)))
        raise UserError(f"`{name}`: {where} has several parts ({parts}); give `train_dir` and `val_dir`")
    if where.is_dir():
        found = sorted(where.glob(f"*{PARQUET}"))
    else:
        found = sorted(where.parent.glob(where.name)) if where.parent.is_dir() else []
    if not found or any(not path.is_file() for path in found):
        raise UserError(
            f"`{name}`: {where} is neither a data set that `save_to_disk` wrote nor a folder of {PARQUET} files"
        )
    return found
