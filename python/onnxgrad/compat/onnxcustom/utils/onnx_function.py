"""Small functions as ONNX models, by name; see `onnxgrad.compat.graphs.formulas`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from onnxgrad.compat.graphs import formulas

__all__ = ["function_onnx_graph", "get_supported_functions"]


def get_supported_functions() -> list[str]:
    """Return the names of all functions, sorted."""
    return formulas.names()


def function_onnx_graph(
    name: str,
    target_opset: int | None = None,
    dtype: Any = np.float32,
    weight_name: str | None = None,
    **kwargs: Any,
) -> onnx.ModelProto:
    """Return a function as a model; see `onnxgrad.compat.graphs.formulas.graph`.

    Raises
    ------
    ValueError
        An unknown name or option.
    """
    return formulas.graph(name, target_opset, dtype, weight_name, **kwargs)
