"""Updates with gradients that are given: a TrainingSession on a model whose gradients they are.

The loss of that model is sum_i <w_i, g_i> with the gradients g_i as inputs, so that its gradient
with respect to w_i is g_i, and one step of it is the optimizer's update.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import onnxgrad as og

__all__ = ["described", "gradient_name", "optimizer_from", "step_model", "step_sum"]

_OPSET = 17


def gradient_name(weight: str) -> str:
    """Return the name of the input for the gradient of a weight."""
    return f"{weight}.gradient"


def step_model(weights: Mapping[str, np.ndarray[Any, Any]]) -> onnx.ModelProto:
    """Return the model: inputs are gradients, the output [1, 1] is sum_i <w_i, g_i>."""
    nodes, inputs, terms = [], [], []
    first = next(iter(weights.values()))
    dtype = helper.np_dtype_to_tensor_dtype(first.dtype)
    for place, (name, value) in enumerate(weights.items()):
        inputs.append(helper.make_tensor_value_info(gradient_name(name), dtype, value.shape))
        product, total = f"update/product_{place}", f"update/sum_{place}"
        nodes.append(helper.make_node("Mul", [name, gradient_name(name)], [product]))
        nodes.append(helper.make_node("Reshape", [product, "update/row"], [f"{product}_row"]))
        nodes.append(
            helper.make_node("ReduceSum", [f"{product}_row", "update/axis"], [total], keepdims=1)
        )
        terms.append(total)
    nodes.append(helper.make_node("Sum", terms, ["update/scores"]))
    graph = helper.make_graph(
        nodes, "update", inputs, [helper.make_tensor_value_info("update/scores", dtype, [1, 1])],
        [
            *(numpy_helper.from_array(value, name) for name, value in weights.items()),
            numpy_helper.from_array(np.array([1, -1], np.int64), "update/row"),
            numpy_helper.from_array(np.array([1], np.int64), "update/axis"),
        ],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def step_sum(dtype: Any = np.float32) -> og.losses.Loss:
    """Return the loss that is the model's output (the target is added, and fed as 0)."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    scores, target, loss = (
        helper.make_tensor_value_info(name, kind, ["N", 1]) for name in ("scores", "target", "loss")
    )
    graph = helper.make_graph(
        [helper.make_node("Add", ["scores", "target"], ["loss"])], "sum", [scores, target], [loss]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    return og.losses.User(model)


def described(optimizer: og.optimizers.Optimizer) -> str:
    """Return an optimizer as text."""
    return json.dumps({"type": type(optimizer).__name__, "options": vars(optimizer)})


def optimizer_from(text: str) -> og.optimizers.Optimizer:
    """Return the optimizer of a text that `described` has made."""
    found = json.loads(text)
    made: og.optimizers.Optimizer = getattr(og.optimizers, found["type"])(**found["options"])
    return made
