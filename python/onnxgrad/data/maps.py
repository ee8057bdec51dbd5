"""Maps: dictionaries as rows of the tensor that a model computes with, and the other way round.

An input that is a map (DictVectorizer, CastMap) or an output of maps (ZipMap) is a tensor [N, C] in
the extension, with a column for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.data.arrays import as_numpy, from_native
from onnxgrad.data.columns import Feeds
from onnxgrad.errors import DataError

__all__ = ["columns_of_maps", "is_map", "maps_of_rows", "rows_of_maps", "with_rows"]

_DTYPES = {"string": object, "int64": np.int64, "float32": np.float32, "float64": np.float64}


def is_map(value: _core.ValueInfo) -> bool:
    """Return whether an input is a map in the file, and a tensor in the extension."""
    return bool(value.is_tensor and value.type.startswith("map("))


def columns_of_maps(inputs: Sequence[_core.ValueInfo]) -> dict[str, list[str]]:
    """Return the names of the columns that feed inputs which are maps: their keys."""
    return {
        value.name: [str(key) for key in from_native(value.keys).tolist()]
        for value in inputs
        if is_map(value) and value.keys is not None
    }


def maps_of_rows(array: np.ndarray[Any, Any], keys: Any) -> list[dict[Any, Any]]:
    """Return a dictionary for each row of `array` [N, C] (or [C]), as onnxruntime does."""
    names = from_native(keys).tolist()
    rows = array.reshape(1, -1) if array.ndim == 1 else array
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise DataError(
            what=f"maps of {len(names)} keys from an array of shape {list(array.shape)}",
            hint="Export the model again: its ZipMap does not match what it reads.",
        )
    return [dict(zip(names, row, strict=True)) for row in rows.tolist()]


def rows_of_maps(value: Any, info: _core.ValueInfo) -> np.ndarray[Any, Any]:
    """Return the rows [N, C] for the input `info`, which is a map.

    Parameters
    ----------
    value : dict, sequence of dict, or array [N, C]
        One map, one for each row, or the rows themselves, in the order of the keys. Keys that the
        model does not know are ignored; one that a map does not have is 0, or ``""``.

    Raises
    ------
    DataError
        Keys or values of other types than the model declares.
    """
    if isinstance(value, Mapping):
        return _rows([value], info)
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        value = value.ravel().tolist() if value.ndim == 1 or value.shape[1:] == (1,) else value
    if hasattr(value, "tolist") and not isinstance(value, np.ndarray):  # a Series of dictionaries
        value = value.tolist()
    if isinstance(value, (list, tuple)) and any(isinstance(one, Mapping) for one in value):
        return _rows(value, info)
    array = None if value is None else as_numpy(value, info.name)
    if array is None or array.ndim != 2:
        raise DataError(
            what=f"'{info.name}': a {type(value).__name__} for maps",
            value=info.name,
            hint="Give a dictionary for each row, or an array [N, C] with a column for each key.",
        )
    is_number = array.dtype.kind in "fiub" and info.dtype in ("float32", "float64", "int64")
    if not is_number or array.dtype.name == info.dtype:
        return array
    converted = array.astype(info.dtype)
    if info.dtype == "int64" and not np.array_equal(converted, array):
        raise DataError(
            what=f"'{info.name}': numbers that are not integers",
            value=info.name,
            hint=f"The model declares {info.type}.",
        )
    return converted


def with_rows(inputs: Sequence[_core.ValueInfo], X: Any) -> Any:
    """Return `X`, rows or feeds by name, with rows of tensors in place of maps."""
    maps = {value.name: value for value in inputs if is_map(value)}
    if not maps:
        return X
    if not isinstance(X, Mapping):
        return (
            {name: rows_of_maps(X, info) for name, info in maps.items()} if _is_alone(inputs) else X
        )
    if _is_alone(inputs) and not maps.keys() & X.keys():  # one map
        return {name: rows_of_maps(X, info) for name, info in maps.items()}
    rows = {name: rows_of_maps(X[name], info) for name, info in maps.items() if name in X}
    if isinstance(X, Feeds):  # columns of a table, which messages name
        X.update(rows)
        return X
    return {**X, **rows}


def _is_alone(inputs: Sequence[_core.ValueInfo]) -> bool:
    return len(inputs) == 1


def _rows(maps: Sequence[Any], info: _core.ValueInfo) -> np.ndarray[Any, Any]:
    key_type, value_type = info.type[4:-1].split(", ", 1)
    is_key: Callable[[Any], bool] = (
        (lambda key: isinstance(key, str)) if key_type == "string" else _is_integer
    )
    convert = _converter(info.dtype, value_type.startswith("string"))
    keys = None if info.keys is None else from_native(info.keys).tolist()
    if keys is None:
        keys = _common_keys(maps, info)
        columns = [dict(zip(sorted(one), keys, strict=True)) for one in maps]
    else:
        columns = [{key: key for key in keys}] * len(maps)
    places = {key: i for i, key in enumerate(keys)}
    rows = np.zeros((len(maps), len(keys)), _DTYPES[info.dtype])
    if info.dtype == "string":
        rows[...] = ""
    for row, one in enumerate(maps):
        if not isinstance(one, Mapping):
            raise _error(info, row, f"a {type(one).__name__}, expected a dictionary")
        for key, value in one.items():
            if not is_key(key):
                raise _error(info, row, f"the key {key!r} is not of type {key_type}")
            place = places.get(columns[row].get(key))
            if place is None:
                continue
            try:
                rows[row, place] = convert(value)
            except (TypeError, ValueError, OverflowError):
                raise _error(
                    info,
                    row,
                    f"{value!r}, the value of {key!r}, is not of the type "
                    f"{value_type.rstrip('[]')}",
                ) from None
    return rows


def _common_keys(maps: Sequence[Any], info: _core.ValueInfo) -> list[Any]:
    """Return numbers of columns: each map has its values in the order of its keys."""
    counts = [len(one) if isinstance(one, Mapping) else 0 for one in maps]
    if len({*counts}) > 1:
        row = next(i for i, count in enumerate(counts) if count != counts[0])
        raise _error(info, row, f"{counts[row]} keys, but the first map has {counts[0]}")
    return list(range(counts[0]))


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _converter(dtype: str, from_text: bool) -> Callable[[Any], Any]:
    def text(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError
        return value

    def number(value: Any) -> float:
        if isinstance(value, str) != from_text or isinstance(value, (list, tuple, dict)):
            raise TypeError
        return float(value)

    def integer(value: Any) -> int:
        if not _is_integer(value):
            raise TypeError
        return int(value)

    return {"string": text, "int64": integer}.get(dtype, number)


def _error(info: _core.ValueInfo, row: int, what: str) -> DataError:
    return DataError(
        what=f"'{info.name}', map {row}: {what}",
        value=info.name,
        hint=f"The model declares {info.type}.",
    )
