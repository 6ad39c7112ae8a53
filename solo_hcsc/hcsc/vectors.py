"""Vectors of images that a caller gives, as the arrays that the library computes with.

Shapes: `N` images, `D` embedding size.
"""

from typing import Any

import numpy as np
import torch

from solo_hcsc.hcsc.errors import ArgumentError, NotFinite
from solo_hcsc.hcsc.kmeans import normalise

ROUNDING = 1e-3  # by how much the length of a unit vector may differ from 1


def as_vectors(value: Any, argument: str) -> np.ndarray:
    """Return vectors as a float32 array (N, D); raise `ArgumentError` for anything else.

    Args:
        value: (N, D), a tensor on any device, a NumPy array or what NumPy reads as one, or an object with such
            `embeddings`, as `embed` returns it.
        argument: what the caller's argument is called, for the message.

    Example:
        >>> as_vectors(torch.eye(2), "features").tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        >>> as_vectors("photos", "features")
        Traceback (most recent call last):
        solo_hcsc.hcsc.errors.ArgumentError: `features` is str: give a tensor, a NumPy array or `Embeddings` (N, D)
    """
    given = getattr(value, "embeddings", value)
    wrong = f"`{argument}` is {type(value).__name__}: give a tensor, a NumPy array or `Embeddings` (N, D)"
    if isinstance(given, torch.Tensor):
        if given.layout != torch.strided or given.is_complex():
            raise ArgumentError(f"`{argument}` is a {given.layout} tensor of {given.dtype}: give dense real numbers")
        given = given.detach().float().cpu().numpy()
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):  # lists of different lengths, or of what is no number
        raise ArgumentError(wrong) from None
    if array.dtype.kind not in "fiu":
        raise ArgumentError(wrong if array.dtype.kind == "O" or not array.ndim else f"{wrong}, not of {array.dtype}")
    if array.ndim != 2 or not array.size:
        raise ArgumentError(f"`{argument}` has shape {array.shape}: give (N, D), a row for each image")
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, which is told below
        vectors = np.ascontiguousarray(array, "float32")
    with np.errstate(invalid="ignore", over="ignore"):  # infinity less infinity
        finite = np.isfinite(vectors.sum(axis=1))  # a sum is small in memory, and not finite where a term is not
    if not finite.all():
        raise NotFinite(argument, int((~finite).sum()), len(vectors))
    return vectors


def as_unit_vectors(value: Any, argument: str) -> np.ndarray:
    """Return `as_vectors` with every row at unit length; rows that have it already, and rows of zeros, as they are.

    Example:
        >>> as_unit_vectors([[4, 0], [0, 1], [0, 0]], "features").tolist()
        [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    """
    vectors = as_vectors(value, argument)
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype="float64"))
    other = np.abs(lengths - 1) > ROUNDING
    if other.any():
        vectors = vectors.copy()  # which may be the caller's
        vectors[other] = normalise(vectors[other])
    return vectors
