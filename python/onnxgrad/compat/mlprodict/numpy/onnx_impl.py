"""The functions of ndonnx on traced values: ``exp``, ``sum``, ``where``, ..."""

from __future__ import annotations

from typing import Any

from onnxgrad.compat.mlprodict.numpy.onnx_numpy import apply, import_ndonnx

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(import_ndonnx(), name, None)
    if not callable(function):
        raise AttributeError(f"module {__name__!r} has no function {name!r}")
    return lambda *arguments, **options: apply(function, *arguments, **options)
