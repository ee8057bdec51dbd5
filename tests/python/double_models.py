"""Models in float64: as they are otherwise, with their inputs."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
# Attributes that are the number of a type.
TYPE_ATTRIBUTES = {"dtype", "output_dtype", "softmax_precision", "stash_type", "to"}


def in_double(
    model: onnx.ModelProto, feeds: dict[str, Any]
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model and its inputs with float64 wherever a floating-point type was.

    Where the inputs of an operator may be of integers or of floating-point numbers, and the test
    has integers (CumSum, Trilu), these are float64 too.
    """
    double = onnx.ModelProto()
    double.CopyFrom(model)
    opsets = {opset.domain: opset.version for opset in double.opset_import}
    _convert_graph(double.graph, opsets)
    integers = _integers_for_numbers(double)
    moved = {}
    for value in double.graph.input:
        if value.name in integers:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
        moved[value.name] = _array(feeds[value.name], value.name in integers)
    if integers:
        for value in double.graph.output:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    return double, moved


def _array(value: Any, always: bool) -> Any:
    if isinstance(value, list):
        return [_array(item, always) for item in value]
    if isinstance(value, np.ndarray) and (
        always or value.dtype.name in ("float32", "float16", "bfloat16")
    ):
        return value.astype(np.float64)
    return value


def _integers_for_numbers(model: onnx.ModelProto) -> set[str]:
    """Return inputs of integers that could be of float64, in a model of one node without floats.

    They are those of the type variable of the first differentiable input, if output 0 has it too.
    """
    if len(model.graph.node) != 1:
        return set()
    if any(v.type.tensor_type.elem_type == TensorProto.DOUBLE for v in model.graph.input):
        return set()
    node = model.graph.node[0]
    opset = next(o.version for o in model.opset_import if o.domain == node.domain)
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    marked = [
        formal.type_str
        for formal in schema.inputs
        if formal.differentiation_category == schema.DifferentiationCategory.Differentiable
        and "tensor(double)" in formal.types
    ]
    if not marked or len(schema.outputs) != 1 or schema.outputs[0].type_str != marked[0]:
        return set()
    formals = [*schema.inputs]
    return {
        name
        for i, name in enumerate(node.input)
        if formals[min(i, len(formals) - 1)].type_str == marked[0]
    }


def _convert_graph(graph: onnx.GraphProto, opsets: dict[str, int]) -> None:
    for value in [*graph.input, *graph.output, *graph.value_info]:
        _convert_type(value.type)
    for tensor in graph.initializer:
        _convert_tensor(tensor)
    for node in graph.node:
        schema = onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain)
        # In what it computes, float32 by default.
        if "stash_type" in schema.attributes and all(
            a.name != "stash_type" for a in node.attribute
        ):
            node.attribute.append(onnx.helper.make_attribute("stash_type", TensorProto.DOUBLE))
        for attribute in node.attribute:
            _convert_attribute(node, attribute, opsets)


def _convert_type(kind: onnx.TypeProto) -> None:
    field = kind.WhichOneof("value")
    if field == "tensor_type":
        if kind.tensor_type.elem_type in FLOATS:
            kind.tensor_type.elem_type = TensorProto.DOUBLE
    elif field in ("sequence_type", "optional_type"):
        _convert_type(getattr(kind, field).elem_type)


def _convert_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in FLOATS:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _convert_attribute(
    node: onnx.NodeProto, attribute: onnx.AttributeProto, opsets: dict[str, int]
) -> None:
    if attribute.name in TYPE_ATTRIBUTES and attribute.i in FLOATS:
        attribute.i = TensorProto.DOUBLE
    elif attribute.type == onnx.AttributeProto.TENSOR:
        _convert_tensor(attribute.t)
    elif attribute.type == onnx.AttributeProto.GRAPH:
        _convert_graph(attribute.g, opsets)
    elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        numbers = attribute.f if attribute.name == "value_float" else attribute.floats
        tensor = numpy_helper.from_array(np.array(numbers, np.float64))
        attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
