"""The longest rows that a language model reads: its tables of places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from onnxgrad import _core
from onnxgrad.data.arrays import from_native_list, to_native
from onnxgrad.data.sources import Session
from onnxgrad.data.tokens.inputs import completed, token_input
from onnxgrad.errors import DataError, Error

__all__ = ["Places", "check_length", "check_length_of", "default_length", "places_of"]

_FEW = 2  # places that every model has
_MOST_OFFSET = 8  # rows before that of the first place, as in OPT and RoBERTa
_DEFAULT, _MOST_BY_DEFAULT = 256, 1024


class Places(NamedTuple):
    """The number of places of a model, and the weight that has a row for each."""

    most: int
    weight: str


def places_of(session: Session) -> Places | None:
    """Return how many tokens a row may have; None if no table of places limits it.

    The part of the model that takes rows of tables is run on rows of several lengths: a table of
    places is one that is too short for one row more.
    """
    kept = vars(session)
    if "_places" not in kept:
        kept["_places"] = _found(session)
    known: Places | None = kept["_places"]
    return known


def _found(session: Session) -> Places | None:
    inputs = session._core.inputs
    name = token_input(inputs)
    shape = next((value.shape for value in inputs if value.name == name), None)
    if name is None or shape is None or isinstance(shape[1], int):  # the model fixes the length
        return None
    tables = _core.place_tables(session._model)
    values = _Values(session, name, tables)
    best: Places | None = None
    for table in values.tables:
        most = table.rows if best is None else min(table.rows, best.most)
        if values.fits(table, table.rows + 1):
            continue
        counts = range(most, max(most - _MOST_OFFSET, _FEW) - 1, -1)
        count = next((count for count in counts if values.fits(table, count)), None)
        if count is not None and (best is None or count < best.most):
            best = Places(count, table.weight)
    return best


class _Values:
    """Rows of the tables that a model takes for a number of tokens."""

    def __init__(self, session: Session, name: str, tables: list[_core.PlaceTable]) -> None:
        self._inputs, self._name = session._core.inputs, name
        shape = next(value.shape for value in self._inputs if value.name == name)
        rows = shape[0] if shape else None
        self._rows = rows if isinstance(rows, int) else 1
        self._model = session._model
        self._sessions: dict[str, _core.InferenceSession] = {}
        self.tables = [table for table in tables if self.fits(table, _FEW)]

    def fits(self, table: _core.PlaceTable, width: int) -> bool:
        """Return whether the table has rows for so many tokens."""
        try:
            if table.value not in self._sessions:
                cut = _core.place_values(self._model, [table])
                self._sessions[table.value] = _core.InferenceSession(cut, _core.EngineOptions())
            session = self._sessions[table.value]
            tokens = np.full((self._rows, width), _FEW, np.int64)
            feeds = dict(completed(self._inputs, {self._name: tokens}))
            wanted = {value.name for value in session.inputs}
            native = {key: to_native(one, key) for key, one in feeds.items() if key in wanted}
            (taken,) = from_native_list(session.run([table.value], native))
        except Error:
            return False
        shape = np.shape(taken)
        return len(shape) >= 2 and shape[-2] == width


def default_length(session: Session) -> int:
    """Return the tokens of a row where nothing asks for a number: all places, at most 1024."""
    places = places_of(session)
    return _DEFAULT if places is None else min(places.most, _MOST_BY_DEFAULT)


def check_length(session: Session, length: int, option: str, data: Any = None) -> None:
    """Refuse rows of more tokens than the model has places for.

    Raises
    ------
    DataError
    """
    places = None if length <= _FEW else places_of(session)
    if places is None or length <= places.most:
        return
    of = "" if data is None else f" of {data}"
    raise DataError(
        what=f"rows{of} have {length} tokens, but the model has {places.most} places, the rows of "
        f"'{places.weight}'",
        value=option,
        hint=f"Give {option}={places.most} or less."
        if option != "X"
        else "Cut the rows, or export the model with more places.",
    )


def check_length_of(session: Session, X: Any) -> None:
    """Refuse tokens [N, T], alone or among other inputs, of more places than the model has.

    Raises
    ------
    DataError
    """
    name = token_input(session._core.inputs)
    tokens = X.get(name) if isinstance(X, Mapping) else X
    if name is not None and isinstance(tokens, np.ndarray) and tokens.ndim == 2:
        check_length(session, tokens.shape[1], "X")
