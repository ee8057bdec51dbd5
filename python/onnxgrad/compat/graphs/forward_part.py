"""The model with its loss, taken out of a training model, as a file that onnxgrad trains.

Training models of onnxruntime-training have nodes of com.microsoft before the loss, which its
optimizations put there, and a gradient of such nodes after it. Only the former are needed: the
gradient is derived anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

import onnxgrad as og
from onnxgrad.compat.graphs.tools import names_above
from onnxgrad.compat.graphs.training_graphs import (
    RESET,
    buffer_name,
    evaluation_model,
    sum_name,
)
from onnxgrad.compat.models import load_proto

__all__ = ["ForwardPart", "forward_part", "read_artifact"]

_DOMAIN = "com.microsoft"
_BUFFER, _SUM = buffer_name(""), sum_name("")


class ForwardPart:
    """The part of a training model up to its outputs.

    Attributes
    ----------
    model : onnx.ModelProto
        Its inputs include the parameters.
    outputs : list of str
        The loss first.
    trained : list of str
        Names with a gradient, in the order of the inputs.
    """

    def __init__(self, model: onnx.ModelProto, trained: Sequence[str]) -> None:
        self.model, self.trained = model, list(trained)
        self.outputs = [value.name for value in model.graph.output]

    def parameters(self, known: Sequence[str]) -> list[str]:
        """Return which of the names are inputs, in the order of the inputs."""
        names = {*known}
        return [value.name for value in self.model.graph.input if value.name in names]

    def shapes(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return shape and dtype of the inputs whose dimensions are numbers."""
        found = {}
        for value in self.model.graph.input:
            kind = value.type.tensor_type
            dims = [dim.dim_value for dim in kind.shape.dim if dim.HasField("dim_value")]
            if len(dims) == len(kind.shape.dim):
                dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
                found[value.name] = (tuple(dims), dtype)
        return found

    def with_values(self, values: Mapping[str, np.ndarray[Any, Any]]) -> onnx.ModelProto:
        """Return the model with these parameters as initializers."""
        result = onnx.ModelProto()
        result.CopyFrom(self.model)
        graph = result.graph
        kept = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in graph.input]
        del graph.input[:]
        graph.input.extend(value for value in kept if value.name not in values)
        graph.initializer.extend(
            onnx.numpy_helper.from_array(value, name) for name, value in values.items()
        )
        return result


def read_artifact(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Read a training or evaluation model, without nodes in training mode that are no valid ONNX.

    Raises
    ------
    onnxgrad.ModelError
        The file does not exist or is not a model.
    """
    try:
        return load_proto(path)
    except og.Error as error:  # evaluation models of onnxruntime keep outputs for training
        try:
            return load_proto(evaluation_model(onnx.load(path)))
        except Exception:
            raise error from None


def forward_part(training: onnx.ModelProto) -> ForwardPart | None:
    """Return the forward part, or None if this is not a training model."""
    graph = training.graph
    if all(value.name != RESET for value in graph.input):
        return None
    outputs = [value for value in graph.output if not value.name.endswith(_SUM)]
    needed = names_above(graph.node, [value.name for value in outputs])
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes = [_standard(node, constants) for node in graph.node if needed.intersection(node.output)]
    inputs = [v for v in graph.input if v.name != RESET and not v.name.endswith(_BUFFER)]
    kept = [tensor for tensor in graph.initializer if tensor.name in needed]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, graph.name, inputs, outputs, kept),
        opset_imports=training.opset_import,
        functions=training.functions,
        ir_version=training.ir_version,
        producer_name=training.producer_name,
    )
    for entry in training.metadata_props:
        model.metadata_props.add(key=entry.key, value=entry.value)
    buffers = {v.name.removesuffix(_BUFFER) for v in graph.input if v.name.endswith(_BUFFER)}
    trained = [value.name for value in inputs if value.name in buffers]
    return ForwardPart(evaluation_model(model), trained)


def _standard(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> onnx.NodeProto:
    """Return a node for training only as the operator that it computes, others unchanged."""
    change = _CHANGES.get(node.op_type) if node.domain == _DOMAIN else None
    if change is None:
        return node
    result = onnx.NodeProto()
    result.CopyFrom(node)
    result.domain = ""
    change(result, constants)
    return result


def _cross_entropy(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> None:
    node.op_type = "SoftmaxCrossEntropyLoss"
    for index in reversed([i for i, a in enumerate(node.attribute) if a.name == "output_type"]):
        del node.attribute[index]
    if len(node.input) > 3:  # the class number to ignore
        value = int(onnx.numpy_helper.to_array(constants[node.input[3]]).item())
        node.attribute.append(onnx.helper.make_attribute("ignore_index", value))
        del node.input[3:]
    if len(node.input) > 2 and not node.input[2]:
        del node.input[2:]


def _concat(node: onnx.NodeProto, _: Any) -> None:
    node.op_type = "Concat"
    del node.output[1:]


def _dropout(node: onnx.NodeProto, _: Any) -> None:
    node.op_type = "Dropout"
    del node.output[1:]


def _batch_normalization(node: onnx.NodeProto, _: Any) -> None:
    node.op_type = "BatchNormalization"
    del node.output[1:]


_CHANGES: dict[str, Callable[[onnx.NodeProto, Mapping[str, onnx.TensorProto]], None]] = {
    "SoftmaxCrossEntropyLossInternal": _cross_entropy,
    "ConcatTraining": _concat,
    "BitmaskDropout": _dropout,
    "BatchNormInternal": _batch_normalization,
}
