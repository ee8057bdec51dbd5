"""The Python classes of onnxruntime: onnxgrad's values, and stock onnxruntime's sessions."""

from __future__ import annotations

from typing import Any

from onnxgrad.compat.onnxruntime import OrtDevice, OrtValue
from onnxgrad.compat.onnxruntime.stock import from_stock

__all__ = ["OrtDevice", "OrtValue"]


def __getattr__(name: str) -> Any:
    return from_stock("onnxruntime.capi.onnxruntime_inference_collection", name)
