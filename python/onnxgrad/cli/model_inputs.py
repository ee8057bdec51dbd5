"""The inputs of a model from a file, for the commands that run it as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxgrad.base.messages import print_stderr
from onnxgrad.data.columns import Feeds, name_list
from onnxgrad.data.maps import columns_of_maps
from onnxgrad.data.tables import Table, read_npy, read_table
from onnxgrad.errors import DataError
from onnxgrad.sessions import InferenceSession, NodeArg

__all__ = ["in_type_of", "read_inputs"]

Array = np.ndarray[Any, Any]

_NAMES = {"float": "float32", "double": "float64"}  # ONNX's, where they are not NumPy's


def read_inputs(
    session: InferenceSession,
    path: str,
    ignored: Sequence[str] = (),
    delimiter: str | None = None,
    *,
    allow_nan: bool = False,
) -> dict[str, Array]:
    """Return an array for each input of a model, in its type, from a file of rows or arrays.

    Raises
    ------
    DataError
        No file that can be read, a missing column, numbers that the type of an input cannot hold,
        NaN or infinity in columns without `allow_nan`.
    """
    inputs = session.get_inputs()
    if Path(path).suffix.lower() == ".npy":
        return {inputs[0].name: in_type_of(inputs[0], read_npy(path))}
    table = read_table(path, delimiter)
    for name in ignored:
        table.take(name, "--ignored")
    maps = columns_of_maps(session._core.inputs)
    texts = {value.name for value in inputs if value.type == "tensor(string)"}
    feeds = table.inputs([value.name for value in inputs], ignored, maps=maps, texts=texts)
    _check_columns(table, feeds, inputs)
    if not allow_nan:
        table.check_finite(feeds, maps)
    stacked = feeds.plan.stacked_input
    if stacked is not None and stacked not in maps:  # columns that were not matched by name
        columns = name_list(feeds.plan.stacked, 20)
        print_stderr(f"input '{stacked}' reads the columns {columns}")
    return {value.name: _converted(value, table, feeds) for value in inputs}


def _check_columns(table: Table, feeds: Feeds, inputs: Sequence[NodeArg]) -> None:
    names = dict(feeds.plan.names())
    for value in inputs:
        found, wanted = feeds[value.name].shape, value.shape
        if len(found) == len(wanted) == 2 and isinstance(wanted[1], int) and found[1] != wanted[1]:
            raise DataError(
                what=f"{table.path}: {found[1]} columns for input '{value.name}', "
                f"expected {wanted[1]}",
                file=table.path,
                value=value.name,
                detail=f"Columns: {name_list(names.get(value.name, list(table.columns)), 60)}.",
                hint="Leave out what is not an input with ignored=, each column by its name."
                if found[1] > wanted[1]
                else "Give the columns that the model was trained on, in the same order.",
            )


def _converted(value: NodeArg, table: Table, feeds: Feeds) -> Array:
    array = feeds[value.name]
    if value.type.startswith("map("):
        return array
    if array.dtype.kind in "UO" and value.type != "tensor(string)":
        columns = dict(feeds.plan.names()).get(value.name, [])
        for i, column in enumerate(columns):
            table.check_numbers(column, array[:, i])
        array = array.astype(np.float64)
    if table.is_csv and len(value.shape) == 1 and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]  # a column is read as [N, 1]
    return in_type_of(value, array)


def in_type_of(value: NodeArg, array: Array) -> Array:
    """Convert numbers to the type of an input.

    Raises
    ------
    DataError
        It has none for some of them: fractions for integers, numbers that are too large.
    """
    dtype = _dtype_of(value.type)
    if dtype is None or array.dtype == dtype or array.dtype.kind not in "biufV":
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
    if dtype.kind in "biu" and not np.array_equal(converted.astype(array.dtype), array):
        wrong = array[converted.astype(array.dtype) != array].ravel()[0]
        raise DataError(
            what=f"input '{value.name}' is {dtype.name}, which cannot be {wrong}",
            value=value.name,
            hint="Give integers, and none that are too large for the type.",
        )
    return converted


def _dtype_of(kind: str) -> np.dtype[Any] | None:
    """Return the NumPy type of numbers of an ONNX type; None if it has none."""
    name = kind.removeprefix("tensor(").removesuffix(")")
    if name == "bfloat16":
        import ml_dtypes

        half: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return half
    try:
        found = np.dtype(_NAMES.get(name, name))
    except TypeError:  # no tensor, or a type of its own
        return None
    return found if found.kind in "biuf" else None
