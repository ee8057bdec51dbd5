"""Batches that Python makes, as the extension reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from onnxgrad import _core
from onnxgrad._arrays import to_native
from onnxgrad._arrow import is_table, named_arrays
from onnxgrad._checks import nearest_or
from onnxgrad.errors import DataError

if TYPE_CHECKING:
    from onnxgrad.sessions import TrainingSession

__all__ = ["BatchReader"]


class BatchReader:
    """Calls an iterable; used by the reading thread.

    Parameters
    ----------
    batches : iterable, or function that returns one
    session : TrainingSession
    target : str, dict of str to str, or None
        Names of the targets in batches that are tables or dictionaries; None: those of the inputs
        for targets.
    sample_weight : bool or str
        Whether tables have weights of rows, or their name in tables and dictionaries.
    """

    def __init__(
        self,
        batches: Iterable[Any] | Callable[[], Iterable[Any]],
        session: TrainingSession,
        target: str | Mapping[str, str] | None,
        sample_weight: bool | str,
    ) -> None:
        self._batches = batches
        self._dtypes = {value.name: value.dtype for value in session._core.inputs}
        self._targets = self._names(session, target)
        self._weight = sample_weight if isinstance(sample_weight, str) else "sample_weight"
        self._has_weight = bool(sample_weight)
        self._iterator: Iterator[Any] = iter(())
        self._number = 0
        self._rows = 0

    @staticmethod
    def _names(
        session: TrainingSession, target: str | Mapping[str, str] | None
    ) -> dict[str, list[str]]:
        """Return the names that a target may have, by output; ``""`` where there is one only."""
        if isinstance(target, str):
            return {"": [target]}
        if target is not None:
            return {str(output): [str(name)] for output, name in target.items()}
        own = session.target_names
        if len(own) == 1:
            name = session.target_name
            return {"": [name]} if name else {}
        return {output: [name, output] for output, name in own.items()}

    def start(self, epoch: int, shuffle: bool, seed: int) -> None:  # noqa: ARG002 (interface)
        """Begin a pass."""
        made = self._batches() if callable(self._batches) else self._batches
        self._iterator = iter(made)
        self._number = self._rows = 0

    def next(self) -> _core.Dataset | None:
        """Return the next batch, or None."""
        batch = next(self._iterator, None)
        if batch is None:
            return None
        X, y, weight = self._parts(batch)
        X, y, weight = named_arrays(self._dtypes, X, y, weight)
        inputs = {str(name): to_native(value, str(name)) for name, value in X.items()}
        several = y if isinstance(y, Mapping) else {}
        targets = {output: to_native(value, output) for output, value in several.items()}
        labels = None if y is None or y is several else to_native(y, "y")
        counted = [labels] if labels is not None else [*targets.values(), *inputs.values()]
        first, self._rows = self._rows, self._rows + _count(counted[0])
        self._number += 1
        weights = None if weight is None else to_native(weight, "sample_weight")
        return _core.Dataset(inputs, labels, targets, weights, first)

    def _parts(self, batch: Any) -> tuple[Any, Any, Any]:
        if is_table(batch):
            return self._parts_of_table(batch)
        if isinstance(batch, Mapping):
            return self._parts_by_name({str(name): value for name, value in batch.items()})
        if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
            size = f" of length {len(batch)}" if isinstance(batch, (tuple, list)) else ""
            raise self._refusal(f"a {type(batch).__name__}{size}")
        X, y = batch[:2]
        weight = batch[2] if len(batch) == 3 else None
        if isinstance(X, Mapping) or is_table(X):
            return X, y, weight
        if len(self._dtypes) != 1:
            raise self._refusal(f"one array for the {len(self._dtypes)} inputs of the model")
        return {next(iter(self._dtypes)): X}, y, weight

    def _parts_of_table(self, table: Any) -> tuple[Any, Any, Any]:
        """Take the names of columns, which are looked up afterwards."""
        y = {output: names[0] for output, names in self._targets.items()}
        return table, y.get("", y), self._weight if self._has_weight else None

    def _parts_by_name(self, arrays: dict[str, Any]) -> tuple[Any, Any, Any]:
        found = {}
        for output, names in self._targets.items():
            name = next((name for name in names if name in arrays), None)
            if name is None:
                hint = nearest_or(names[0], arrays, "")
                raise self._refusal(f"a dictionary without the target '{names[0]}'", hint)
            found[output] = arrays.pop(name)
        is_input = self._weight in self._dtypes
        weight = None if is_input else arrays.pop(self._weight, None)
        return arrays, found.get("", found), weight

    def _refusal(self, given: str, hint: str = "") -> DataError:
        return DataError(
            what=f"batch {self._number} is {given}",
            hint=f"{hint} Each batch is (X, y), (X, y, sample_weight), a dictionary of arrays by "
            "name, or a table.".strip(),
        )


def _count(labels: Any) -> int:
    if isinstance(labels, tuple):
        second = labels[1]
        shape = second if isinstance(second, list) else labels[0].shape
        return int(shape[0]) if len(shape) else 0
    return len(labels) if labels.ndim else 0
