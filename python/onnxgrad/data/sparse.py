"""SciPy's sparse matrices, made dense in parts, without importing SciPy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.data.arrays import (
    NativeArray,
    as_numpy,
    by_input,
    is_sparse,
    num_rows_of,
    to_native,
)
from onnxgrad.errors import DataError

__all__ = ["SparseReader", "dense_pieces", "has_sparse", "sparse_source"]

_CHUNK_BYTES = 1 << 20


def has_sparse(X: Any) -> bool:
    """Return whether an input is a sparse matrix [N, C]."""
    values = X.values() if isinstance(X, Mapping) else [X]
    return any(is_sparse(value) and value.ndim == 2 for value in values)


def dense_pieces(X: Any) -> Iterator[Any]:
    """Yield the rows of `X`, which has sparse inputs, in dense parts."""
    arrays = _by_rows(X if isinstance(X, Mapping) else {"X": X})
    rows = _count_rows(arrays)
    step = _chunk_rows(arrays)
    for first in range(0, max(rows, 1), step):
        piece = {name: _dense(value, first, first + step) for name, value in arrays.items()}
        yield piece if isinstance(X, Mapping) else piece["X"]


def sparse_source(
    session: _core.TrainingSession, X: Any, target: NativeArray | None, targets: Any, weight: Any
) -> _core.DataSource:
    """Return rows as a source; targets and weights are already converted for the extension."""
    reader = SparseReader(session, X, target, targets, weight)
    return _core.PythonSource(reader.start, reader.next, reader.num_rows)


class SparseReader:
    """Reads chunks of about 1 MiB of dense rows; used by the reading thread."""

    def __init__(
        self,
        session: _core.TrainingSession,
        X: Any,
        target: NativeArray | None,
        targets: Mapping[str, NativeArray],
        weight: NativeArray | None,
    ) -> None:
        self._inputs = _by_rows(by_input(session, X))
        self._target, self._targets, self._weight = target, targets, weight
        self.num_rows = _count_rows(self._inputs)
        given = {"y": target, **targets, "sample_weight": weight}
        for name, value in given.items():
            if value is not None and num_rows_of(value) != self.num_rows:
                raise DataError(
                    what=f"'{name}' has {num_rows_of(value)} rows, X has {self.num_rows}",
                    value=name,
                    hint="Give one element for each row of X.",
                )
        self._step = _chunk_rows(self._inputs)
        self._firsts: Iterator[int] = iter(())

    def start(self, epoch: int, shuffle: bool, seed: int) -> None:
        """Begin a pass; the order of chunks depends on seed and epoch."""
        firsts = np.arange(0, self.num_rows, self._step)
        if shuffle:
            firsts = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(firsts)
        self._firsts = iter(firsts.tolist())

    def next(self) -> _core.Dataset | None:
        """Return the next chunk, or None."""
        first = next(self._firsts, None)
        if first is None:
            return None
        last = min(first + self._step, self.num_rows)
        inputs = {
            name: to_native(_dense(value, first, last), name)
            for name, value in self._inputs.items()
        }
        targets = {name: _part(value, first, last) for name, value in self._targets.items()}
        target, weight = (
            None if value is None else _part(value, first, last)
            for value in (self._target, self._weight)
        )
        return _core.Dataset(inputs, target, targets, weight, first)


def _by_rows(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(name): value.tocsr() if is_sparse(value) and value.ndim == 2 else as_numpy(value, name)
        for name, value in inputs.items()
    }


def _count_rows(arrays: Mapping[str, Any]) -> int:
    counts = {name: value.shape[0] if value.ndim else 0 for name, value in arrays.items()}
    first, rows = next(iter(counts.items()))
    for name, count in counts.items():
        if count != rows:
            raise DataError(
                what=f"'{name}' has {count} rows, '{first}' has {rows}",
                value=name,
                hint="Give the same number of rows for each input.",
            )
    return int(rows)


def _chunk_rows(arrays: Mapping[str, Any]) -> int:
    row_bytes: int = sum(math.prod(a.shape[1:]) * a.dtype.itemsize for a in arrays.values())
    return max(1, _CHUNK_BYTES // max(1, row_bytes))


def _dense(value: Any, first: int, last: int) -> Any:
    part = value[first:last]
    return part.toarray() if is_sparse(part) else part


def _part(value: NativeArray, first: int, last: int) -> NativeArray:
    """Return rows of an array, of strings and their shape, or of bits and their type."""
    if not isinstance(value, tuple):
        return value[first:last]
    data, second = value
    if not isinstance(second, list):
        return data[first:last], second
    width = math.prod(second[1:])
    return data[first * width : last * width], [last - first, *second[1:]]
