"""The state that estimators keep between calls: a trainer that can be pickled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx

import onnxgrad

__all__ = ["Training"]

_PREDICT_ROWS = 8192  # bounds the memory for intermediate values

Result = TypeVar("Result")


def _as_array(predicted: Any) -> np.ndarray[Any, Any]:
    """Return the values of a ZipMap's dictionaries as an array [N, C]."""
    if isinstance(predicted, np.ndarray):
        return predicted
    return np.array([[*row.values()] for row in predicted], np.float32)


_CHANGES = ("new_head", "lora", "adapter", "base", "quantize")  # options that change the model


class Training:
    """A Trainer that is created when it is first used, also after unpickling.

    Parameters
    ----------
    model : bytes
        The model before training.
    options : dict
        Arguments of `onnxgrad.Trainer`.
    """

    def __init__(self, model: bytes, options: dict[str, Any]) -> None:
        self._model = model
        self._options = options
        self._state: dict[str, Any] | None = None
        self._trainer: onnxgrad.Trainer | None = None
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            state = self._state
            if self._trainer is not None:
                state = self._trainer.__getstate__()
                if not any(self._options.get(name) is not None for name in _CHANGES):
                    state["model"] = None  # stored below
        return {"model": self._model, "options": self._options, "state": state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["model"], state["options"])  # type: ignore[misc]
        self._state = state["state"]

    def with_options(self, **options: Any) -> Training:
        """Return a new training of the same model with other options."""
        return Training(self._model, {**self._options, **options})

    def use(self, function: Callable[[onnxgrad.Trainer], Result]) -> Result:
        """Call `function` with the trainer, one thread at a time, and return the result."""
        with self._lock:
            if self._trainer is None:
                if self._state is None:
                    self._trainer = onnxgrad.Trainer(self._model, **self._options)
                else:
                    self._trainer = onnxgrad.Trainer.__new__(onnxgrad.Trainer)
                    changed = self._state["model"]
                    model = self._model if changed is None else changed
                    self._trainer.__setstate__({**self._state, "model": model})
                    self._state = None
            return function(self._trainer)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of later steps."""
        self._options = {**self._options, "lr": lr}

        def change(trainer: onnxgrad.Trainer) -> None:
            trainer.session.lr = lr

        self.use(change)

    def predict(self, X: np.ndarray[Any, Any], output: str) -> np.ndarray[Any, Any]:
        """Return an output [N, ...] of the model for the rows X [N, ...]."""

        def run(trainer: onnxgrad.Trainer) -> np.ndarray[Any, Any]:
            parts = [
                _as_array(trainer.predict(X[start : start + _PREDICT_ROWS], output))
                for start in range(0, len(X), _PREDICT_ROWS)
            ]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)

        return self.use(run)

    def unchanged(self, name: str) -> str:
        """Return the output that is the value `name` itself, else the name."""
        graph = onnx.load_model_from_string(self._model).graph
        outputs = {value.name for value in graph.output}
        same = {node.input[0]: node.output[0] for node in graph.node if node.op_type == "Identity"}
        last = name
        while last not in outputs and last in same:
            last = same[last]
        return last if last in outputs else name

    def inputs(self) -> Sequence[onnxgrad.NodeArg]:
        """Return the inputs of the model."""
        return self.use(lambda trainer: trainer.session.get_inputs())

    def outputs(self) -> Sequence[onnxgrad.NodeArg]:
        """Return the outputs of the model."""
        return self.use(lambda trainer: trainer.session.get_outputs())

    def trained_model(self) -> onnx.ModelProto:
        """Return the model with the current weights."""
        return self.use(lambda trainer: trainer.trained_model())
