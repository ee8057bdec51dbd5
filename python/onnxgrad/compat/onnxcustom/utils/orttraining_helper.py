"""Adding a loss and penalties to a model; see `onnxgrad.compat.graphs.summed_losses`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx.numpy_helper
from onnx import TensorProto

from onnxgrad.compat.graphs import summed_losses
from onnxgrad.compat.models import takes_models

__all__ = ["add_loss_output", "get_train_initializer", "penalty_loss_onnx"]

_FLOATS = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)


@takes_models("onx")
def get_train_initializer(onx: onnx.ModelProto) -> dict[str, tuple[Any, onnx.TensorProto]]:
    """Return the initializers of floating type: ``{name: (array, tensor)}`` in their order."""
    return {
        init.name: (onnx.numpy_helper.to_array(init), init)
        for init in onx.graph.initializer
        if init.data_type in _FLOATS
    }


def penalty_loss_onnx(
    name: str,
    dtype: Any,
    l1: float | None = None,
    l2: float | None = None,
    existing_names: set[str] | None = None,
) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto]]:
    """Return initializers and nodes that compute l1 sum |w| + l2 sum w^2 for a weight.

    See `onnxgrad.compat.graphs.summed_losses.penalty_nodes`.
    """
    return summed_losses.penalty_nodes(name, dtype, l1, l2, existing_names)


@takes_models("onx")
def add_loss_output(
    onx: onnx.ModelProto,
    score_name: str = "squared_error",
    loss_name: str = "loss",
    label_name: str = "label",
    weight_name: str | None = None,
    penalty: Mapping[str, Any] | None = None,
    output_index: int | str | None = None,
    **kwargs: Any,
) -> onnx.ModelProto:
    """Return a model with a loss as first output and the expected values as additional input.

    See `onnxgrad.compat.graphs.summed_losses.add_summed_loss`.
    """
    return summed_losses.add_summed_loss(
        onx, score_name, loss_name, label_name, weight_name, penalty, output_index, **kwargs
    )
