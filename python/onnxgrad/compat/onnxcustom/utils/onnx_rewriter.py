"""Replacing an operator by a small model, and a loss by the losses of its elements."""

from __future__ import annotations

from typing import Any

import onnx

from onnxgrad.compat.graphs import summed_losses, tools
from onnxgrad.compat.models import takes_models

__all__ = ["onnx_rewrite_operator", "unreduced_onnx_loss"]


@takes_models("onx", "sub_onx")
def onnx_rewrite_operator(
    onx: onnx.ModelProto,
    op_type: str,
    sub_onx: onnx.ModelProto,
    recursive: bool = True,
    debug_info: Any = None,
) -> onnx.ModelProto:
    """Return the model with every node of a type replaced by the nodes of another model.

    See `onnxgrad.compat.graphs.tools.replace_operator`; `debug_info` has no effect.
    """
    del debug_info
    return tools.replace_operator(onx, op_type, sub_onx, recursive)


@takes_models("onx")
def unreduced_onnx_loss(onx: onnx.ModelProto, output_name: str = "score") -> onnx.ModelProto:
    """Return a loss model that returns the loss of each element instead of their sum or mean.

    See `onnxgrad.compat.graphs.summed_losses.unreduced_loss`.
    """
    return summed_losses.unreduced_loss(onx, output_name)
