"""Measures of retrieval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxgrad.base.checks import positive_int
from onnxgrad.data.arrays import ArrayLike
from onnxgrad.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["retrieval"]

_BLOCK = 1024  # queries whose similarities are in memory at a time
_SMALLEST = 1e-12


def retrieval(
    queries: ArrayLike,
    documents: ArrayLike,
    relevant: Sequence[int] | Sequence[Iterable[int]] | None = None,
    *,
    k: Sequence[int] = (1, 5, 10),
) -> dict[str, float]:
    """Return how well the embeddings of queries find those of their documents, by the cosine.

    Parameters
    ----------
    queries : array [Q, D]
    documents : array [M, D]
    relevant : sequence, default=None
        For each query the number of its document, or several numbers; None means that query i has
        document i.
    k : sequence of int, default=(1, 5, 10)

    Returns
    -------
    dict of str to float
        ``recall@k``: the fraction of a query's documents among the first k found, a mean over the
        queries; ``mrr``: the mean of 1 / rank of the first right one; ``ndcg@10``: the discounted
        gain sum 1 / log2(1 + rank) of the right ones among the first ten, divided by the largest
        possible.

    Raises
    ------
    DataError
        Embeddings of different widths, or a number of no document.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> found = og.embeddings.retrieval(np.eye(3), np.eye(3)[[0, 2, 1]], k=[1])
    >>> round(found["recall@1"], 3), round(found["mrr"], 3)
    (0.333, 0.556)
    """
    asked, kept = _unit("queries", queries), _unit("documents", documents)
    if asked.shape[1] != kept.shape[1]:
        raise DataError(
            what=f"retrieval: queries have {asked.shape[1]} columns, documents {kept.shape[1]}",
            value="documents",
            hint="Give embeddings of one model.",
        )
    right = _relevant(len(asked), len(kept), relevant)
    depths = [positive_int("k", depth) for depth in k]
    sums = dict.fromkeys([*(f"recall@{depth}" for depth in depths), "mrr", "ndcg@10"], 0.0)
    for first in range(0, len(asked), _BLOCK):
        similar = asked[first : first + _BLOCK] @ kept.T
        order = np.argsort(-similar, axis=1, kind="stable")
        for row, wanted in zip(order, right[first : first + _BLOCK], strict=True):
            ranks = np.flatnonzero(np.isin(row, wanted)) + 1
            for depth in depths:
                sums[f"recall@{depth}"] += float(np.sum(ranks <= depth)) / len(wanted)
            sums["mrr"] += 1.0 / float(ranks[0])
            best = np.arange(1, min(len(wanted), 10) + 1)
            gain = np.sum(1 / np.log2(1 + ranks[ranks <= 10]))
            sums["ndcg@10"] += float(gain / np.sum(1 / np.log2(1 + best)))
    return {name: total / len(asked) for name, total in sums.items()}


def _unit(name: str, given: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(given, np.float64)
    if array.ndim != 2 or not len(array):
        raise DataError(
            what=f"retrieval: {name} of shape {array.shape}, expected [rows, columns]",
            value=name,
            hint="Give one embedding for each row.",
        )
    unit: NDArray[np.float64] = array / np.maximum(
        np.linalg.norm(array, axis=1, keepdims=True), _SMALLEST
    )
    return unit


def _relevant(queries: int, documents: int, given: Any) -> list[NDArray[np.int64]]:
    numbers = range(queries) if given is None else given
    right = [np.atleast_1d(np.asarray(one, np.int64)) for one in numbers]
    known = [len(one) > 0 and one.min() >= 0 and one.max() < documents for one in right]
    if len(right) != queries or not all(known):
        bad = known.index(False) if False in known else None
        what = f"{len(right)} entries for {queries} queries"
        if bad is not None:
            what = f"query {bad} has {right[bad].tolist()} of {documents} documents"
        raise DataError(
            what=f"retrieval: relevant: {what}",
            value="relevant",
            hint="Give the number of a document, from 0, or several for each query.",
        )
    return right
