"""The update of the parameters with the gradients of a module."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import onnxgrad as og
from onnxgrad.compat.models import load_proto
from onnxgrad.compat.onnxruntime.training.api.flat_checkpoint import FlatCheckpoint
from onnxgrad.compat.onnxruntime.training.api.gradient_step import step_model, step_sum
from onnxgrad.compat.onnxruntime.training.api.module import Module
from onnxgrad.compat.onnxruntime.training.api.optimizer_files import read_optimizer

__all__ = ["Optimizer"]

_Array = np.ndarray[Any, Any]
_SHARED = ""  # in place of a parameter's name: state that is not of one parameter
_COUNT = "step_count"
# Names of Adam's moments in checkpoints of onnxruntime-training.
_MOMENTS = {"adam_m": "momentum0", "adam_v": "momentum1"}
_SLOTS = {moment: slot for slot, moment in _MOMENTS.items()}


class Optimizer:
    """Updates the parameters of a module.

    Parameters
    ----------
    optimizer_uri : path
        Path of the optimizer model, written by `generate_artifacts`, made by a block of
        `onnxblock.optim`, or written by onnxruntime 1.19.
    module : Module
    """

    def __init__(self, optimizer_uri: str | os.PathLike[str], module: Module) -> None:
        self._module = module
        self._state = module._state
        self._trained = module._trained
        if not self._trained:
            raise ValueError("No parameter is trained, so there is nothing to update.")
        values = {name: self._state._value(name) for name in self._trained}
        dtype = values[self._trained[0]].dtype
        optimizer, clip = read_optimizer(load_proto(optimizer_uri), optimizer_uri, dtype)
        self._session = og.TrainingSession(
            step_model(values), step_sum(), optimizer, trainable=self._trained, clip_norm=clip
        )
        self._steps = 0
        self._seen = self._state._changes
        if self._state._optimizer is not None:
            self._restore(self._state._optimizer)
        self._state._optimizer_source = self

    def step(self) -> None:
        """Update the parameters that are trained.

        Raises
        ------
        RuntimeError
            The module has done no training step.
        """
        state = self._state
        if state._missing:
            state._require_values()
        gradients = state._gradients
        if gradients is None:
            raise RuntimeError("step() needs gradients: call the module in training mode first.")
        if self._seen != state._changes:  # the user has set parameters
            own = {name: state._value(name) for name in self._trained}
            self._session.load_state(self._session.state() | own)
            self._module._weights_changed()
            self._seen = state._changes
        gradients.update(self._session, self._module._passes)
        self._steps += 1
        state._is_behind = True

    def _weights(self) -> dict[str, _Array]:
        """Return copies of the current weights."""
        return {name: value.copy() for name, value in self._session.weights.items()}

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the rate of the next steps."""
        self._session.lr = learning_rate

    def get_learning_rate(self) -> float:
        """Return the current rate."""
        return self._session.lr

    def _stored(self) -> FlatCheckpoint:
        """Return the optimizer state for a checkpoint."""
        moments: dict[str, dict[str, _Array]] = {name: {} for name in self._trained}
        for name, value in self._session.state().items():
            slot, _, parameter = name.partition("/")
            if name in self._trained:
                continue
            if parameter in moments:
                moments[parameter][_MOMENTS.get(slot, slot)] = value
            elif name != _COUNT:
                moments.setdefault(_SHARED, {})[name] = value
        return FlatCheckpoint(
            moments=moments, step=self._steps, learning_rate=float(self._session.lr)
        )

    def _restore(self, stored: FlatCheckpoint) -> None:
        """Continue from the state in a checkpoint."""
        new = {name: self._state._value(name) for name in self._trained}
        state = self._session.state()
        if _COUNT in state:
            new[_COUNT] = np.array(stored.step, state[_COUNT].dtype)
        for parameter, moments in (stored.moments or {}).items():
            for moment, value in moments.items():
                slots = (moment, _SLOTS.get(moment, moment))
                names = [f"{slot}/{parameter}" if parameter else moment for slot in slots]
                new |= {name: value for name in names if name in state}
        self._session.load_state(state | new)
        self._session.lr = stored.learning_rate
        self._steps = stored.step
