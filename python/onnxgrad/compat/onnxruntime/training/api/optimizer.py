"""The update of the parameters with the gradients of a module."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import onnxgrad as og
from onnxgrad.compat.models import load_proto
from onnxgrad.compat.onnxruntime.training.api.gradient_step import (
    gradient_name,
    optimizer_from,
    step_model,
    step_sum,
)
from onnxgrad.compat.onnxruntime.training.api.module import KEY, Module, metadata

__all__ = ["Optimizer"]

_RATE, _STEPS = "learning_rate", "steps"


class Optimizer:
    """Updates the parameters of a module.

    Parameters
    ----------
    optimizer_uri : path
        Path of the optimizer model.
    module : Module
    """

    def __init__(self, optimizer_uri: str | os.PathLike[str], module: Module) -> None:
        self._module = module
        self._state = module._state
        self._trained = module._trained
        optimizer = optimizer_from(metadata(load_proto(optimizer_uri), optimizer_uri)[KEY])
        values = {name: self._state._values[name] for name in self._trained}
        self._session = og.TrainingSession(
            step_model(values), step_sum(), optimizer, trainable=self._trained
        )
        self._steps = 0
        self._seen = self._state._changes
        self._restore(self._state._optimizer)
        self._state._optimizer_source = self

    def step(self) -> None:
        """Update the parameters that are trained.

        Raises
        ------
        RuntimeError
            The module has done no training step.
        """
        gradients = self._state._gradients
        if not gradients:
            raise RuntimeError("step() needs gradients: call the module in training mode first.")
        if self._seen != self._state._changes:  # the user has set parameters
            own = {name: self._state._values[name] for name in self._trained}
            self._session.load_state(self._session.state() | own)
        feeds = {gradient_name(name): gradients[name] for name in self._trained}
        self._session.step(feeds)
        self._steps += 1
        new = self._session.state()
        for name in self._trained:
            self._state._values[name] = new[name]
        self._module._weights_changed()
        self._seen = self._state._changes

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the rate of the next steps."""
        self._session.lr = learning_rate

    def get_learning_rate(self) -> float:
        """Return the current rate."""
        return self._session.lr

    def _arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the optimizer state for a checkpoint, without the weights."""
        state = self._session.state()
        slots = {f"slot/{name}": v for name, v in state.items() if name not in self._trained}
        return slots | {_RATE: np.array(self._session.lr), _STEPS: np.array(self._steps)}

    def _restore(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        if not arrays:
            return
        slots = {n.removeprefix("slot/"): v for n, v in arrays.items() if n.startswith("slot/")}
        own = {name: self._state._values[name] for name in self._trained}
        self._session.load_state(own | slots)
        self._session.lr = float(arrays[_RATE])
        self._steps = int(arrays[_STEPS])
