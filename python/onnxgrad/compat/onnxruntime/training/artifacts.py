"""Generation of the files for `onnxgrad.compat.onnxruntime.training.api`, with the usual names.

`training_model.onnx` is the model with its loss and the gradient, in standard operators,
`eval_model.onnx` the part without the gradient. `optimizer_model.onnx` is the update as a graph,
with the optimizer in its metadata, or what a block of `onnxblock.optim` builds. `checkpoint` has
the parameters.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnxgrad as og
from onnxgrad.compat.graphs.training_graphs import training_graphs
from onnxgrad.compat.models import load_proto
from onnxgrad.compat.onnxruntime.training import onnxblock
from onnxgrad.compat.onnxruntime.training.api.checkpoint_state import CheckpointState
from onnxgrad.compat.onnxruntime.training.api.gradient_step import described, step_model, step_sum
from onnxgrad.compat.onnxruntime.training.api.optimizer_files import KEY
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
        Parameters, or inputs, to compute the gradient of; None means all trainable parameters.
    frozen_params : list of str, default=None
        Parameters that are in the checkpoint but not trained.
    loss : LossType, onnxblock.Block or onnxgrad.losses.Loss (or their class), default=None
        None means that the first output of the model is the loss. A classifier's loss is applied to
        the scores before its Softmax or Sigmoid, not to probabilities or labels. A block is called
        with the names of all outputs, or of `loss_input_names`.
    optimizer : OptimType, onnxblock.Block or onnxgrad.optimizers.Optimizer, default=None
    artifact_directory : path, default=None
        None means the current directory.
    prefix : str, default=""
        Prefix of the file names.
    additional_output_names : list of str, default=None
        Outputs of the model that a training step returns after the loss.
    nominal_checkpoint : bool, default=False
        Whether to write ``nominal_checkpoint`` too, with names and types but without values.
    loss_input_names : list of str, default=None
        The outputs to apply the loss to; a single name, but for blocks.
    ort_format, custom_op_library
        Not supported.

    Raises
    ------
    RuntimeError
        A parameter to train is also frozen, or an unknown type of loss.
    TypeError
        An unknown type of optimizer.
    """
    _refuse(ort_format, custom_op_library)
    both = {*(requires_grad or [])} & {*(frozen_params or [])}
    if both:
        raise RuntimeError(f"Parameters that are frozen and require a gradient: {sorted(both)}.")
    if additional_output_names is not None and not isinstance(additional_output_names, list):
        raise RuntimeError("additional_output_names must be a list of names.")
    model = load_proto(model)
    update = _optimizer_of(optimizer)
    with_loss, outputs = _with_loss(model, loss, loss_input_names)
    _set_outputs(with_loss, [*outputs, *(additional_output_names or [])])
    frozen = list(frozen_params or [])
    trained = _trained(with_loss, requires_grad, frozen)
    initializers = _values(with_loss, frozen)
    inputs = _inputs(with_loss)
    parameters = [name for name in trained if name not in inputs]
    initializers |= _values(with_loss, parameters)
    training, evaluation = training_graphs(with_loss, trained, frozen)

    folder = Path(artifact_directory or ".")
    save_model(training, folder / f"{prefix}training_model.onnx")
    save_model(evaluation, folder / f"{prefix}eval_model.onnx")
    names = [tensor.name for tensor in with_loss.graph.initializer if tensor.name in initializers]
    values = {name: initializers[name] for name in names}
    for nominal in (False, True) if nominal_checkpoint else (False,):
        state = CheckpointState(values, parameters, nominal)
        name = "nominal_checkpoint" if nominal else "checkpoint"
        CheckpointState.save_checkpoint(state, folder / f"{prefix}{name}")
    if update is not None:
        tensors = {tensor.name: tensor for tensor in with_loss.graph.initializer}
        chosen = [tensors[name] for name in names if name in parameters]
        opset = max((u.version for u in with_loss.opset_import if u.domain == ""), default=26)
        graph = _optimizer_model(update, chosen, min(opset, 26))
        save_model(graph, folder / f"{prefix}optimizer_model.onnx")


def _refuse(ort_format: bool, custom_op_library: Any) -> None:
    if ort_format:
        raise NotImplementedError(
            "ort_format=True is not supported: onnxruntime's tools convert the .onnx files."
        )
    if custom_op_library is not None:
        raise NotImplementedError(
            f"custom_op_library={custom_op_library!r} is not supported: give operators to "
            "onnxgrad.register_operator."
        )


def _optimizer_of(optimizer: Any) -> Any:
    if isinstance(optimizer, OptimType):
        return _OPTIMIZERS[optimizer]
    if isinstance(optimizer, type) and issubclass(
        optimizer, (onnxblock.Block, og.optimizers.Optimizer)
    ):
        optimizer = optimizer()
    known = (onnxblock.ForwardBlock, og.optimizers.Optimizer)
    if optimizer is None or isinstance(optimizer, known):
        return optimizer
    raise TypeError(
        f"Unknown optimizer {type(optimizer)}: expected an OptimType, a block of onnxblock.optim "
        "or an optimizer of onnxgrad.optimizers."
    )


