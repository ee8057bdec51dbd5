"""User-defined optimizers: models and traced functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from onnxgrad import _core
from onnxgrad.base.checks import real_number, unknown_name
from onnxgrad.base.description import Description
from onnxgrad.base.models import to_core_model
from onnxgrad.errors import OptionError
from onnxgrad.optimizers.base import Optimizer

if TYPE_CHECKING:
    import inspect

    from onnxgrad.base.models import ModelLike

__all__ = ["User", "traced"]

_NUM_INPUTS = 4  # weight, gradient, learning rate, step; slots follow


class User(Optimizer):
    """A user-defined update, given as a model that is inlined once for each weight.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or onnxscript function
        Its inputs are weight, gradient, learning rate [], step [] (the number of this update, from
        1) and any slots, in this order; its outputs are the new weight and the new slots, in the
        same order. Slots have the weight's shape and are initialized with the input's default, a
        scalar, or with 0. If the weight is declared as a vector [n], weights are flattened; else
        they keep their shape. Weight, gradient and slots have the dtype of the weights.
    lr : float, default=0.01
        Learning rate.
    weight_decay : float, default=0
        g += weight_decay * w.

    See Also
    --------
    traced : an optimizer from a Python function.

    Notes
    -----
    In a state, slots are called ``<name of the input>/<weight>``.
    """

    model: bytes
    weight_decay: float

    def __init__(self, model: ModelLike | Any, lr: float = 0.01, weight_decay: float = 0.0) -> None:
        core = to_core_model(model)
        Description.__init__(
            self,
            model=core.to_bytes(),
            lr=real_number("lr", lr),
            weight_decay=real_number("weight_decay", weight_decay),
        )

    def _native(self) -> Any:
        native = _core.UserOptimizer()
        native.learning_rate = self.lr
        native.weight_decay = self.weight_decay
        native.set_model(to_core_model(self.model))
        return native

    def __repr__(self) -> str:
        return (
            f"User(<model of {len(self.model)} bytes>, lr={self.lr!r}, "
            f"weight_decay={self.weight_decay!r})"
        )


def traced(
    function: Any,
    *,
    lr: float = 0.01,
    weight_decay: float = 0.0,
    dtype: Literal["float32", "float64"] = "float32",
) -> User:
    """Return the optimizer that a Python function computes, traced with ndonnx.

    Parameters
    ----------
    function : callable
        Called once, as ``function(weight, gradient, lr, step, *slots)``, with ndonnx arrays (the
        Python array API): weight, gradient and slots are vectors [n], `lr` and `step` are scalars
        [] of `dtype`. Each parameter after the fourth is a slot of its name, initialized with its
        default or 0. Returns the new weight, or with slots a tuple of it and the new slots.
    lr : float, default=0.01
    weight_decay : float, default=0
        As for `User`.
    dtype : {"float32", "float64"}, default="float32"
        Dtype of the weights.

    Raises
    ------
    OptionError
        ndonnx is not installed, or the function has other parameters or results.

    Examples
    --------
    Momentum as in PyTorch::

        def momentum(weight, gradient, lr, step, velocity):
            velocity = 0.9 * velocity + gradient
            return weight - lr * velocity, velocity

        trainer = og.Trainer("model.onnx", optimizer=og.optimizers.traced(momentum, lr=1e-3))
    """
    try:
        import ndonnx as ndx
    except ImportError as error:
        raise OptionError(
            what="traced: the package ndonnx is not installed",
            value="function",
            hint="Install ndonnx, or give a model to optimizers.User.",
        ) from error
    kind = getattr(ndx, dtype, None) if dtype in ("float32", "float64") else None
    if kind is None:
        raise unknown_name("dtype", dtype, ["float32", "float64"])
    from inspect import signature

    parameters = [*signature(function).parameters.values()]
    if len(parameters) < _NUM_INPUTS:
        raise OptionError(
            what=f"traced: the function has {len(parameters)} parameters, expected at least 4",
            value="function",
            hint="Declare weight, gradient, lr, step, and a parameter for each slot.",
        )
    names = ["weight", "gradient", "learning_rate", "step"]
    slots = parameters[_NUM_INPUTS:]
    names += [slot.name for slot in slots]
    inputs = {
        name: ndx.argument(shape=() if name in names[2:4] else ("n",), dtype=kind) for name in names
    }
    results = function(*inputs.values())
    if not isinstance(results, tuple):
        results = (results,)
    if len(results) != len(slots) + 1:
        raise OptionError(
            what=f"traced: the function returns {len(results)} results for {len(slots)} slots",
            value="function",
            hint="Return the new weight and the new value of each slot.",
        )
    outputs = dict(zip([f"new_{name}" for name in ["weight", *names[4:]]], results, strict=True))
    model = ndx.build(inputs, outputs)
    _set_initial_values(model, slots)
    return User(model, lr=lr, weight_decay=weight_decay)


def _set_initial_values(model: Any, slots: list[inspect.Parameter]) -> None:
    """Initialize the slots of a traced model with the defaults of the function's parameters."""
    from onnx import helper

    for slot in slots:
        if slot.default is slot.empty or not slot.default:
            continue
        (value,) = (value for value in model.graph.input if value.name == slot.name)
        element = value.type.tensor_type.elem_type
        initial = [real_number(slot.name, slot.default, -math.inf)]
        model.graph.initializer.append(helper.make_tensor(slot.name, element, [1], initial))
