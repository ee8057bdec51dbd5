"""The classes of onnxruntime's extension; see `onnxgrad.compat.onnxruntime`."""

from __future__ import annotations

from typing import Any

from onnxgrad.compat import onnxruntime as _onnxruntime
from onnxgrad.compat.onnxruntime import (
    GradientGraphBuilder,
    OrtDevice,
    OrtMemType,
    OrtValue,
    OrtValueVector,
    TrainingParameters,
)

C_OrtValue = OrtValue

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
    return getattr(_onnxruntime, name)
