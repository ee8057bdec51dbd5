"""The classes of onnxruntime's extension; see `onnxgrad.compat.onnxruntime`."""

from __future__ import annotations

from typing import Any

from onnxgrad.compat.onnxruntime import (
    C_OrtValue,
    GradientGraphBuilder,
    OrtDevice,
    OrtMemType,
    OrtValue,
    OrtValueVector,
    TrainingParameters,
)
from onnxgrad.compat.onnxruntime.stock import from_stock

__all__ = [
    "C_OrtValue",
    "GradientGraphBuilder",
    "OrtDevice",
    "OrtMemType",
    "OrtValue",
    "OrtValueVector",
    "TrainingParameters",
]


def __getattr__(name: str) -> Any:
    return from_stock("onnxruntime.capi._pybind_state", name)
