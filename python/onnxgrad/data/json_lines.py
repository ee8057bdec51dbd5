"""Files of JSON lines: an object for each row, whose members are columns."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from onnxgrad.base.opening import open_input
from onnxgrad.errors import DataError

__all__ = ["read_json_lines"]

Array = np.ndarray[Any, Any]


def read_json_lines(path: str) -> dict[str, Array]:
    """Return the columns of a file: numbers, strings, lists of equal lengths, or objects (maps).

    A member that a line lacks, or null, is NaN, an empty string or an empty object.

    Raises
    ------
    DataError
        A line is not an object, or a column has values of different kinds.
    """
    rows: list[tuple[int, dict[str, Any]]] = []
    try:
        with io.TextIOWrapper(open_input(path), encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    rows.append((number, _object(path, number, line)))
    except UnicodeDecodeError as error:
        raise DataError(
            what=f"{path}: not a readable file of JSON lines",
            file=path,
            detail=str(error),
            hint="Save it as UTF-8, with an object in each line.",
        ) from error
    if not rows:
        raise DataError(
            what=f"{path}: no rows", file=path, hint="Give one object in each line, for each row."
        )
    names = dict.fromkeys(name for _, row in rows for name in row)
    return {
        name: _column(path, name, [(line, row.get(name)) for line, row in rows]) for name in names
    }


def _object(path: str, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _error(path, number, f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise _error(path, number, f"a {type(row).__name__}, expected an object")
    return row


def _column(path: str, name: str, cells: list[tuple[int, Any]]) -> Array:
    kinds = {bool: float, int: float, float: float, str: str, list: list, dict: dict}
    first = next(((line, value) for line, value in cells if value is not None), None)
    kind = float if first is None else kinds[type(first[1])]
    for line, value in cells:
        if value is not None and kinds[type(value)] is not kind:
            raise _error(
                path, line, f"'{name}' is of another kind than in line {first[0] if first else 1}"
            )
    values = [value for _, value in cells]
    if kind is float:
        try:
            numbers = np.array([np.nan if value is None else float(value) for value in values])
        except OverflowError:
            raise _error(path, cells[0][0], f"'{name}' has a number beyond float64") from None
        are_whole = all(isinstance(value, int) for value in values)
        are_small = are_whole and all(-(2**63) <= value < 2**63 for value in values)
        return np.array(values, np.int64) if are_small else numbers
    if kind is str:
        return np.array(["" if value is None else value for value in values], dtype=np.str_)
    if kind is dict:
        maps = np.empty(len(values), dtype=object)
        maps[:] = [{} if value is None else value for value in values]
        return maps
    try:
        return np.array(values)
    except ValueError:
        raise _error(path, cells[0][0], f"'{name}' has lists of different lengths") from None


def _error(path: str, line: int, what: str) -> DataError:
    return DataError(
        what=f"{path}: line {line}: {what}",
        file=path,
        hint="Give one JSON object in each line, with the same members.",
    )
