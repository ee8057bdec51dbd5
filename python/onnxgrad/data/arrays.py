"""Conversion of arrays from any library for the extension, without importing that library.

Contiguous NumPy arrays are passed to the extension without a copy. Two kinds are passed as a pair:
strings (a list of ``str`` and a shape), and types of ``ml_dtypes`` (their bits and the name of the
type).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import has_surrogates
from onnxgrad.data.device_arrays import detached, device_tensor
from onnxgrad.data.foreign import arrow_columns, from_dlpack, plain_table
from onnxgrad.data.memory import free_bytes
from onnxgrad.data.native import dtype_named, from_native, from_native_list
from onnxgrad.errors import DataError, DeviceError

__all__ = [
    "ArrayLike",
    "NativeArray",
    "are_on_device",
    "as_numpy",
    "by_input",
    "cast_number",
    "from_native",
    "from_native_list",
    "is_sparse",
    "num_rows_of",
    "to_feeds",
    "to_native",
]

ArrayLike: TypeAlias = Any
"""A NumPy array, anything with DLPack, ``__array__`` or the Arrow C interface, nested lists."""

NativeArray: TypeAlias = "np.ndarray[Any, Any] | tuple[Any, Any]"

_NATIVE_KINDS = frozenset("fiubc")
# The extension reads contiguous arrays of these types as they are.
_DIRECT = frozenset(
    np.dtype(name)
    for name in ("float32", "float64", "float16", "bool", "int8", "int16", "int32", "int64")
)
_USER_DEFINED = 2  # dtype.isbuiltin of types of other packages; that of an unpickled array is 0
# The types of ml_dtypes that the extension takes as bits, under the same names. Those of less than
# a byte have a byte for each element.
_BITS = {
    "bfloat16": np.uint16,
    "float8_e4m3fn": np.uint8,
    "float8_e4m3fnuz": np.uint8,
    "float8_e5m2": np.uint8,
    "float8_e5m2fnuz": np.uint8,
    "float8_e8m0fnu": np.uint8,
    "float4_e2m1fn": np.uint8,
    "int4": np.uint8,
    "uint4": np.uint8,
    "int2": np.uint8,
    "uint2": np.uint8,
}
# Types that `cast_number` converts to.
_CAST_TO = ("float32", "float64", "float16", "bfloat16", "int64")
_NUMPY_FLOATS = ("float32", "float64", "float16")
_LARGE = 64 << 20  # bytes: the free memory is checked before a larger copy


def is_sparse(value: Any) -> bool:
    """Return whether `value` is a sparse array or matrix like SciPy's."""
    return all(hasattr(value, name) for name in ("toarray", "tocsr", "nnz"))


def as_numpy(value: ArrayLike, name: str) -> np.ndarray[Any, Any]:
    """Convert `value` to a NumPy array, sharing its memory if possible."""
    if isinstance(value, np.ndarray):
        return value
    table, value = value, plain_table(value, name)
    if isinstance(value, Mapping) and table is not value:  # of transformed rows
        return np.column_stack([as_numpy(column, str(key)) for key, column in value.items()])
    value = detached(value)
    if hasattr(value, "resolve_conj"):
        value = value.resolve_conj()
    if hasattr(value, "__dlpack__") and not isinstance(value, np.generic):
        try:
            tensor = device_tensor(value, name)
            return from_dlpack(value, name) if tensor is None else from_native(tensor.to_host())
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            if not hasattr(value, "__array__"):
                raise DataError(
                    what=f"'{name}': a {type(value).__name__} that NumPy cannot read",
                    value=name,
                    detail=f"{error}",
                    hint="Move it to host memory (and detach it from its gradients) first.",
                ) from error
    has_arrow = hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")
    if has_arrow and not hasattr(value, "__array__"):
        return _from_arrow(value)
    if is_sparse(value):
        raise DataError(
            what=f"'{name}': a sparse {type(value).__name__}",
            value=name,
            hint="Call toarray() on it. Only X [N, C] of a Trainer may be sparse.",
        )
    try:
        array = np.asarray(value)
    except MemoryError as error:
        raise _out_of_memory(name, str(error)) from None
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DataError(
            what=f"'{name}': a {type(value).__name__} that is not an array",
            value=name,
            detail=str(error).split(". ")[0],
            hint="Give a NumPy array, nested lists of equal lengths, or an object with DLPack.",
        ) from error
    # Lists in cells, decimals, and missing values beside others than floats.
    return _from_arrow(value) if has_arrow and _has_others_than_texts(array) else array


