"""Rows that Python code reads range by range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from onnxgrad import _core
from onnxgrad.base.checks import positive_int
from onnxgrad.data.batches import BatchReader
from onnxgrad.data.sources import Session, Source, Target
from onnxgrad.errors import DataError

__all__ = ["Rows"]


class Rows(Source):
    """Rows that a Python function reads, any range by itself: of a database, a store of images.

    Parameters
    ----------
    read : function of (int, int)
        Called as ``read(begin, end)``; returns these rows in one of the forms of a batch of
        `Batches`: ``(X, y)``, ``(X, y, sample_weight)``, a dictionary of arrays, or a table.
    rows : int
        Number of all rows.
    target, sample_weight : optional
        As for `Batches`.
    piece_rows : int, default=1024
        Number of rows to read at a time.

    Notes
    -----
    Unlike `Batches`, rows are shuffled as those of files are: the ranges, and the rows within a
    block. Of several workers, each reads the ranges of its own rows only. A separate thread calls
    `read`, ahead of the training.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> def read(begin, end):
    ...     X = np.stack([np.arange(begin, end) % 7, np.arange(begin, end) % 5], axis=1) / 7
    ...     return X.astype(np.float32), (X @ [[1.0], [-2.0]]).astype(np.float32)
    >>> trainer = og.Trainer(linear_model, lr=0.1)
    >>> rows = og.data.Rows(read, rows=2000, piece_rows=100)
    >>> trainer.fit(rows, epochs=5, verbose=0).history["train_loss"][-1] < 0.1
    True
    """

    def __init__(
        self,
        read: Callable[[int, int], Any],
        rows: int,
        *,
        target: Target | None = None,
        sample_weight: bool | str = False,
        piece_rows: int = 1024,
    ) -> None:
        if not callable(read):
            raise DataError(
                what=f"Rows: a {type(read).__name__} is no function",
                value="read",
                hint="Give a function: read(begin, end) returns (X, y) of these rows.",
            )
        self._read = read
        self._rows = positive_int("rows", rows)
        self._piece_rows = positive_int("piece_rows", piece_rows)
        self._target = target
        self._weight = sample_weight
        self.has_sample_weight = bool(sample_weight)

    def __repr__(self) -> str:
        return f"Rows(<{type(self._read).__name__}>, rows={self._rows})"

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        batches = BatchReader((), session._core, self._target, self._weight)
        reader = _RangeReader(self._read, self._rows, self._piece_rows, batches)
        return _core.PythonSource(
            reader.start,
            reader.next,
            self._rows,
            take_rows=reader.take_rows,
            pieces=[end - begin for begin, end in reader.pieces],
            read_pieces=reader.read_pieces,
        )


class _RangeReader:
    """Calls the function; used by the reading thread."""

    def __init__(
        self, read: Callable[[int, int], Any], rows: int, size: int, batches: BatchReader
    ) -> None:
        self._read = read
        self._batches = batches
        self._range = (0, rows)
        self._chunks: Iterator[_core.Dataset] = iter(())
        self.pieces = [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]

    def take_rows(self, begin: int, end: int) -> None:
        """Read these rows alone in the passes to come."""
        self._range = (begin, end)

    def start(self, epoch: int, shuffle: bool, seed: int) -> None:  # noqa: ARG002 (interface)
        """Begin a pass, in the order of the rows."""
        begin, end = self._range
        ranges = ((max(first, begin), min(last, end)) for first, last in self.pieces)
        self._chunks = (self._dataset(*limits) for limits in ranges if limits[0] < limits[1])

    def next(self) -> _core.Dataset | None:
        """Return the next chunk, or None."""
        return next(self._chunks, None)

    def read_pieces(self, numbers: Iterable[int]) -> Iterator[_core.Dataset]:
        """Return the chunks of these pieces, to be read beside others."""
        return (self._dataset(*self.pieces[number]) for number in numbers)

    def _dataset(self, begin: int, end: int) -> _core.Dataset:
        chunk, rows = self._batches.dataset(self._read(begin, end), begin)
        if rows != end - begin:
            raise DataError(
                what=f"read({begin}, {end}) returned {rows} rows, expected {end - begin}",
                hint="Return the rows from begin to before end.",
            )
        return chunk
