"""Training and evaluation steps of a model with its loss."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import onnx
import onnx.shape_inference
import onnx.utils

import onnxgrad as og
from onnxgrad.compat.graphs.forward_part import (
    ForwardPart,
    forward_part,
    read_artifact,
)
from onnxgrad.compat.graphs.tools import names_above
from onnxgrad.compat.onnxruntime.training.api.checkpoint_state import CheckpointState
from onnxgrad.compat.onnxruntime.training.api.gradient_step import gradient_name
from onnxgrad.compat.onnxruntime.values import OrtValue, array_of
from onnxgrad.files import save_model

__all__ = ["Module"]

_Array = np.ndarray[Any, Any]


class Module:
    """The model with its loss, and its gradient.

    Parameters
    ----------
    train_model_uri : path
        Path of the training model, written by `generate_artifacts` or by onnxruntime 1.19.
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
        part = forward_part(read_artifact(train_model_uri))
        if part is None:
            raise ValueError(
                f"{os.fspath(train_model_uri)!r} is not a training model of generate_artifacts."
            )
        self._part: ForwardPart = part
        # Running statistics are tensors of the model, and beside the parameters in a checkpoint.
        self._inside = {tensor.name for tensor in part.model.graph.initializer}
        for name in self._inside & state._values.keys():
            state._statistics[name] = state._values.pop(name)
        self._parameters = part.parameters([*state._values])
        self._check_parameters()
        self._trained = [name for name in part.trained if name in state._values]
        types = {value.name: value.type.tensor_type for value in part.model.graph.input}
        self._inputs = [name for name in types if name not in state._values]
        self._wanted = [(name, *_rank_and_dtype(types[name])) for name in self._inputs]
        self._evaluation = None if eval_model_uri is None else read_artifact(eval_model_uri)
        self._device = device.partition(":")[0] if device.endswith(":0") else device
        self._reset = True
        self._passes: Any = None
        self._feeds: Any = None  # gradients, as the optimizer takes them
        self._build()
        state._module = self

    def _check_parameters(self) -> None:
        """Compare with the shapes of the model, and give nominal parameters theirs."""
        missing = [name for name in self._part.trained if name not in self._state._values]
        declared = self._part.shapes()
        if missing and any(name in declared for name in missing):
            names = ", ".join(repr(name) for name in missing)
            raise ValueError(f"The checkpoint does not have the parameters {names} of the model.")
        for name in self._parameters:
            shape, dtype = declared.get(name, ((), np.dtype(np.float32)))
            value = self._state._values[name]
            if name in self._state._missing:
                self._state._values[name] = np.zeros(shape, dtype)
            elif name in declared and (value.shape, value.dtype) != (shape, dtype):
                raise ValueError(
                    f"Parameter {name!r} is {value.dtype} {list(value.shape)} in the checkpoint "
                    f"and {dtype} {list(shape)} in the model."
                )

    def _build(self) -> None:
        values = {name: self._state._value(name) for name in self._parameters}
        model = self._part.with_values(values)
        self._state._statistics |= self._statistics()
        if known := {k: v for k, v in self._state._statistics.items() if k in self._inside}:
            model = og.set_weights(model, known)
        if self._trained:
            self._passes = og.ForwardBackward(
                model,
                weights=self._trained,
                untie=False,
                input_gradients=False,
                device=self._device,
            )
            if self._feeds is None:
                self._feeds = self._passes._gradient_feeds(gradient_name)
        else:
            self._passes = og.InferenceSession(model, device=self._device)
        self._seen = self._state._changes

    def _statistics(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the running statistics, as the training steps have left them."""
        if self._passes is None or not self._trained:
            return self._state._statistics
        return {name: v for name, v in self._passes.weights.items() if name in self._inside}

    def _weights_changed(self) -> None:
        """Take over parameters that the user has set."""
        frozen = {name for name in self._parameters if name not in self._trained}
        if frozen:  # these are constants of the plans
            self._build()
            return
        self._passes.weights = {name: self._state._value(name) for name in self._trained}
        self._seen = self._state._changes

    def __call__(self, *user_inputs: Any) -> Any:
        """Do a training or an evaluation step and return the loss, or a tuple of outputs.

        In training mode, gradients accumulate until the next reset. Inputs are arrays or OrtValues;
        if all are OrtValues, so are the outputs.
        """
        state = self._state
        if state._missing:
            state._require_values()
        if self._seen != state._changes:
            self._weights_changed()
        wanted = self._wanted
        if len(user_inputs) != len(wanted):
            raise ValueError(f"{len(user_inputs)} inputs were given for {self._inputs}.")
        given = [
            (name, value)
            if type(value) is np.ndarray and value.dtype == dtype and value.ndim == rank
            else (name, _fitting(array_of(value), rank, dtype))
            for value, (name, rank, dtype) in zip(user_inputs, wanted, strict=True)
        ]
        results: Sequence[Any] = self._train(given) if self.training else self._evaluate(given)
        has_arrays = np.ndarray in map(type, user_inputs)  # most calls end here
        if not has_arrays and not any(isinstance(value, np.ndarray) for value in user_inputs):
            results = [OrtValue(np.ascontiguousarray(value)) for value in results]
        return results[0] if len(results) == 1 else tuple(results)

    def _train(self, given: list[tuple[str, _Array]]) -> Sequence[_Array]:
        if not self._trained:
            return self._evaluated(given)
        outputs: list[_Array] = self._feeds.compute(self._passes, given, adds=not self._reset)
        self._state._gradients = self._feeds
        self._reset = False
        return outputs

    def _evaluate(self, given: list[tuple[str, _Array]]) -> Sequence[_Array]:
        if self._evaluation is None:
            raise RuntimeError("Evaluation needs an evaluation model: give eval_model_uri.")
        return self._evaluated(given)

    def _evaluated(self, given: list[tuple[str, _Array]]) -> Sequence[_Array]:
        if not self._trained:
            return list(self._passes.run(self._part.outputs, dict(given)))
        return list(self._passes.forward(dict(given), training=False))

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
        return self._trained if trainable_only else self._parameters

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Return the number of elements of all parameters."""
        return sum(self._state._values[name].size for name in self._names(trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> OrtValue:
        """Return all parameters, concatenated into a float32 vector."""
        self._state._require_values()
        flat = [self._state._value(name).ravel() for name in self._names(trainable_only)]
        return OrtValue(np.concatenate(flat).astype(np.float32))

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Set all parameters from such a vector; this completes a nominal checkpoint."""
        flat = array_of(buffer).ravel()
        size = self.get_parameters_size(trainable_only)
        if flat.size != size:
            raise ValueError(f"The buffer has {flat.size} elements, the parameters have {size}.")
        start = 0
        for name in self._names(trainable_only):
            old = self._state._values[name]
            part = flat[start : start + old.size].reshape(old.shape)
            self._state._set(name, part.astype(old.dtype))
            start += old.size

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: list[str]
    ) -> None:
        """Write the model with its current parameters, without loss and target."""
        self._state._require_values()
        values = {name: self._state._value(name) for name in self._parameters}
        source = self._part if self._evaluation is None else ForwardPart(self._evaluation, [])
        model = source.with_values(values)
        known = {tensor.name for tensor in model.graph.initializer}
        if found := {n: v for n, v in self._statistics().items() if n in known}:
            model = og.set_weights(model, found)
        del model.metadata_props[:]
        needed = names_above(model.graph.node, graph_output_names)
        inputs = [value.name for value in model.graph.input if value.name in needed]
        if not {*graph_output_names} <= {value.name for value in model.graph.value_info}:
            model = onnx.shape_inference.infer_shapes(model)
        part = onnx.utils.Extractor(model).extract_model(inputs, list(graph_output_names))
        part.ir_version = model.ir_version
        save_model(part, inference_model_uri)

    def input_names(self) -> list[str]:
        """Return the names of the inputs, including the target."""
        return list(self._inputs)

    def output_names(self) -> list[str]:
        """Return the names of the outputs, the loss first."""
        return list(self._part.outputs)


def _fitting(value: np.ndarray[Any, Any], rank: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Convert a target [N, 1] of numbers to class numbers [N] if the loss takes these."""
    if value.ndim == 2 and value.shape[1] == 1 and rank == 1:
        value = value[:, 0]
    if value.dtype == dtype or dtype.kind != "i" or value.dtype.kind in "US":
        return value
    return value.astype(dtype) if (value == np.rint(value)).all() else value


def _rank_and_dtype(tensor: onnx.TypeProto.Tensor) -> tuple[int, np.dtype[Any]]:
    return len(tensor.shape.dim), onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
