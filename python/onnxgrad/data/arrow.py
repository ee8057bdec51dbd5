"""Tables with the Arrow C interface (pyarrow, pandas, polars, ...), without importing any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import is_number, nearest_or
from onnxgrad.data.arrays import as_numpy, from_native
from onnxgrad.data.columns import Feeds, name_list, plan_columns, without_gaps
from onnxgrad.data.foreign import arrow_columns, is_dataset, plain_table
from onnxgrad.errors import DataError

Array = np.ndarray[Any, Any]
_MAX_CELLS = 100_000  # searched for the cell to show in a message

__all__ = ["columns_of", "is_table", "match_columns", "named_arrays"]


def is_table(value: Any) -> bool:
    """Return whether `value` is a table: of the Arrow C interface, or of `datasets`."""
    if is_dataset(value):
        return True
    if isinstance(value, np.ndarray) or not (
        hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")
    ):
        return False
    return getattr(value, "ndim", 2) == 2 and any(
        hasattr(value, name) for name in ("column_names", "columns", "schema", "num_columns")
    )


def columns_of(table: Any) -> dict[str, Array]:
    """Return the columns of an Arrow table by name; a single column has the name ``""``.

    The index of a pandas table is not a column.
    """
    table = plain_table(table)
    if isinstance(table, Mapping):
        return {str(name): as_numpy(value, str(name)) for name, value in table.items()}
    return {name: from_native(value) for name, value in arrow_columns(table).items()}


def match_columns(
    columns: Mapping[str, Array],
    inputs: Mapping[str, str],
    targets: Mapping[str, str | Sequence[str]] | None = None,
    sample_weight: str | None = None,
    maps: Mapping[str, list[str]] | None = None,
) -> Feeds:
    """Return the arrays for the inputs (name to dtype); see `plan_columns`.

    The columns of `targets` (by output) and `sample_weight` are not used for inputs.
    """
    taken = [] if sample_weight is None else [sample_weight]
    for name in (targets or {}).values():
        taken += [name] if isinstance(name, str) else name
    maps = maps or {}
    plan = plan_columns(list(columns), list(inputs), taken, maps=maps)
    feeds = {name: _as_rows(columns[column]) for name, column in plan.named.items()}
    if plan.stacked_input is not None:
        stacked = {name: columns[name] for name in plan.stacked}
        rows = _stack(stacked, inputs[plan.stacked_input])
        feeds[plan.stacked_input] = without_gaps(rows) if plan.stacked_input in maps else rows
    return Feeds(feeds, plan, targets=targets, sample_weight=sample_weight)


def named_arrays(
    inputs: Mapping[str, str],
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    maps: Mapping[str, list[str]] | None = None,
) -> tuple[Any, Any, Any]:
    """Return (X, y, sample_weight) with the columns of a table as arrays by input.

    `inputs` are the names of the model's inputs and their dtypes. `y` (or its values, if it is a
    dictionary by output) and `sample_weight` may be names of columns; they are returned as NumPy
    arrays or None; a list of names is one target of several columns. An `X` that is not a table is
    returned unchanged.
    """
    columns: Mapping[str, Array] | None = None
    if is_table(X):
        columns = columns_of(X)
        several = y if isinstance(y, Mapping) else {"": y}
        targets = {str(key): name for key, name in several.items() if _names_columns(name, columns)}
        weight = sample_weight if isinstance(sample_weight, str) else None
        X = match_columns(columns, inputs, targets, weight, maps)

    def read(value: Any, name: str) -> Array:
        if columns is not None and not isinstance(value, str) and _names_columns(value, columns):
            return np.column_stack([columns[one] for one in value])
        if not isinstance(value, str):
            return as_numpy(value, name)
        if columns is None:
            raise DataError(
                what=f"{name} is the string {value!r}, but X has no named columns",
                value=name,
                hint="Give an array, or a table or a file as X.",
            )
        return take_column(columns, value)

    if isinstance(y, Mapping):
        y = {str(output): read(value, str(output)) for output, value in y.items()}
    elif y is not None:
        y = read(y, "y")
    return X, y, None if sample_weight is None else read(sample_weight, "sample_weight")


def _names_columns(value: Any, columns: Mapping[str, Array]) -> bool:
    """Return whether a target is given as the name of a column, or as a list of such names."""
    if isinstance(value, str):
        return True
    is_list = isinstance(value, (list, tuple)) and bool(value)
    return is_list and all(isinstance(one, str) and one in columns for one in value)


def take_column(columns: Mapping[str, Array], name: str) -> Array:
    """Return the column `name`."""
    if name in columns:
        return columns[name]
    raise DataError(
        what=f"the table has no column '{name}'",
        value=name,
        detail=f"It has {name_list(list(columns))}.",
        hint=nearest_or(name, columns, "Use one of these columns."),
    )


def _as_rows(column: Array) -> Array:
    return column.reshape(len(column), -1)


def _stack(columns: Mapping[str, Array], dtype: str) -> Array:
    if all(column.dtype.kind == "O" for column in columns.values()):
        return np.stack(list(columns.values()), axis=1)
    for name, column in columns.items():
        if column.dtype.kind in "fiub":
            continue
        cells = [str(cell) for cell in column.reshape(-1)[:_MAX_CELLS]]
        row = next((i for i, cell in enumerate(cells) if not is_number(cell)), 0)
        first = f" ({cells[row]!r} in row {row})" if cells else ""
        raise DataError(
            what=f"column '{name}' has strings{first}, expected numbers",
            value=name,
            hint=_core.number_hint(cells[row], name)
            if cells and not is_number(cells[row])
            else "Convert it to numbers.",
        )
    parts = [_as_rows(column) for column in columns.values()]
    if len(parts) == 1:
        return parts[0]
    if dtype.startswith("int"):
        return np.concatenate(parts, axis=1)
    rows = np.empty(
        (len(parts[0]), sum(part.shape[1] for part in parts)),
        np.float32 if dtype == "float32" else np.float64,
    )
    np.concatenate(parts, axis=1, out=rows, casting="unsafe")
    return rows