def _optimizer_model(
    update: Any, trained: Sequence[onnx.TensorProto], opset: int
) -> onnx.ModelProto:
    """Return the model in this operator set, or in a newer one that can express it."""
    if isinstance(update, onnxblock.ForwardBlock):
        with onnxblock.empty_base(opset):
            update((trained, []))
        return update.to_model_proto()
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in trained}
    model = step_model(values)
    try:
        graph = og.training_step(model, step_sum(), update, trainable=[*values], target_opset=opset)
    except og.ModelError:
        graph = og.training_step(model, step_sum(), update, trainable=[*values])
    onnx.helper.set_model_props(graph, {KEY: described(update)})
    return graph


def _with_loss(
    model: onnx.ModelProto, loss: Any, loss_input_names: Sequence[str] | None
) -> tuple[onnx.ModelProto, list[str]]:
    """Return the model with its loss, and the names of the outputs that the loss gives."""
    if isinstance(loss, type) and issubclass(loss, (onnxblock.Block, og.losses.Loss)):
        loss = loss()
    if loss is None:
        return og.set_weights(model, {}), [model.graph.output[0].name]
    if isinstance(loss, onnxblock.Block):
        return _with_block(model, loss, loss_input_names)
    target = "target"
    kind = loss if isinstance(loss, LossType) else None
    if kind is not None:
        loss, target = _LOSSES[kind]
    if not isinstance(loss, og.losses.Loss):
        raise RuntimeError(
            f"Unknown loss {type(loss)}: expected a LossType, an onnxblock.Block or a loss of "
            "onnxgrad.losses."
        )
    if loss_input_names:
        if len(loss_input_names) > 1:
            raise RuntimeError(f"A loss is applied to one output, not {list(loss_input_names)}.")
        loss = loss.replace(output=loss_input_names[0])
    try:
        result = og.add_loss(model, loss, target=target)
    except og.ModelError:
        if kind is None or not model.graph.node:
            raise
        block = getattr(onnxblock.loss, kind.name)()  # of the first output, whatever computes it
        return _with_block(model, block, loss_input_names or [model.graph.output[0].name])
    return result, [result.graph.output[0].name]


def _with_block(
    model: onnx.ModelProto, block: onnxblock.Block, loss_input_names: Sequence[str] | None
) -> tuple[onnx.ModelProto, list[str]]:
    outputs = [value.name for value in model.graph.output]
    with onnxblock.base(model) as accessor:
        found = block(*(loss_input_names or outputs))
        block.base = accessor.model
        result = block.infer_shapes_on_base()
    names = [found] if isinstance(found, str) else list(found)
    known = {value.name for value in result.graph.output}
    wanted = [name for name in names if name not in known]
    inner = {value.name: value for value in result.graph.value_info}
    missing = [name for name in wanted if name not in inner]
    if missing:
        raise RuntimeError(f"The loss {missing} has no known type.")
    result.graph.output.extend(inner[name] for name in wanted)
    return result, names


def _trained(
    model: onnx.ModelProto, requires_grad: Sequence[str] | None, frozen: Sequence[str]
) -> list[str]:
    """Return the names to compute gradients of; by default those of all trainable parameters."""
    inputs = _inputs(model)
    given = [name for name in requires_grad or [] if name in inputs]
    patterns = [name for name in requires_grad or [] if name not in inputs]
    if given and not patterns:
        return given
    if not model.graph.initializer:
        return []
    try:
        passes = og.ForwardBackward(
            model,
            weights=patterns or None,
            frozen=list(frozen) or None,
            untie=False,
            input_gradients=False,
        )
    except og.ModelError:
        if patterns:
            raise
        return given  # without parameters there is only the loss
    return [*given, *passes.weight_names]


def _inputs(model: onnx.ModelProto) -> set[str]:
    return {v.name for v in model.graph.input} - {t.name for t in model.graph.initializer}


def _set_outputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Make these the only outputs, in this order."""
    declared = {}
    for value in [*model.graph.value_info, *model.graph.output]:
        declared[value.name] = onnx.ValueInfoProto()
        declared[value.name].CopyFrom(value)
    outputs = [value.name for value in model.graph.output]
    for name in names:
        if name not in declared:
            known = outputs
            raise RuntimeError(f"{name!r} is not an output of the model; these are: {known}.")
    del model.graph.output[:]
    model.graph.output.extend(declared[name] for name in dict.fromkeys(names))
    inner = [declared[name] for name in declared if name not in names]
    del model.graph.value_info[:]
    model.graph.value_info.extend(inner)


def _values(model: onnx.ModelProto, names: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    found = {init.name: init for init in model.graph.initializer}
    missing = [name for name in names if name not in found]
    if missing:
        raise RuntimeError(f"{missing} are not initializers; these are: {sorted(found)}.")
    return {name: onnx.numpy_helper.to_array(found[name]).copy() for name in names}
