"""Training and evaluation steps of a model with its loss."""

from __future__ import annotations

import json
import os
from typing import Any, Self

import numpy as np
import onnx
import onnx.utils

import onnxgrad as og
from onnxgrad.compat.graphs.tools import names_above
from onnxgrad.compat.models import load_proto
from onnxgrad.compat.onnxruntime.training.api.checkpoint_state import CheckpointState
from onnxgrad.compat.onnxruntime.values import OrtValue, array_of
from onnxgrad.files import save_model

__all__ = ["Module", "metadata"]

# Key of an artifact's metadata that describes its origin.
KEY = "onnxgrad.training"


def metadata(model: onnx.ModelProto, path: Any) -> dict[str, str]:
    """Return the metadata of an artifact written by `generate_artifacts`."""
    found = {entry.key: entry.value for entry in model.metadata_props}
    if KEY not in found:
        raise ValueError(
            f"{os.fspath(path)!r} was not written by onnxgrad's generate_artifacts: generate the "
            "artifacts again from the model."
        )
    return found


class Module:
    """The model with its loss, and its gradient.

    Parameters
    ----------
    train_model_uri : path
        Path of the training model.
    state : CheckpointState
    eval_model_uri : path, default=None
        Path of the evaluation model, which evaluation mode requires.
    device : str, default="cpu"
        Only ``"cpu"``.
    session_options : default=None
        No effect.

    Attributes
    ----------
    training : bool
    """

    training: bool

    def __init__(
        self,
        train_model_uri: str | os.PathLike[str],
        state: CheckpointState,
        eval_model_uri: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        session_options: Any = None,
    ) -> None:
        del session_options
        self.training = True
        self._state = state
        self._model = load_proto(train_model_uri)
        description = json.loads(metadata(self._model, train_model_uri)[KEY])
        self._outputs: list[str] = description["outputs"]
        self._trained: list[str] = description["trained"]
        self._frozen: list[str] = description["frozen"]
        self._can_evaluate = eval_model_uri is not None
        if eval_model_uri is not None:
            metadata(load_proto(eval_model_uri), eval_model_uri)
        self._device = device
        self._reset = True
        self._build()

    def _build(self) -> None:
        frozen = {name: self._state._values[name] for name in self._frozen}
        model = og.set_weights(self._model, frozen)
        outputs = [value for value in model.graph.output if value.name in self._outputs]
        del model.graph.output[:]
        model.graph.output.extend(sorted(outputs, key=lambda v: self._outputs.index(v.name)))
        self._passes = og.ForwardBackward(
            model,
            weights=self._trained,
            untie=False,
            input_gradients=False,
            device=self._device,
        )
        self._types = {value.name: value.type.tensor_type for value in self._model.graph.input}
        self._weights_changed()

    def _weights_changed(self) -> None:
        self._passes.weights = {name: self._state._values[name] for name in self._trained}
        self._seen = self._state._changes

    def __call__(self, *user_inputs: Any) -> Any:
        """Do a training or an evaluation step and return the loss, or a tuple of outputs.

        In training mode, gradients accumulate until the next reset. Inputs are arrays or OrtValues;
        if all are OrtValues, so are the outputs.
        """
        if self._seen != self._state._changes:  # the user has set parameters
            self._build()
        names = self.input_names()
        if len(user_inputs) != len(names):
            raise ValueError(f"{len(user_inputs)} inputs were given for {names}.")
        feeds = {
            name: self._fitting(name, array_of(value))
            for name, value in zip(names, user_inputs, strict=True)
        }
        outputs = self._train(feeds) if self.training else self._evaluate(feeds)
        results: tuple[Any, ...] = tuple(outputs)
        if not any(isinstance(value, np.ndarray) for value in user_inputs):
            results = tuple(OrtValue(np.ascontiguousarray(value)) for value in results)
        return results[0] if len(results) == 1 else results

    def _fitting(self, name: str, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Convert a target [N, 1] of numbers to class numbers [N] if the loss takes these."""
        wanted = self._types[name]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(wanted.elem_type)
        if value.ndim == 2 and len(wanted.shape.dim) == 1 and value.shape[1] == 1:
            value = value[:, 0]
        if value.dtype != dtype and dtype.kind == "i" and (value == np.rint(value)).all():
            value = value.astype(dtype)
        return value

    def _train(self, feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        outputs = self._passes.forward(feeds, training=True)
        seed = {self._outputs[0]: np.ones_like(outputs[0])}
        found = self._passes.backward(seed, outputs.context).weights
        sums = self._state._gradients
        if self._reset:
            sums.clear()
        for name, gradient in found.items():
            sums[name] = sums[name] + gradient if name in sums else gradient
        self._reset = False
        return list(outputs)

    def _evaluate(self, feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        if not self._can_evaluate:
            raise RuntimeError("Evaluation needs an evaluation model: give eval_model_uri.")
        return list(self._passes.forward(feeds, training=False))

    def train(self, mode: bool = True) -> Self:
        """Set training mode (True) or evaluation mode, and return the module."""
        self.training = mode
        return self

    def eval(self) -> Self:
        """Set evaluation mode, and return the module."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Reset the gradients at the next training step."""
        self._reset = True

    def _names(self, trainable_only: bool) -> list[str]:
        return self._trained if trainable_only else [*self._trained, *self._frozen]

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Return the number of elements of all parameters."""
        return sum(self._state._values[name].size for name in self._names(trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> OrtValue:
        """Return all parameters, concatenated into a float32 vector."""
        flat = [self._state._values[name].ravel() for name in self._names(trainable_only)]
        return OrtValue(np.concatenate(flat).astype(np.float32))

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Set all parameters from such a vector."""
        flat = array_of(buffer).ravel()
        size = self.get_parameters_size(trainable_only)
        if flat.size != size:
            raise ValueError(f"The buffer has {flat.size} elements, the parameters have {size}.")
        start = 0
        for name in self._names(trainable_only):
            old = self._state._values[name]
            part = flat[start : start + old.size].reshape(old.shape)
            self._state.parameters[name] = part.astype(old.dtype)
            start += old.size

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: list[str]
    ) -> None:
        """Write the model with its current parameters, without loss and target."""
        model = og.set_weights(self._model, self._state._values)
        del model.metadata_props[:]
        needed = names_above(model.graph.node, graph_output_names)
        inputs = [value.name for value in model.graph.input if value.name in needed]
        part = onnx.utils.Extractor(model).extract_model(inputs, list(graph_output_names))
        part.ir_version = model.ir_version
        save_model(part, inference_model_uri)

    def input_names(self) -> list[str]:
        """Return the names of the inputs, including the target."""
        return [value.name for value in self._passes.get_inputs()]

    def output_names(self) -> list[str]:
        """Return the names of the outputs, the loss first."""
        return list(self._outputs)
