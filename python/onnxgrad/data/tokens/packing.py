"""Documents laid into rows of one length."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from onnxgrad.data.tokens.documents import IGNORED, Document, Stream

__all__ = ["PackedRows", "Rows", "StreamRows"]

Ids = np.ndarray[Any, Any]


class Rows(NamedTuple):
    """Some rows of a data set.

    Attributes
    ----------
    ids, labels : array [n, T] of int64
        Labels are what a causal model learns at the place of its token, or -100.
    segments : array [n, T] of int64
        Number of the document within the row, -1 for padding.
    places : array [n, T] of int64
        Position within the document.
    """

    ids: Ids
    labels: Ids
    segments: Ids
    places: Ids


class PackedRows:
    """Documents in rows of `length` tokens, several in one if `packs`.

    Longer documents are cut into several pieces, or with ``cuts=False`` into one. Rows are filled
    by the longest first, each in the fullest row that has room for it.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        length: int,
        pad: int,
        *,
        packs: bool,
        cuts: bool = True,
    ) -> None:
        self.length = length
        self._documents = documents
        self._pad = pad
        pieces = [
            (number, first, min(length, len(one.ids) - first))
            for number, one in enumerate(documents)
            for first in range(0, len(one.ids) if cuts else 1, length)
        ]
        self._rows = _packed(pieces, length) if packs else [[piece] for piece in pieces]

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, numbers: Sequence[int]) -> Rows:
        """Return rows."""
        shape = (len(numbers), self.length)
        ids = np.full(shape, self._pad, np.int64)
        labels = np.full(shape, IGNORED, np.int64)
        segments = np.full(shape, -1, np.int64)
        places = np.zeros(shape, np.int64)
        for row, number in enumerate(numbers):
            at = 0
            for segment, (document, first, size) in enumerate(self._rows[number]):
                one = self._documents[document]
                to = slice(at, at + size)
                ids[row, to] = one.ids[first : first + size]
                labels[row, to] = one.labels[first : first + size]
                labels[row, at] = IGNORED  # no token before it is of its document
                segments[row, to] = segment
                places[row, to] = np.arange(size)
                at += size
        return Rows(ids, labels, segments, places)

    @property
    def has_targets(self) -> bool:
        """Whether there is a token that a causal model learns."""
        return any(bool((one.labels[1:] != IGNORED).any()) for one in self._documents)

    def sources(self, numbers: Sequence[int]) -> list[Document]:
        """Return the documents of rows that are one document each."""
        return [self._documents[self._rows[number][0][0]] for number in numbers]


def _packed(pieces: list[tuple[int, int, int]], length: int) -> list[list[tuple[int, int, int]]]:
    """Return the pieces (document, first token, size) of each row."""
    rows: list[list[tuple[int, int, int]]] = []
    with_room: dict[int, list[int]] = {}  # rows by their free tokens
    sizes: list[int] = []  # the keys of with_room, sorted
    for piece in sorted(pieces, key=lambda one: -one[2]):
        size = piece[2]
        place = bisect.bisect_left(sizes, size)
        if place < len(sizes):
            free = sizes[place]
            row = with_room[free].pop()
            if not with_room[free]:
                del with_room[free]
                del sizes[place]
            rows[row].append(piece)
        else:
            free, row = length, len(rows)
            rows.append([piece])
        left = free - size
        if left > 0:
            if left not in with_room:
                bisect.insort(sizes, left)
            with_room.setdefault(left, []).append(row)
    return [sorted(row) for row in rows]


class StreamRows:
    """A stream cut into rows of `length` tokens; what does not fill the last one is left out.

    With a `separator`, the token that ends a document, rows have the documents that it divides.
    """

    def __init__(self, stream: Stream, length: int, separator: int | None) -> None:
        self.length = length
        self._stream = stream
        self._separator = separator

    def __len__(self) -> int:
        return len(self._stream.ids) // self.length

    def take(self, numbers: Sequence[int]) -> Rows:
        """Return rows; only their part of a file is read."""
        width = self.length
        ids = np.empty((len(numbers), width), np.int64)
        for row, number in enumerate(numbers):
            ids[row] = self._stream.take(number * width, (number + 1) * width)
        labels = ids.copy()
        segments = np.zeros_like(ids)
        labels[:, 0] = IGNORED
        if self._separator is not None:
            begins = ids[:, :-1] == self._separator
            segments[:, 1:] = np.cumsum(begins, axis=1)
            labels[:, 1:][begins] = IGNORED
        columns = np.broadcast_to(np.arange(width), ids.shape)
        starts = np.where(np.diff(segments, axis=1, prepend=-1) > 0, columns, 0)
        places = columns - np.maximum.accumulate(starts, axis=1)
        return Rows(ids, labels, segments, places)
