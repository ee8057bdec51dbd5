"""What is not about training: names of stock onnxruntime's modules."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["from_stock"]


def from_stock(module: str, name: str) -> Any:
    """Return a name of `onnxgrad.compat.onnxruntime`, or else of a module of stock onnxruntime.

    Raises
    ------
    AttributeError
        If neither has it.
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
