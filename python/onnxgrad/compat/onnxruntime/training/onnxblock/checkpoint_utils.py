"""Checkpoints of the parameters of a `TrainingBlock`."""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx

import onnxgrad as og
from onnxgrad.compat.onnxruntime.training.api.checkpoint_state import CheckpointState

__all__ = ["load_checkpoint_to_model", "save_checkpoint"]


def save_checkpoint(
    parameters: tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]],
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Write trained and frozen parameters to a checkpoint.

    Parameters
    ----------
    parameters : tuple of two lists of onnx.TensorProto
        What ``TrainingBlock.parameters()`` returns.
    path_to_checkpoint : path
    nominal_checkpoint : bool, default=False
        Whether to write names, types and shapes only.
    """
    if parameters is None:
        raise RuntimeError("parameters is None: give what TrainingBlock.parameters() returns.")
    trained, frozen = parameters
    values = {p.name: onnx.numpy_helper.to_array(p) for p in [*trained, *frozen]}
    state = CheckpointState(values, [p.name for p in trained], nominal=nominal_checkpoint)
    CheckpointState.save_checkpoint(state, path_to_checkpoint)


def load_checkpoint_to_model(
    path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto
) -> None:
    """Set the initializers of a model, in place, from the parameters of a checkpoint.

    Raises
    ------
    RuntimeError
        The checkpoint is nominal.
    """
    state = CheckpointState.load_checkpoint(path_to_checkpoint)
    known = {initializer.name for initializer in model.graph.initializer}
    values = {name: p.data for name, p in state.parameters if name in known}
    model.CopyFrom(og.set_weights(model, values))
