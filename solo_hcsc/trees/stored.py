"""Vectors of images that lie in a file."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from solo_hcsc.errors import ArgumentError

_TABLE = "embeddings.npy"  # in a folder that `embed` wrote


def stored(value: Any, argument: str) -> Any:
    """Return the vectors (N, D) in a file; anything that is no path as it is.

    Args:
        value: the path of an NPY file, of a Parquet file with a column `embedding`, or of a folder that the command
            `embed` wrote; or an array, a tensor, or `Embeddings`.
        argument: what the caller's argument is called, for the message.

    Example:
        >>> stored(np.eye(2), "vectors").shape
        (2, 2)
        >>> stored("photos.zip", "vectors")
        Traceback (most recent call last):
        solo_hcsc.errors.ArgumentError: `vectors` photos.zip: give an .npy or .parquet file, or a folder of `embed`
    """
    if not isinstance(value, str | os.PathLike):
        return value
    given = Path(value)
    file = given / _TABLE if given.is_dir() else given
    try:
        if file.suffix == ".npy":
            return np.load(file)
        if file.suffix == ".parquet":
            from pyarrow import parquet

            return np.stack(parquet.read_table(file, columns=["embedding"]).column("embedding").to_numpy())
    except (OSError, ValueError, KeyError) as error:  # pyarrow's own are of these
        raise ArgumentError(f"`{argument}` {given}: cannot be read ({str(error).splitlines()[0]})") from error
    raise ArgumentError(f"`{argument}` {given}: give an .npy or .parquet file, or a folder of `embed`")
