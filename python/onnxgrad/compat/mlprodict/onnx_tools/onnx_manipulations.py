"""Selecting a part of a model, and renaming what is in it; see `onnxgrad.graph_tools`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from onnxgrad import graph_tools

__all__ = ["onnx_rename_names", "select_model_inputs_outputs"]


def select_model_inputs_outputs(
    model: onnx.ModelProto,
    outputs: str | Sequence[str] | None = None,
    inputs: str | Sequence[str] | None = None,
) -> onnx.ModelProto:
    """Return the part of a model between some values, see `onnxgrad.graph_tools.select`."""
    return graph_tools.select(model, outputs, inputs)


def onnx_rename_names(
    model: onnx.ModelProto,
    strategy: str = "simple",
    recursive: bool = True,
    replace: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Rename values and initializers in place, see `onnxgrad.graph_tools.rename`."""
    return graph_tools.rename(model, strategy, recursive, replace)
