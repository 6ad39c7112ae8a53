"""Vectors of images that a caller gives, as the arrays that the library computes with.

Shapes: `N` images, `D` embedding size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from solo_hcsc.errors import ArgumentError, NotFinite

ROUNDING = 1e-3  # by how much the length of a unit vector may differ from 1
HALF_ROUNDING = 0.05  # the same of one that was normalised in half precision, which is off by up to 1 %


def as_vectors(value: Any, argument: str) -> np.ndarray:
    """Return vectors as a float32 array (N, D); raise `ArgumentError` for anything else.

    Args:
        value: (N, D), a tensor on any device, a NumPy array or what NumPy reads as one, or an object with such
            `vectors`, as `embed` returns it.
        argument: what the caller's argument is called, for the message.

    Example:
        >>> as_vectors(torch.eye(2), "features").tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        >>> as_vectors("photos", "features")
        Traceback (most recent call last):
        solo_hcsc.errors.ArgumentError: `features` is str: give a tensor, a NumPy array or `Embeddings` (N, D)
    """
    given = getattr(value, "vectors", value)
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


def as_features(value: Any, argument: str) -> torch.Tensor:
    """Return features as a tensor (n, D) of doubles on their device; they need not be finite.

    Example:
        >>> as_features(np.eye(2), "features").shape
        torch.Size([2, 2])
    """
    given = getattr(value, "vectors", value)
    try:
        features = given if isinstance(given, torch.Tensor) else torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError):  # lists of different lengths, or of what is no number
        features = torch.empty(0)
    if features.ndim != 2 or not features.numel():
        wrong = f"`{argument}` is {type(value).__name__}"
        raise ArgumentError(f"{wrong}: give a tensor, a NumPy array or `Embeddings` (N, D)")
    return features.double()


def as_numbers(value: Any, argument: str, below: int | None = None) -> np.ndarray:
    """Return whole numbers from 0 as an int64 array of any shape; raise `ArgumentError` for anything else.

    Args:
        value: a tensor, a NumPy array, or lists.
        argument: what the caller's argument is called, for the message.
        below: what each number must be less than.

    Example:
        >>> as_numbers([2, 0], "already", below=3).tolist()
        [2, 0]
        >>> as_numbers([2, 3], "already", below=3)
        Traceback (most recent call last):
        solo_hcsc.errors.ArgumentError: `already` has 3: give whole numbers from 0 to 2
    """
    expected = f"give whole numbers from 0{'' if below is None else f' to {below - 1}'}"
    try:
        array = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError):
        raise ArgumentError(f"`{argument}` is {type(value).__name__}: {expected}") from None
    if not array.size:
        return array.astype("int64")
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"`{argument}` is {type(value).__name__} of {array.dtype}: {expected}")
    wrong = array[(array < 0) | (array >= (np.inf if below is None else below))]
    if wrong.size:
        raise ArgumentError(f"`{argument}` has {wrong.flat[0]}: {expected}")
    return array.astype("int64")


def as_clusters(value: Any, images: int, argument: str = "clusters") -> np.ndarray:
    """Return clusters (N, L) of so many images as whole numbers; raise `ArgumentError` for anything else.

    Example:
        >>> as_clusters([[3, 0], [1, 0]], images=2).shape
        (2, 2)
    """
    clusters = as_numbers(value, argument)
    if clusters.ndim != 2 or not clusters.shape[1] or len(clusters) != images:
        raise ArgumentError(
            f"`{argument}` has shape {clusters.shape}: give ({images}, L), each image's cluster at every level"
        )
    return clusters


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
        vectors[other] /= np.where(lengths > 0, lengths, 1)[other, None]
    return vectors


def check_unit_vectors(batches: Sequence[torch.Tensor], argument: str, dim: int, images: int) -> None:
    """Raise `ArgumentError` unless all are unit vectors of B images, (B, dim), of any precision.

    Rows of zeros pass, which is what `F.normalize` makes of them, and so do rows that are not finite. Waits for a GPU.

    Example:
        >>> check_unit_vectors([torch.eye(2)], "queries", dim=2, images=2)
        >>> check_unit_vectors([3 * torch.eye(2)], "keys", dim=2, images=2)
        Traceback (most recent call last):
        solo_hcsc.errors.ArgumentError: `keys` has rows of length 3: give unit vectors, F.normalize(keys, dim=1)
    """
    if isinstance(batches, torch.Tensor) or not all(isinstance(batch, torch.Tensor) for batch in batches):
        raise ArgumentError(f"`{argument}` is {type(batches).__name__}: give a list of tensors (B, {dim})")
    for batch in batches:
        if batch.shape != (images, dim):
            raise ArgumentError(
                f"`{argument}` has shape {tuple(batch.shape)}: give a list of tensors ({images}, {dim})"
            )
        lengths = batch.detach().double().norm(dim=1)
        wrong = lengths[lengths.isfinite() & (lengths > 0) & ((lengths - 1).abs() > HALF_ROUNDING)]
        if len(wrong):
            raise ArgumentError(
                f"`{argument}` has rows of length {float(wrong[0]):.3g}: give unit vectors, "
                f"F.normalize({argument}, dim=1)"
            )
