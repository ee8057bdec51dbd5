"""Arrays and tables of other libraries, by their protocols, without importing these."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.errors import DataError

__all__ = ["arrow_columns", "from_dlpack", "is_dataset", "plain_table"]

# Types of DLPack that NumPy lacks: code, and bits -> the type of ml_dtypes.
_TYPES = {
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
_UNSIGNED = 1  # code of unsigned integers
# Devices whose memory the host reads: CPU, and memory that CUDA or ROCm pin or manage.
_HOST = (1, 3, 11, 13)
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI"}


def from_dlpack(value: Any, name: str) -> np.ndarray[Any, Any]:
    """Return an array with DLPack as a NumPy array, which shares its memory.

    One in the memory of a device is copied, if its library does so when asked (DLPack 1.0).

    Raises
    ------
    DataError
        Its memory is that of a device, and its library does not copy it.
    BufferError, RuntimeError, TypeError, ValueError
        Its library refuses, or NumPy cannot read it.
    """
    if hasattr(value, "__dlpack_device__"):
        kind = int(value.__dlpack_device__()[0])
        if kind not in _HOST and not _copies_itself(value):
            copy = _copied_to_host(value)
            if copy is not None:
                return copy
            raise DataError(
                what=f"'{name}': a {type(value).__name__} in the memory of a device "
                f"({_DEVICES.get(kind, f'DLPack {kind}')})",
                value=name,
                hint=f"Copy it to the host: {name}.{_to_host(value)}.",
            )
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        array = _with_other_type(value)
        if array is None:
            raise
        return array


def _copied_to_host(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a copy that the array's library makes; None if it makes none."""
    try:
        capsule = value.__dlpack__(max_version=(1, 1), dl_device=(1, 0))
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None
    kind = ctypes.c_int32.from_address(_tensor_address(capsule) + 8).value
    return from_dlpack(_Renamed(capsule), "") if kind in _HOST else None  # not all follow


def _copies_itself(value: Any) -> bool:
    """Return whether a library copies to the host when NumPy asks, as JAX does."""
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib")


def _to_host(value: Any) -> str:
    if hasattr(value, "get"):  # CuPy
        return "get()"
    return "cpu()" if hasattr(value, "cpu") else "__array__()"


class _Renamed:
    """A capsule as an object with DLPack."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def _capsule(value: Any) -> Any:
    try:
        return value.__dlpack__(max_version=(1, 0))
    except TypeError:  # of DLPack before 1.0
        return value.__dlpack__()


def _tensor_address(capsule: Any) -> int:
    """Return the address of a DLTensor: data, device and rank (8, 8, 4 bytes), code and bits."""
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = name_of(capsule)
    # In a capsule with a version, it comes after the version, two pointers and flags.
    return int(pointer_of(capsule, name)) + (32 if name == b"dltensor_versioned" else 0)


def _with_other_type(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array of a type that NumPy lacks, read as unsigned integers; None for others."""
    try:
        capsule = _capsule(value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None
    dtype = (ctypes.c_uint8 * 2).from_address(_tensor_address(capsule) + 20)
    found = _TYPES.get((dtype[0], dtype[1]))
    if found is None:
        return None
    import ml_dtypes

    dtype[0] = _UNSIGNED
    bits: np.ndarray[Any, Any] = np.from_dlpack(_Renamed(capsule))
    array: np.ndarray[Any, Any] = bits.view(np.dtype(getattr(ml_dtypes, found)))
    return array


def is_dataset(value: Any) -> bool:
    """Return whether `value` is a table of the package ``datasets``."""
    return (
        hasattr(value, "with_format")
        and hasattr(value, "column_names")
        and hasattr(value, "format")
        and not isinstance(value, (type, Mapping))
    )


def plain_table(value: Any, name: str = "X") -> Any:
    """Return a table of the package ``datasets`` as an Arrow table, its column as an array.

    With a transformation of its own (``set_transform``) it is a dictionary of columns. Anything
    else is returned unchanged.

    Raises
    ------
    DataError
        Several tables, one that is read row by row, or a polars query.
    """
    if isinstance(value, (np.ndarray, str, list, tuple, int, float)):
        return value
    hint = ""
    if hasattr(value, "column_name") and hasattr(value, "source"):  # a column
        return value[:]
    if hasattr(value, "with_format") and hasattr(value, "column_names"):
        if isinstance(value, Mapping):
            hint = f"Give one of its tables: {name}[{next(iter(value), 'train')!r}]."
        elif not hasattr(value, "format"):
            hint = f"Give its batches: fit(lambda: {name}.iter(batch_size=32), 'target')."
        else:
            given = value.format
            if given["type"] == "custom":
                return value[:]
            return value.with_format("arrow", columns=given["columns"])[:]
    elif hasattr(value, "collect_schema") and hasattr(value, "collect"):  # polars
        hint = f"Give its result: {name}.collect()."
    if hint:
        raise DataError(
            what=f"'{name}': a {type(value).__name__} is no table", value=name, hint=hint
        )
    return value


def arrow_columns(table: Any) -> dict[str, Any]:
    """Return the columns of a table with the Arrow C interface, for the extension, by name.

    The index of a pandas table is not a column. Lists in cells are rows of an array, as those of a
    fixed size are, if they have the same length.
    """
    if hasattr(table, "reset_index"):
        table = table.reset_index(drop=True)
    try:
        return _core.arrow_columns(table)
    except DataError as error:
        # Types "+l" and "+L" of the interface: lists of any length.
        if "type '+l'" not in error.what.lower():
            raise
        try:
            import pyarrow as pa
        except ImportError:
            raise error from None
        fixed, shapes = _with_fixed_lists(pa, table)
        found = _core.arrow_columns(fixed)
        return {
            name: value.reshape(-1, *shapes[name]) if name in shapes else value
            for name, value in found.items()
        }


def _with_fixed_lists(pa: Any, table: Any) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Return a table or a column with lists of a fixed size, and the shapes of rows by name."""
    if not hasattr(table, "__arrow_c_stream__"):
        array, shape = _fixed(pa, pa.array(table))
        return array, {"": shape} if shape else {}
    try:
        read = pa.table(table)
    except pa.ArrowInvalid:  # a column
        array, shape = _fixed(pa, pa.chunked_array(table).combine_chunks())
        return array, {"": shape} if shape else {}
    found = [_fixed(pa, column.combine_chunks()) for column in read.columns]
    shapes = {
        name: shape for name, (_, shape) in zip(read.column_names, found, strict=True) if shape
    }
    return pa.table([array for array, _ in found], names=read.column_names), shapes


def _fixed(pa: Any, array: Any) -> tuple[Any, tuple[int, ...]]:
    """Return an Arrow array whose lists of equal lengths are flat, and the shape of a row."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = pa.types
    if kind.is_fixed_size_list(array.type):
        lengths = {array.type.list_size}
    elif kind.is_list(array.type) or kind.is_large_list(array.type):
        lengths = {*array.value_lengths().to_pylist()}
    else:
        return array, ()
    if len(lengths) != 1 or None in lengths or array.null_count:
        return array, ()
    length = lengths.pop()
    values, shape = _fixed(pa, array.flatten())
    if shape:  # lists of lists
        values = values.flatten()
    if kind.is_nested(values.type):
        return array, ()
    size = length * math.prod(shape)
    return pa.FixedSizeListArray.from_arrays(values, size), (length, *shape)
