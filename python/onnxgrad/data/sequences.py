"""Sequences of different lengths, padded to a few lengths."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import positive_int
from onnxgrad.data.arrays import ArrayLike, as_numpy, to_native
from onnxgrad.data.foreign import plain_table
from onnxgrad.data.sources import Session, Source
from onnxgrad.errors import DataError, OptionError

__all__ = ["Sequences"]

# Lengths. Each is one or two plans, of the 64 that are kept; more lengths save little padding
# (benchmarks/sequence_lengths.py).
_MOST_AUTOMATIC = 16
_MOST_CANDIDATES = 512


class Sequences(Source):
    """Sequences of different lengths as batches of a few lengths.

    A plan of the engine is for one shape. Sequences are sorted into buckets, each padded to one
    length, so that a fit has as many plans as there are buckets (and one for the last, smaller
    batch of each), however many lengths there are.

    Parameters
    ----------
    X : list of array [T, ...], or dict of str to these
        One array for each sequence, for models with several inputs by input name. Inputs that are
        not sequences (one value or one array of the same shape per row) are given as an array.
    y : list of array [T], or array [N] or [N, K]
        A label for each position, or labels and values of whole sequences.
    sample_weight : array [N], default=None
        A weight for each sequence; not with labels of positions.
    batch_size : int, default=32
        Sequences per batch.
    bucket_by_length : "auto", int, list of int or False, default="auto"
        The lengths to pad to: given, or as many as this number, chosen to pad least; ``"auto"``
        means at most 16. False pads each batch to its longest sequence: a plan for each length.
    mask : str, default=None
        Name of the input that is 1 at elements of sequences and 0 at padding. None means
        ``attention_mask`` if the model has this input and `X` does not.
    padding : number, str or dict of str to these, default=0
        What inputs are padded with; texts are padded with ``""`` instead of 0.
    ignore_index : int, default=-100
        What labels of positions are padded with: the `ignore_index` of the loss.
    seed : int, default=0
        Seed of which sequences of a bucket are in a batch together.

    Notes
    -----
    Losses and gradients are those of sequences without padding if the model reads no padding:
    because of its mask, or since it is causal. Sequences are assigned to batches once; with
    ``shuffle=True`` the batches of each epoch come in another order.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> lengths = [3, 9, 4, 8, 2, 10]
    >>> data = og.data.Sequences([np.zeros(n, int) for n in lengths], np.zeros(6, int),
    ...                          batch_size=2, bucket_by_length=2)
    >>> data.lengths
    [4, 10]
    """

    has_own_batches = True

    def __init__(
        self,
        X: Sequence[ArrayLike] | Mapping[str, Any],
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        batch_size: int = 32,
        bucket_by_length: str | int | Sequence[int] | bool = "auto",
        mask: str | None = None,
        padding: float | str | Mapping[str, float | str] = 0,
        ignore_index: int = -100,
        seed: int = 0,
    ) -> None:
        self._X = {str(name): value for name, value in X.items()} if isinstance(X, Mapping) else X
        inputs = self._X if isinstance(self._X, dict) else {"": X}
        columns = {name: _Column.of(value, name) for name, value in inputs.items()}
        self._columns = columns
        sizes = [column for column in columns.values() if column.lengths is not None]
        if not sizes:
            raise DataError(
                what="no input is a list of sequences",
                hint="Give a list with an array [T, ...] for each sequence, or pass arrays of one "
                "shape to fit as they are.",
            )
        self._lengths = np.asarray(sizes[0].lengths)
        self._labels = _Column.of(y, "y")
        weights = None if sample_weight is None else as_numpy(sample_weight, "sample_weight")
        self._weights = None if weights is None else _Column.of(weights, "")
        self._check(sample_weight is not None)
        self.has_sample_weight = sample_weight is not None
        self._mask = mask
        self._padding = padding
        self._ignored = operator.index(ignore_index)
        self.batch_size = positive_int("batch_size", batch_size)
        self.lengths = _bucket_lengths(self._lengths, bucket_by_length)
        self._batches = self._make_batches(np.random.default_rng(positive_int("seed", seed, 0)))

    def __repr__(self) -> str:
        return f"Sequences(<{len(self._lengths)} sequences>, lengths={self.lengths})"

    def _check(self, has_weights: bool) -> None:
        count = len(self._lengths)
        named = {**self._columns, "y": self._labels}
        if self._weights is not None:
            named["sample_weight"] = self._weights
        for name, column in named.items():
            if len(column.values) != count:
                raise DataError(
                    what=f"'{name}' has {len(column.values)} rows, the sequences are {count}",
                    value=name,
                    hint="Give one element for each sequence.",
                )
            if column.lengths is None:
                continue
            wrong = np.flatnonzero(np.asarray(column.lengths) != self._lengths)
            if wrong.size:
                i = int(wrong[0])
                raise DataError(
                    what=f"'{name}' has length {column.lengths[i]} in sequence {i}, expected "
                    f"{self._lengths[i]}",
                    value=name,
                    hint="All parts of a sequence have its length.",
                )
        if has_weights and self._labels.lengths is not None:
            raise DataError(
                what="sample weights of sequences whose positions have labels",
                value="sample_weight",
                hint="Leave them out; labels with ignore_index do not count.",
            )
        if count == 0 or int(self._lengths.min()) < 1:
            raise DataError(what="a sequence without elements", hint="Leave out empty sequences.")

    def _make_batches(self, random: np.random.Generator) -> list[tuple[int, np.ndarray[Any, Any]]]:
        """Return the length and the sequences of each batch."""
        batches = []
        if self.lengths is None:
            order = np.argsort(self._lengths, kind="stable")
            starts = range(0, len(order), self.batch_size)
            rows = [order[start : start + self.batch_size] for start in starts]
            return [(int(self._lengths[part].max()), part) for part in rows]
        bucket = np.searchsorted(self.lengths, self._lengths)
        for number, length in enumerate(self.lengths):
            rows_of = random.permutation(np.flatnonzero(bucket == number))
            for start in range(0, len(rows_of), self.batch_size):
                batches.append((length, rows_of[start : start + self.batch_size]))
        return batches

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        reader = self._reader(session)
        return _core.PythonSource(reader.start, reader.next, len(self._lengths), True)

    def _reader(self, session: Session) -> _Reader:
        names = [value.name for value in session._core.inputs]
        if isinstance(self._X, dict):
            columns = self._columns
        else:
            free = [name for name in names if name != self._mask_name(names, {})]
            if len(free) != 1:
                raise DataError(
                    what=f"one list of sequences for the inputs {', '.join(free)}",
                    hint="Give a dictionary of lists by input name.",
                )
            columns = {free[0]: self._columns[""]}
        mask = self._mask_name(names, columns)
        dtype = next((value.dtype for value in session._core.inputs if value.name == mask), "int64")
        return _Reader(self, columns, mask, np.dtype(dtype))

    def _mask_name(self, names: list[str], columns: Mapping[str, _Column]) -> str | None:
        if self._mask is not None:
            if self._mask not in names:
                raise OptionError(
                    what=f"mask: the model has no input '{self._mask}'",
                    value="mask",
                    hint=f"Its inputs are {', '.join(names)}.",
                )
            return self._mask
        usual = "attention_mask"
        return usual if usual in names and usual not in columns else None


class _Column:
    """One input, or the labels: values by sequence, and lengths if they are sequences."""

    def __init__(self, values: Any, lengths: list[int] | None) -> None:
        self.values = values
        self.lengths = lengths
        if lengths:  # over all sequences: the first may have shorter texts, or integers
            self._dtype = np.result_type(*{part.dtype for part in values})

    @staticmethod
    def of(value: Any, name: str) -> _Column:
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            return _Column(value, None)
        value = plain_table(value, name)
        try:
            parts = [as_numpy(part, name) for part in value]
        except (TypeError, ValueError) as error:
            raise DataError(
                what=f"'{name}' is no list of sequences: {error}",
                value=name,
                hint="Give an array [T, ...] for each sequence.",
            ) from error
        if any(part.ndim == 0 for part in parts):
            return _Column(as_numpy(value, name), None)
        return _Column(parts, [len(part) for part in parts])

    def batch(self, rows: np.ndarray[Any, Any], length: int, padding: float | str) -> Any:
        if self.lengths is None:
            return self.values[rows]
        shape = (len(rows), length, *self.values[0].shape[1:])
        if self._dtype.kind in "OSTU":
            padded = np.full(shape, padding or "", object)
        else:
            padded = np.full(shape, padding, self._dtype)
        for to, row in zip(padded, rows, strict=True):
            to[: self.lengths[row]] = self.values[row]
        return padded


class _Reader:
    """Passes the batches of a `Sequences` to the extension."""

    def __init__(
        self,
        source: Sequences,
        columns: Mapping[str, _Column],
        mask: str | None,
        mask_dtype: np.dtype[Any],
    ) -> None:
        self._source = source
        self._columns = columns
        self._mask = mask
        self._mask_dtype = mask_dtype
        sizes = [len(rows) for _, rows in source._batches]
        self._first = np.concatenate([[0], np.cumsum(sizes)])
        self._order: Iterator[int] = iter(())

    def start(self, epoch: int, shuffle: bool, seed: int) -> None:
        """Begin a pass."""
        self._order = iter(self._orders(epoch, shuffle, seed))

    def _orders(self, epoch: int, shuffle: bool, seed: int) -> list[int]:
        count = len(self._source._batches)
        random = np.random.default_rng([seed, epoch])
        return [int(i) for i in (random.permutation(count) if shuffle else range(count))]

    def arrays(self, number: int) -> tuple[dict[str, Any], Any, Any]:
        """Return inputs, labels and mask of a batch."""
        source = self._source
        length, rows = source._batches[number]
        given = source._padding
        inputs = {}
        for name, column in self._columns.items():
            value = given.get(name, 0) if isinstance(given, Mapping) else given
            inputs[name] = column.batch(rows, length, value)
        is_real = np.arange(length) < source._lengths[rows][:, None]
        labels = source._labels.batch(rows, length, source._ignored)
        return inputs, labels, is_real.astype(self._mask_dtype)

    def next(self) -> _core.Dataset | None:
        """Return the next batch, or None."""
        number = next(self._order, None)
        if number is None:
            return None
        inputs, labels, mask = self.arrays(number)
        if self._mask is not None:
            inputs[self._mask] = mask
        weights = None
        if self._source._weights is not None:
            rows = self._source._batches[number][1]
            weights = to_native(self._source._weights.values[rows], "sample_weight")
        native = {name: to_native(value, name) for name, value in inputs.items()}
        first = int(self._first[number])
        return _core.Dataset(native, to_native(labels, "y"), {}, weights, first)


def _bucket_lengths(
    lengths: np.ndarray[Any, Any], given: str | int | Sequence[int] | bool
) -> list[int] | None:
    """Return the lengths to pad to, in increasing order; None: of each batch."""
    if given is False:
        return None
    if given == "auto" or (isinstance(given, int) and given is not True):
        most = _MOST_AUTOMATIC if given == "auto" else positive_int("bucket_by_length", given)
        return _least_padding(lengths, most)
    if isinstance(given, (str, bool)) or not all(
        isinstance(n, (int, np.integer)) and n > 0 for n in given
    ):
        raise OptionError(
            what=f"bucket_by_length: {given!r}",
            value="bucket_by_length",
            hint="Give 'auto', a number of lengths, a list of lengths, or False.",
        )
    chosen = sorted({int(length) for length in given})
    longest = int(lengths.max())
    if not chosen or chosen[0] < 1 or chosen[-1] < longest:
        raise OptionError(
            what=f"bucket_by_length: the longest of {chosen} is less than {longest}, the length of "
            "the longest sequence",
            value="bucket_by_length",
            hint="Add a length that all sequences fit into, or cut the sequences.",
        )
    return chosen


def _least_padding(lengths: np.ndarray[Any, Any], most: int) -> list[int]:
    """Return at most `most` lengths that sequences are padded to with least padding.

    The best last length but one for each length, by dynamic programming over the number of buckets.
    """
    ends, counts = np.unique(lengths, return_counts=True)
    if len(ends) > _MOST_CANDIDATES:
        chosen = np.unique(np.linspace(0, len(ends) - 1, _MOST_CANDIDATES).round().astype(int))
        counts = np.add.reduceat(counts, np.concatenate([[0], chosen[:-1] + 1]))
        ends = ends[chosen]
    before = np.concatenate([[0], np.cumsum(counts)])
    # cost[j, i]: of one bucket of candidates j..i-1, padded to the length of the last.
    cost = (before[None, :] - before[:, None]) * np.concatenate([[0], ends])[None, :].astype(float)
    cost[np.tril_indices(len(before), 0)] = np.inf
    best = cost[0].copy()
    best[0] = 0.0
    steps = []
    for _ in range(min(most, len(ends)) - 1):
        totals = best[:, None] + cost
        steps.append(np.argmin(totals, axis=0))
        best = np.minimum(best, totals.min(axis=0))
    found, i = [], len(ends)
    for step in reversed(steps):
        if i == 0:
            break
        found.append(int(ends[i - 1]))
        i = int(step[i])
    if i > 0:
        found.append(int(ends[i - 1]))
    return sorted(found)
