"""Optimizer updates with given gradients, as steps of a TrainingSession.

The loss of its model is sum_i <w_i, g_i> with the gradients g_i as inputs, so that its gradient
with respect to w_i is g_i, and a step is the optimizer's update.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

import onnxgrad as og
from onnxgrad.compat.graphs import formulas

__all__ = ["described", "gradient_name", "optimizer_from", "step_model", "step_sum"]

_TOTAL = "update/scores"


def gradient_name(weight: str) -> str:
    """Return the name of the input for the gradient of a weight."""
    return f"{weight}.gradient"


def step_model(weights: Mapping[str, np.ndarray[Any, Any]]) -> onnx.ModelProto:
    """Return the model: inputs are gradients, the output [1, 1] is sum_i <w_i, g_i>."""
    gradients = {name: gradient_name(name) for name in weights}
    return formulas.inner_product(weights, gradients, _TOTAL)


def step_sum() -> og.losses.Loss:
    """Return the loss that is the model's output."""
    return og.losses.Output(_TOTAL, target="", reduction="sum")


def described(optimizer: og.optimizers.Optimizer) -> str:
    """Serialize an optimizer to a string."""
    try:
        return json.dumps({"type": type(optimizer).__name__, "options": vars(optimizer)})
    except TypeError as error:
        raise TypeError(
            f"{type(optimizer).__name__} cannot be stored in an artifact: {error}"
        ) from error


def optimizer_from(text: str) -> og.optimizers.Optimizer:
    """Return the optimizer serialized by `described`."""
    found = json.loads(text)
    made: og.optimizers.Optimizer = getattr(og.optimizers, found["type"])(**found["options"])
    return made
