"""Tables with the Arrow C interface: pyarrow, pandas, polars and others, none of them imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad._arrays import as_numpy, from_native
from onnxgrad._checks import nearest_or
from onnxgrad.errors import DataError

Array = np.ndarray[Any, Any]

__all__ = ["columns_of", "is_table", "match_columns", "named_arrays"]


def is_table(value: Any) -> bool:
    """Tell whether `value` has columns with names, by the Arrow C interface."""
    if isinstance(value, np.ndarray) or not (
        hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")
    ):
        return False
    return getattr(value, "ndim", 2) == 2 and any(
        hasattr(value, name) for name in ("column_names", "columns", "schema", "num_columns")
    )


def columns_of(table: Any) -> dict[str, Array]:
    """Return the columns of an Arrow table by name; a column alone has the name ``""``.

    The index of a pandas table is no column.
    """
    if hasattr(table, "reset_index"):
        table = table.reset_index(drop=True)
    return {name: from_native(value) for name, value in _core.arrow_columns(table).items()}


def match_columns(
    columns: Mapping[str, Array], inputs: Mapping[str, str], taken: Sequence[str] = ()
) -> dict[str, Array]:
    """Return what the inputs (name to dtype) are fed with.

    Columns are matched by name first; what is left makes up the rows [N, C] of the one input that
    has no column of its name. `taken` are columns that are used otherwise.
    """
    rest = {name: column for name, column in columns.items() if name not in taken}
    feeds = {name: _as_rows(rest.pop(name)) for name in inputs if name in rest}
    missing = [name for name in inputs if name not in feeds]
    if not missing:
        return feeds
    if len(missing) > 1 or not rest:
        raise DataError(
            what=f"the table has nothing for the model's input '{missing[0]}'",
            value=missing[0],
            detail=f"The model reads {', '.join(inputs)}; the table has "
            f"{', '.join(list(columns)[:8])}.",
            mend="Name columns like the inputs, or give a dictionary of arrays.",
        )
    feeds[missing[0]] = _stack(rest, inputs[missing[0]])
    return feeds


def named_arrays(
    inputs: Mapping[str, str], X: Any, y: Any = None, sample_weight: Any = None
) -> tuple[Any, Any, Any]:
    """Return (X, y, sample_weight) with the columns of a table as arrays by input.

    `inputs` are the names of the model's inputs and their dtypes. `y` (or its values, if it is a
    dictionary by output) and `sample_weight` may be names of columns. These come back as NumPy
    arrays or None, whatever they were; an `X` that is no table comes back as it is.
    """
    columns: Mapping[str, Array] | None = None
    if is_table(X):
        columns = columns_of(X)
        targets = y.values() if isinstance(y, Mapping) else [y]
        taken = [name for name in (*targets, sample_weight) if isinstance(name, str)]
        X = match_columns(columns, inputs, taken)

    def read(value: Any, name: str) -> Array:
        if not isinstance(value, str):
            return as_numpy(value, name)
        if columns is None:
            raise DataError(
                what=f"{name} is the text {value!r}, but X has no columns with names",
                value=name,
                mend="Give an array, or a table or a file as X.",
            )
        return take_column(columns, value)

    if isinstance(y, Mapping):
        y = {str(output): read(value, str(output)) for output, value in y.items()}
    elif y is not None:
        y = read(y, "y")
    return X, y, None if sample_weight is None else read(sample_weight, "sample_weight")


def take_column(columns: Mapping[str, Array], name: str) -> Array:
    """Return the column `name`."""
    if name in columns:
        return columns[name]
    raise DataError(
        what=f"the table has no column '{name}'",
        value=name,
        detail=f"It has {', '.join(list(columns)[:8])}.",
        mend=nearest_or(name, columns, "Take one of these columns."),
    )


def _as_rows(column: Array) -> Array:
    return column.reshape(len(column), -1)


def _stack(columns: Mapping[str, Array], dtype: str) -> Array:
    if all(column.dtype.kind == "O" for column in columns.values()):
        return np.stack(list(columns.values()), axis=1)
    for name, column in columns.items():
        if column.dtype.kind not in "fiub":
            raise DataError(
                what=f"column '{name}' is text, not numbers",
                value=name,
                mend="Leave it out, or export its encoding with the model (a pipeline).",
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
