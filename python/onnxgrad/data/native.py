"""Arrays of the extension as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["dtype_named", "from_native", "from_native_list"]


def from_native(value: Any) -> np.ndarray[Any, Any]:
    """Convert an array of the extension to a NumPy array, which shares its memory."""
    if isinstance(value, tuple):
        data, dtype = value
        if dtype == "string":
            items, shape = data
            text = np.empty(len(items), dtype=object)
            text[:] = items
            return text.reshape(shape)
        bits: np.ndarray[Any, Any] = data
        return bits.view(_type_of_ml_dtypes(dtype))
    array: np.ndarray[Any, Any] = value
    return array


def from_native_list(values: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Apply `from_native` to each value."""
    return [from_native(value) for value in values]


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the type with this name, of NumPy or ``ml_dtypes``."""
    try:
        dtype: np.dtype[Any] = np.dtype(name)
    except TypeError:
        dtype = _type_of_ml_dtypes(name)
    return dtype


def _type_of_ml_dtypes(name: str) -> np.dtype[Any]:
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
