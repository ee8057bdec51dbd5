"""Generation of the files for `onnxgrad.compat.onnxruntime.training.api`, with the usual names.

`training_model.onnx` and `eval_model.onnx` are the model with its loss, in standard operators; the
gradient is built when they are loaded. `optimizer_model.onnx` is the update as a graph, with the
optimizer in its metadata. `checkpoint` has the parameters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnxgrad as og
from onnxgrad.compat.models import load_proto
from onnxgrad.compat.onnxruntime.training.api.checkpoint_state import CheckpointState
from onnxgrad.compat.onnxruntime.training.api.gradient_step import described, step_model, step_sum
from onnxgrad.compat.onnxruntime.training.api.module import KEY
from onnxgrad.files import save_model

__all__ = ["LossType", "OptimType", "generate_artifacts"]


class LossType(Enum):
    """Losses by name; `generate_artifacts` takes losses of `onnxgrad.losses` too."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(Enum):
    """Optimizers by name; `generate_artifacts` takes those of `onnxgrad.optimizers` too."""

    AdamW = 1
    SGD = 2


# The original's cross-entropy is ONNX's operator, whose classes are on axis 1.
_LOSSES: dict[LossType, tuple[og.losses.Loss, str]] = {
    LossType.MSELoss: (og.losses.SquaredError(), "target"),
    LossType.CrossEntropyLoss: (og.losses.SoftmaxCrossEntropy(axis=1), "labels"),
    LossType.BCEWithLogitsLoss: (og.losses.BinaryCrossEntropy(soft_targets=True), "target"),
    LossType.L1Loss: (og.losses.AbsoluteError(), "target"),
}
# With onnxruntime-training's defaults, which are not those of onnxgrad.
_OPTIMIZERS = {
    OptimType.AdamW: og.optimizers.AdamW(lr=1e-3, epsilon=1e-6, weight_decay=0.0),
    OptimType.SGD: og.optimizers.SGD(lr=1e-3),
}


def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str],
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: Any = None,
    optimizer: Any = None,
    artifact_directory: str | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: Any = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
) -> None:
    """Write training model, evaluation model, checkpoint and, with `optimizer`, optimizer model.

    Parameters
    ----------
    model : onnx.ModelProto or path
    requires_grad : list of str, default=None
        Parameters to train; None means all trainable ones.
    frozen_params : list of str, default=None
        Parameters that are in the checkpoint but not trained.
    loss : LossType or onnxgrad.losses.Loss, default=None
        None means that the first output of the model is the loss. A classifier's loss is applied to
        the scores before its Softmax or Sigmoid, not to probabilities or labels.
    optimizer : OptimType or onnxgrad.optimizers.Optimizer, default=None
    artifact_directory : path, default=None
        None means the current directory.
    prefix : str, default=""
        Prefix of the file names.
    additional_output_names : list of str, default=None
        Outputs of the model that a training step returns after the loss.
    nominal_checkpoint : bool, default=False
        Whether to write ``nominal_checkpoint`` too; here it also has the parameters.
    loss_input_names : list of str, default=None
        The output to apply the loss to; a single name.
    ort_format, custom_op_library
        Not supported.

    Raises
    ------
    RuntimeError
        A parameter to train is also frozen, or an unknown type of loss.
    TypeError
        An unknown type of optimizer.
    """
    for name, value in (("ort_format", ort_format), ("custom_op_library", custom_op_library)):
        if value:
            raise NotImplementedError(f"{name}={value!r} is not supported.")
    both = {*(requires_grad or [])} & {*(frozen_params or [])}
    if both:
        raise RuntimeError(f"Parameters that are frozen and require a gradient: {sorted(both)}.")
    if additional_output_names is not None and not isinstance(additional_output_names, list):
        raise RuntimeError("additional_output_names must be a list of names.")
    model = load_proto(model)
    update = _optimizer_of(optimizer)
    with_loss = _with_loss(model, loss, loss_input_names)
    frozen = list(frozen_params or [])
    passes = og.ForwardBackward(
        with_loss,
        weights=list(requires_grad) if requires_grad else None,
        frozen=frozen or None,
        untie=False,
    )
    trained = passes.weight_names
    outputs = [with_loss.graph.output[0].name, *(additional_output_names or [])]
    _check_outputs(with_loss, outputs)
    description = {"outputs": outputs, "trained": trained, "frozen": frozen}
    onnx.helper.set_model_props(with_loss, {KEY: json.dumps(description)})

    folder = Path(artifact_directory or ".")
    for name in ("training_model", "eval_model"):
        save_model(with_loss, folder / f"{prefix}{name}.onnx")
    state = CheckpointState(_values(with_loss, [*trained, *frozen]), trained)
    CheckpointState.save_checkpoint(state, folder / f"{prefix}checkpoint")
    if nominal_checkpoint:
        CheckpointState.save_checkpoint(state, folder / f"{prefix}nominal_checkpoint")
    if update is not None:
        values = _values(with_loss, trained)
        graph = og.training_step(step_model(values), step_sum(), update, trainable=trained)
        onnx.helper.set_model_props(graph, {KEY: described(update)})
        save_model(graph, folder / f"{prefix}optimizer_model.onnx")


def _optimizer_of(optimizer: Any) -> Any:
    if optimizer is None or isinstance(optimizer, og.optimizers.Optimizer):
        return optimizer
    if isinstance(optimizer, OptimType):
        return _OPTIMIZERS[optimizer]
    raise TypeError(
        f"Unknown optimizer {type(optimizer)}: expected an OptimType or an optimizer of "
        "onnxgrad.optimizers."
    )


def _with_loss(
    model: onnx.ModelProto, loss: Any, loss_input_names: Sequence[str] | None
) -> onnx.ModelProto:
    if loss is None:
        return og.set_weights(model, {})  # a copy
    target = "target"
    if isinstance(loss, LossType):
        loss, target = _LOSSES[loss]
    if not isinstance(loss, og.losses.Loss):
        raise RuntimeError(
            f"Unknown loss {type(loss)}: expected a LossType or a loss of onnxgrad.losses."
        )
    if loss_input_names:
        if len(loss_input_names) > 1:
            raise RuntimeError(f"A loss is applied to one output, not {list(loss_input_names)}.")
        loss = loss.replace(output=loss_input_names[0])
    return og.add_loss(model, loss, target=target)


def _check_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    known = [value.name for value in model.graph.output]
    for name in names:
        if name not in known:
            raise RuntimeError(f"{name!r} is not an output of the model; these are: {known}.")


def _values(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    found = {init.name: init for init in model.graph.initializer}
    missing = [name for name in names if name not in found]
    if missing:
        raise RuntimeError(f"{missing} are not initializers; these are: {sorted(found)}.")
    return {name: onnx.numpy_helper.to_array(found[name]).copy() for name in names}
