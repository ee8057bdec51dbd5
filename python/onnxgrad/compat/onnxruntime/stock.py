"""Access to names of stock onnxruntime's modules that are unrelated to training."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["from_stock"]


def from_stock(module: str, name: str) -> Any:
    """Return an attribute of `onnxgrad.compat.onnxruntime`, or else of stock onnxruntime's module.

    Raises
    ------
    AttributeError
        Neither has it.
    """
    own = importlib.import_module("onnxgrad.compat.onnxruntime")
    if name in own.__all__:
        return getattr(own, name)
    try:
        stock = importlib.import_module(module)
    except ImportError:
        return getattr(own, name)
    if hasattr(stock, name):
        return getattr(stock, name)
    raise AttributeError(f"neither onnxgrad.compat.{module} nor stock onnxruntime has {name!r}")
