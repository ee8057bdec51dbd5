"""Forward and backward passes of a model whose weights are inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper

import onnxgrad as og
from onnxgrad.compat.graphs import tools
from onnxgrad.compat.models import load_proto
from onnxgrad.compat.onnxruntime.training_session import device_of
from onnxgrad.compat.onnxruntime.values import OrtValueVector, array_of

__all__ = [
    "OrtModuleGraphBuilder",
    "OrtModuleGraphBuilderConfiguration",
    "OrtValueCache",
    "PartialGraphExecutionState",
    "TrainingAgent",
    "TrainingGraphTransformerConfiguration",
]


class OrtValueCache(dict[str, Any]):
    """A cache of values by name; it is accepted but not used."""


class PartialGraphExecutionState:
    """The context that a forward pass saves for its backward pass."""

    def __init__(self) -> None:
        self.context: Any = None
        self.output_shapes: list[tuple[int, ...]] = []


class TrainingGraphTransformerConfiguration:
    """Options of graph optimizations; they have no effect."""


class OrtModuleGraphBuilderConfiguration:
    """Weights and inputs that a graph builder differentiates.

    Attributes
    ----------
    initializer_names, initializer_names_to_train : list of str
        Weights that become inputs, and those that get a gradient; empty means all of floating type.
    input_names_require_grad : list of str
        Inputs that get a gradient; empty means all of floating type.
    """

    def __init__(self) -> None:
        self.initializer_names: list[str] = []
        self.initializer_names_to_train: list[str] = []
        self.input_names_require_grad: list[str] = []
        self.build_gradient_graph = True
        self.use_memory_efficient_gradient = False
        self.enable_caching = False
        self.loglevel: Any = None


class OrtModuleGraphBuilder:
    """Builds the model with weights as inputs, and its gradient."""

    def __init__(self) -> None:
        self._model: onnx.ModelProto | None = None
        self._names: list[str] = []

    def initialize(self, model: Any, config: OrtModuleGraphBuilderConfiguration) -> None:
        """Set the model and the weights and inputs to differentiate."""
        proto = load_proto(model)
        trained = config.initializer_names_to_train or _float_initializers(proto)
        self._model = tools.weights_as_inputs(proto, config.initializer_names or trained)
        inputs = config.input_names_require_grad or [
            value.name for value in _float_inputs(proto) if value.name not in trained
        ]
        self._names = [*inputs, *trained]

    def build(self, config: TrainingGraphTransformerConfiguration | None = None) -> None:
        """Do nothing: graphs are built when they are requested."""
        del config

    def get_forward_model(self) -> bytes:
        """Return the model with weights as inputs."""
        if self._model is None:
            raise RuntimeError("initialize() has not been called.")
        return bytes(self._model.SerializeToString())

    def get_gradient_model(self) -> bytes:
        """Return the model of outputs and gradients, whose inputs include gradients of outputs."""
        model = og.gradient(self.get_forward_model(), self._names, keep_outputs=True, inline=True)
        return bytes(model.SerializeToString())


class TrainingAgent:
    """Runs forward passes, and backward passes with any gradient of the outputs.

    Parameters
    ----------
    session : onnx.ModelProto, bytes, path, onnxgrad.ForwardBackward or stock InferenceSession
        A model whose weights are inputs, or a session of one.
    fw_feed_names : list of str
        Inputs in the order of the feeds.
    fw_outputs_device_info : list
        Accepted for compatibility.
    bw_fetches_names : list of str
        Inputs and weights to differentiate, or names ``<input>_grad``, in the order of the results.
    bw_outputs_device_info, local_rank
        Accepted for compatibility.
    providers : list, default=None
    """

    def __init__(
        self,
        session: Any,
        fw_feed_names: Sequence[str],
        fw_outputs_device_info: Any = None,
        bw_fetches_names: Sequence[str] = (),
        bw_outputs_device_info: Any = None,
        local_rank: int = 0,
        providers: Sequence[Any] | None = None,
    ) -> None:
        del fw_outputs_device_info, bw_outputs_device_info, local_rank
        self.feed_names = list(fw_feed_names)
        self.wrt = [
            name if name in self.feed_names else name.removesuffix("_grad")
            for name in bw_fetches_names
        ]
        if isinstance(session, og.ForwardBackward):
            self.passes = session
        else:
            self.passes = og.ForwardBackward(
                _model_of(session),
                inputs=self.wrt or None,
                untie=False,
                device=device_of(providers),
            )
        self.wrt = self.wrt or self.passes.gradient_inputs
        self._shapes = {value.name: value.shape for value in self.passes.get_inputs()}

    def run_forward(
        self,
        feeds: Sequence[Any],
        fetches: OrtValueVector,
        state: PartialGraphExecutionState | None,
        cache: OrtValueCache | None = None,
    ) -> None:
        """Append the outputs to `fetches`; without a state nothing is saved.

        A weight may have another shape with the same number of elements.
        """
        del cache
        if len(feeds) != len(self.feed_names):
            raise ValueError(
                f"{len(feeds)} inputs, expected {len(self.feed_names)}: {self.feed_names}"
            )
        arrays = {
            name: _in_shape(array_of(value), self._shapes.get(name, [None]))
            for name, value in zip(self.feed_names, feeds, strict=True)
        }
        outputs = self.passes.forward(arrays, training=state is not None)
        if state is not None:
            state.context = outputs.context
            state.output_shapes = [np.shape(output) for output in outputs]
        fetches.push_back_batch(outputs)

    def run_backward(
        self, feeds: Sequence[Any], fetches: OrtValueVector, state: PartialGraphExecutionState
    ) -> None:
        """Append the gradients to `fetches`, for the gradients of the outputs as feeds.

        Those of the outputs may have another shape with the same number of elements.
        """
        given = [None if value is None else array_of(value) for value in feeds]
        for i, shape in enumerate(state.output_shapes[: len(given)]):
            if given[i] is not None:
                given[i] = _in_shape(given[i], shape)
        gradients = self.passes.backward(given, state.context)
        fetches.push_back_batch(gradients.inputs[name] for name in self.wrt)


def _in_shape(array: Any, shape: Sequence[int | str | None]) -> Any:
    """Return a view of an array in a shape that has as many elements, else the array."""
    sizes = [dim for dim in shape if isinstance(dim, int)]
    if np.shape(array) == tuple(shape) or len(sizes) < len(shape):
        return array
    return array.reshape(sizes) if math.prod(sizes) == array.size else array


def _model_of(session: Any) -> Any:
    """Return the model of a stock onnxruntime session; return other values unchanged."""
    for name in ("_model_bytes", "_model_path"):
        if getattr(session, name, None):
            return getattr(session, name)
    if hasattr(session, "run_with_iobinding"):
        raise TypeError(
            f"session is stock onnxruntime's {type(session).__name__}, which does not expose its "
            "model. Give the InferenceSession itself instead of its _sess, or the model."
        )
    return session


def _is_float(element: int) -> bool:
    return element != 0 and bool(
        np.issubdtype(onnx.helper.tensor_dtype_to_np_dtype(element), np.floating)
    )


def _float_initializers(model: onnx.ModelProto) -> list[str]:
    return [init.name for init in model.graph.initializer if _is_float(init.data_type)]


def _float_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {init.name for init in model.graph.initializer}
    return [
        value
        for value in model.graph.input
        if value.name not in weights and _is_float(value.type.tensor_type.elem_type)
    ]
