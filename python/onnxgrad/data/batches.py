"""Batches from Python code, and the reader that the extension calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import flag, nearest_or
from onnxgrad.data.arrays import as_numpy, num_rows_of, to_native
from onnxgrad.data.arrow import is_table, named_arrays
from onnxgrad.data.sources import Session, Source, Target
from onnxgrad.errors import DataError

__all__ = ["BatchReader", "Batches"]


class Batches(Source):
    """Batches from Python code: a list, a DataLoader, a generator function.

    Parameters
    ----------
    batches : iterable, or function without parameters that returns one
        Each batch is ``(X, y)``, ``(X, y, sample_weight)``, a dictionary of the model's inputs and
        the target by name (and ``"sample_weight"``), or a table with the Arrow C interface, whose
        columns feed inputs like those of a `CsvFile`. With several targets `y` is a dictionary by
        output. A generator lasts for one epoch; a function that returns a new one for any number.
    target : str, list of str or dict of str to str, default=None
        Name of the target in batches that are tables or dictionaries, a list of those of its
        columns, or a dictionary of names by output. None means the names of the session's inputs
        for targets, such as ``"label"``.
    sample_weight : bool or str, default=False
        Whether batches have sample weights, or their name in tables and dictionaries.
    rows : int, default=None
        Number of rows per epoch, if it is known. If it is None and a schedule needs it, they are
        counted in an additional pass; a generator, which can be read only once, needs it then.

    Notes
    -----
    A separate thread produces the batches, at most two ahead of the training.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> def batches():
    ...     rng = np.random.default_rng(0)
    ...     for _ in range(20):
    ...         X = rng.normal(size=(16, 2)).astype(np.float32)
    ...         yield X, X @ np.array([[1.0], [-2.0]], np.float32)
    >>> trainer = og.Trainer(linear_model, lr=0.1)
    >>> trainer.fit(og.data.Batches(batches), epochs=5, verbose=0).history["train_loss"][-1] < 0.1
    True
    """

    has_own_batches = True

    def __init__(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        target: Target | None = None,
        sample_weight: bool | str = False,
        rows: int | None = None,
    ) -> None:
        is_class = isinstance(batches, type)  # which would be called, or iterates over names
        if is_class or (not callable(batches) and not hasattr(batches, "__iter__")):
            raise DataError(
                what=f"a {type(batches).__name__} is neither an iterable of batches nor a function",
                hint="Give a list of (X, y), or a function that returns an iterator of them.",
            )
        self._batches = batches
        self._target = target
        self._weight = sample_weight
        if not isinstance(sample_weight, str):
            sample_weight = flag("sample_weight", sample_weight)
        self.has_sample_weight = bool(sample_weight)
        self._rows = rows

    def __repr__(self) -> str:
        rows = "" if self._rows is None else f", rows={self._rows}"
        return f"Batches(<{type(self._batches).__name__}>{rows})"

    def native(self, session: Session) -> _core.DataSource:
        """Return the extension's reader for the inputs and the target of `session`."""
        reader = BatchReader(self._batches, session._core, self._target, self._weight)
        once = isinstance(self._batches, Iterator)
        return _core.PythonSource(reader.start, reader.next, self._rows, not once)