def _has_others_than_texts(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind == "O" and not all(isinstance(item, str) for item in array.flat)


def _from_arrow(value: Any) -> np.ndarray[Any, Any]:
    """Return a column [N, ...], or those of a table side by side."""
    columns = [from_native(column) for column in arrow_columns(value).values()]
    return columns[0] if len(columns) == 1 else np.column_stack(columns)


def to_native(value: ArrayLike, name: str, *, in_place: bool = False) -> Any:
    """Convert `value` for the extension; `name` is for messages.

    Contiguous numeric arrays are not copied. With `in_place`, neither are those in the memory of a
    device that sessions use: they are returned as a ``_core.DeviceTensor``.
    """
    # Most calls end here: those for a row or two would notice what follows.
    if type(value) is np.ndarray and value.dtype in _DIRECT and value.flags.c_contiguous:
        return value
    if in_place and not isinstance(value, np.ndarray):
        if isinstance(value, _core.DeviceTensor):
            return value
        tensor = device_tensor(value, name)
        if tensor is not None:
            return tensor
    array = as_numpy(value, name)
    if array.dtype.kind in "OUT":
        _check_memory(array, name)
    if array.dtype.kind == "O":
        array = _from_objects(array, name)
    if array.dtype.kind in "UT":
        texts = [str(item) for item in array.ravel().tolist()]
        if broken := next((text for text in texts if has_surrogates(text)), None):
            raise DataError(
                what=f"'{name}': {broken!a} has a surrogate, half a character",
                value=name,
                hint="Give texts that can be written as UTF-8.",
            )
        return (texts, list(array.shape))
    if not array.dtype.isnative:
        _check_memory(array, name)
        array = array.astype(array.dtype.newbyteorder("="))
    # The kind alone is not enough: one of the types of ml_dtypes has the kind of floats.
    if array.dtype.isbuiltin != _USER_DEFINED:
        most_bytes = 16 if array.dtype.kind == "c" else 8
        if array.dtype.kind in _NATIVE_KINDS and array.dtype.itemsize <= most_bytes:
            return _contiguous(array, name)
    elif array.dtype.names is None and array.dtype.name in _BITS:
        return (_contiguous(array, name).view(_BITS[array.dtype.name]), array.dtype.name)
    raise DataError(
        what=f"'{name}': arrays of {array.dtype} are not supported",
        value=name,
        hint="Convert it to a floating, integer, bool or string type.",
    )


def num_rows_of(value: Any) -> int:
    """Return the first dimension of an array, or of bits or strings with type or shape."""
    if isinstance(value, _core.DeviceTensor):
        return int(value.shape[0]) if value.shape else 0
    if isinstance(value, tuple):
        shape = value[1] if isinstance(value[1], list) else value[0].shape
        return int(shape[0]) if len(shape) else 0
    return len(value) if value.ndim else 0


def by_input(session: _core.TrainingSession, X: Any) -> Mapping[str, Any]:
    """Return `X`, a dictionary or the one input of the model, as a dictionary.

    Raises
    ------
    DataError
        One array for a model with several inputs.
    """
    if isinstance(X, Mapping):
        return X
    names = [value.name for value in session.inputs]
    if len(names) != 1:
        raise DataError(
            what=f"X is one array, but the model has {len(names)} inputs",
            value="X",
            hint=f"Give a dictionary with {', '.join(repr(name) for name in names)}.",
        )
    return {names[0]: X}


def to_feeds(feeds: Mapping[str, ArrayLike], *, in_place: bool = False) -> dict[str, Any]:
    """Convert a dictionary of inputs for the extension; `in_place` as for `to_native`."""
    if type(feeds) is not dict and not isinstance(feeds, Mapping):
        raise DataError(
            what=f"feeds is a {type(feeds).__name__}, expected a dictionary",
            hint="Give the inputs by name: {'X': array}.",
        )
    return {
        str(name): to_native(value, str(name), in_place=in_place) for name, value in feeds.items()
    }


def are_on_device(feeds: Mapping[str, Any]) -> bool:
    """Return whether some of the feeds for the extension are in the memory of a device."""
    return _core.DeviceTensor in map(type, feeds.values())


def _contiguous(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    if array.flags.c_contiguous:
        return array
    _check_memory(array, name)
    # np.ascontiguousarray would turn rank 0 into rank 1.
    return array.copy(order="C")


def _out_of_memory(name: str, detail: str) -> DeviceError:
    return DeviceError(
        what=f"'{name}': out of memory for a copy of the array",
        value=name,
        detail=detail,
        hint="Give smaller batches, or a data source that reads it in chunks.",
    )


def _check_memory(array: np.ndarray[Any, Any], name: str) -> None:
    """Raise DeviceError if a contiguous copy of a view does not fit into the free memory."""
    size = array.size * array.itemsize  # much more than the view holds if it repeats rows
    if size > _LARGE and size > free_bytes():
        raise _out_of_memory(
            name,
            f"A contiguous copy of the view {list(array.shape)} of {array.dtype} takes {size} "
            "bytes; the extension requires contiguous arrays.",
        )


def _from_objects(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    items = array.ravel().tolist()
    if all(isinstance(item, str) for item in items):  # also if there are none
        return np.array(items, dtype=np.str_).reshape(array.shape)
    if all(isinstance(item, (bool, int, float)) for item in items):
        return np.array(items).reshape(array.shape)
    kinds = sorted({type(item).__name__ for item in items})
    raise DataError(
        what=f"'{name}': an array of Python objects ({', '.join(kinds[:4])})",
        value=name,
        hint="Give only numbers, or only strings.",
    )


def cast_number(value: Any, dtype: str, name: str) -> Any:
    """Convert an array of numbers to the dtype of the model's input, as `fit` does."""
    if isinstance(value, tuple) and isinstance(value[1], str) and dtype in _NUMPY_FLOATS:
        _check_memory(value[0], name)
        return from_native(value).astype(dtype)
    if isinstance(value, np.ndarray) and dtype in _CAST_TO:
        if value.dtype.name == dtype:
            return value
        is_number = value.dtype.kind in "fiub" and value.dtype.isbuiltin != _USER_DEFINED
        if is_number and not (dtype == "int64" and value.dtype.kind == "f"):
            _check_memory(value, name)
            return value.astype(dtype_named(dtype))
        raise DataError(
            what=f"'{name}': an array of {value.dtype}, expected {dtype}",
            value=name,
            hint=f"Convert it to {dtype}.",
        )
    return value
