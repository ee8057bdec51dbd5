"""Optimizer models: how `generate_artifacts` writes and `Optimizer` reads them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import onnx.helper

import onnxgrad as og
from onnxgrad.compat.graphs.adamw_update import adamw_update
from onnxgrad.compat.onnxruntime.training.api.gradient_step import optimizer_from

__all__ = ["KEY", "read_optimizer"]

# Key of the metadata of optimizer models of onnxgrad.
KEY = "onnxgrad.training"
_CLIP = "InplaceClipGradNorm"
_RATE = 1e-3  # initial rate of onnxruntime-training


def read_optimizer(
    model: onnx.ModelProto, path: Any, dtype: np.dtype[Any]
) -> tuple[og.optimizers.Optimizer, Any]:
    """Return the optimizer of a model, and the largest norm of the gradients or None.

    `dtype` is that of the weights.

    Raises
    ------
    ValueError
        It is no optimizer model, or has other nodes than onnxruntime-training's.
    """
    own = {entry.key: entry.value for entry in model.metadata_props}
    if KEY in own:
        return optimizer_from(own[KEY]), None
    clip = None
    optimizer: og.optimizers.Optimizer | None = None
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == _CLIP:
            clip = float(attributes.get("max_norm", 1.0))
        elif node.op_type == "SGDOptimizerV2":
            optimizer = og.optimizers.SGD(lr=_RATE)
        elif node.op_type == "AdamWOptimizer":
            optimizer = og.optimizers.User(adamw_update(attributes, dtype), lr=_RATE)
        else:
            raise ValueError(
                f"{os.fspath(path)!r}: the node {node.op_type} is not one of an optimizer of "
                f"onnxblock: AdamWOptimizer, SGDOptimizerV2, {_CLIP}."
            )
    if optimizer is None:
        raise ValueError(
            f"{os.fspath(path)!r} is not an optimizer model of generate_artifacts: generate the "
            "artifacts again from the model."
        )
    return optimizer, clip