class BatchReader:
    """Iterates over batches for the reading thread; the parameters are those of `Batches`."""

    def __init__(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        session: _core.TrainingSession,
        target: Target | None,
        sample_weight: bool | str,
    ) -> None:
        self._batches = batches
        self._dtypes = {value.name: value.dtype for value in session.inputs}
        self._targets = self._names(session, target)
        self._weight = sample_weight if isinstance(sample_weight, str) else "sample_weight"
        self._has_weight = bool(sample_weight)
        self._iterator: Iterator[Any] = iter(())
        self._number = 0
        self._rows = 0

    @staticmethod
    def _names(session: _core.TrainingSession, target: Target | None) -> dict[str, list[list[str]]]:
        """Return the possible columns of each target, by output; ``""`` if there is only one."""
        if isinstance(target, str):
            return {"": [[target]]}
        if isinstance(target, Mapping):
            return {str(output): [[str(name)]] for output, name in target.items()}
        if target is not None:
            if not target:
                raise DataError(
                    what="target: a list without names", hint="Give the columns of the target."
                )
            return {"": [[str(name) for name in target]]}
        losses = (session.loss, *session.loss.others)
        if len(losses) == 1:
            name = session.loss.target.name
            return {"": [[name]]} if name else {}
        return {one.output: [[one.target.name], [one.output]] for one in losses}

    def start(self, epoch: int, shuffle: bool, seed: int) -> None:  # noqa: ARG002 (interface)
        """Begin a pass."""
        batches = self._batches() if callable(self._batches) else self._batches
        self._iterator = iter(batches)
        self._number = self._rows = 0

    def next(self) -> _core.Dataset | None:
        """Return the next batch, or None."""
        batch = next(self._iterator, None)
        if batch is None:
            return None
        chunk, rows = self.dataset(batch, self._rows)
        self._rows += rows
        self._number += 1
        return chunk

    def dataset(self, batch: Any, first: int) -> tuple[_core.Dataset, int]:
        """Return the rows of a batch, the first of which has the number `first`, and how many."""
        X, y, weight = self._parts(batch)
        X, y, weight = named_arrays(self._dtypes, X, y, weight)
        inputs = {str(name): to_native(value, str(name)) for name, value in X.items()}
        several = y if isinstance(y, Mapping) else {}
        targets = {output: to_native(value, output) for output, value in several.items()}
        labels = None if y is None or y is several else to_native(y, "y")
        counted = [labels] if labels is not None else [*targets.values(), *inputs.values()]
        weights = None if weight is None else to_native(weight, "sample_weight")
        return _core.Dataset(inputs, labels, targets, weights, first), num_rows_of(counted[0])

    def _parts(self, batch: Any) -> tuple[Any, Any, Any]:
        if is_table(batch):
            return self._parts_of_table(batch)
        if isinstance(batch, Mapping):
            return self._parts_by_name({str(name): value for name, value in batch.items()})
        if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
            size = f" of length {len(batch)}" if isinstance(batch, (tuple, list)) else ""
            raise self._error(f"a {type(batch).__name__}{size}")
        X, y = batch[:2]
        weight = batch[2] if len(batch) == 3 else None
        if isinstance(X, Mapping) or is_table(X):
            return X, y, weight
        if len(self._dtypes) != 1:
            raise self._error(f"one array for the {len(self._dtypes)} inputs of the model")
        return {next(iter(self._dtypes)): X}, y, weight

    def _parts_of_table(self, table: Any) -> tuple[Any, Any, Any]:
        """Return the table and the names of its columns, which are looked up later."""
        y: dict[str, Any] = {
            output: columns if len(columns) > 1 else columns[0]
            for output, (columns, *_) in self._targets.items()
        }
        return table, y.get("", y), self._weight if self._has_weight else None

    def _parts_by_name(self, arrays: dict[str, Any]) -> tuple[Any, Any, Any]:
        found = {}
        for output, possible in self._targets.items():
            columns = next(
                (names for names in possible if all(name in arrays for name in names)), None
            )
            if columns is None:
                missing = next(name for name in possible[0] if name not in arrays)
                hint = nearest_or(missing, arrays, "")
                raise self._error(f"a dictionary without the target '{missing}'", hint)
            parts = [arrays.pop(name) for name in columns]
            found[output] = parts[0]
            if len(parts) > 1:
                found[output] = np.column_stack(
                    [as_numpy(part, name) for name, part in zip(columns, parts, strict=True)]
                )
        is_input = self._weight in self._dtypes
        weight = None if is_input else arrays.pop(self._weight, None)
        return arrays, found.get("", found), weight

    def _error(self, given: str, hint: str = "") -> DataError:
        return DataError(
            what=f"batch {self._number} is {given}",
            hint=f"{hint} Each batch is (X, y), (X, y, sample_weight), a dictionary of arrays by "
            "name, or a table.".strip(),
        )
