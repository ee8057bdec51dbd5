"""Models in float64 that are as they are otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import onnx

__all__ = [
    "FLOATS",
    "all_nodes",
    "array_in_double",
    "computes_in_double",
    "model_in_double",
    "parameters_in_single",
    "schema_of",
]

# Numbers of types in ONNX: float, float16, bfloat16; and double.
FLOATS = {1, 10, 16}
_DOUBLE = 11
# Attributes that are the number of a type.
_TYPE_ATTRIBUTES = {"dtype", "output_dtype", "softmax_precision", "stash_type", "to"}


def model_in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with float64 wherever a floating-point type was, also in its functions.

    What an operator reads in float32 only, as Resize its scales, is left as it is.
    """
    import onnx

    double = onnx.ModelProto()
    double.CopyFrom(model)
    opsets = {opset.domain: opset.version for opset in double.opset_import}
    kept = _read_in_single(_nodes_of(double.graph.node), opsets)
    _convert_graph(double.graph, opsets, kept)
    for function in double.functions:
        own = {opset.domain: opset.version for opset in function.opset_import}
        kept = _read_in_single(_nodes_of(function.node), own)
        for value in function.value_info:
            _convert_value(value, kept)
        _convert_nodes(function.node, own, kept)
    return double


def parameters_in_single(model: onnx.ModelProto) -> set[str]:
    """Return the values that only inputs of operators read which take float32 alone."""
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    nodes = list(_nodes_of(model.graph.node))
    others = {
        name
        for node in nodes
        for name, formal in zip_longest(node.input, schema_of(node, opsets).inputs)
        if name and (formal is None or formal.types != {"tensor(float)"})
    }
    return _read_in_single(nodes, opsets) - others


def _read_in_single(nodes: Iterable[onnx.NodeProto], opsets: Mapping[str, int]) -> set[str]:
    """Return the values that inputs of operators read which take float32 alone."""
    return {
        name
        for node in nodes
        for name, formal in zip(node.input, schema_of(node, opsets).inputs, strict=False)
        if formal.types == {"tensor(float)"}
    }


def array_in_double(value: Any) -> Any:
    """Return the value of an input in float64 if it is of a floating-point type."""
    if isinstance(value, list):
        return [array_in_double(item) for item in value]
    is_float = isinstance(value, np.ndarray) and value.dtype.name in (
        "float32",
        "float16",
        "bfloat16",
    )
    return value.astype(np.float64) if is_float else value


def computes_in_double(model: onnx.ModelProto) -> bool:
    """Return whether no operator has outputs in float32 only, as those of ai.onnx.ml."""
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    return not any(
        output and "tensor(float)" in formal.types and "tensor(double)" not in formal.types
        for node in all_nodes(model)
        for output, formal in zip(node.output, schema_of(node, opsets).outputs, strict=False)
    )


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, with those of subgraphs and functions."""
    yield from _nodes_of(model.graph.node)
    for function in model.functions:
        yield from _nodes_of(function.node)


def _nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in [attribute.g, *attribute.graphs]:
                yield from _nodes_of(graph.node)


class _NoSchema(NamedTuple):
    """Of operators that ONNX does not know."""

    attributes: Mapping[str, Any] = {}
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()


def schema_of(node: onnx.NodeProto, opsets: Mapping[str, int]) -> Any:
    """Return ONNX's schema of a node's operator, an empty one if there is none."""
    import onnx

    try:
        return onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:  # of another domain, or a function
        return _NoSchema()


def _convert_graph(graph: onnx.GraphProto, opsets: dict[str, int], kept: set[str]) -> None:
    for value in [*graph.input, *graph.output, *graph.value_info]:
        _convert_value(value, kept)
    for tensor in graph.initializer:
        if tensor.name not in kept:
            _convert_tensor(tensor)
    _convert_nodes(graph.node, opsets, kept)


def _convert_value(value: onnx.ValueInfoProto, kept: set[str]) -> None:
    if value.name not in kept:
        _convert_type(value.type)


def _convert_nodes(nodes: Any, opsets: dict[str, int], kept: set[str]) -> None:
    import onnx

    for node in nodes:
        if node.op_type in ("Cast", "Constant") and not kept.isdisjoint(node.output):
            continue
        # In what it computes, float32 by default.
        if _has_stash_type(node, opsets) and all(a.name != "stash_type" for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("stash_type", _DOUBLE))
        for attribute in node.attribute:
            _convert_attribute(node, attribute, opsets, kept)


def _has_stash_type(node: onnx.NodeProto, opsets: dict[str, int]) -> bool:
    return "stash_type" in schema_of(node, opsets).attributes


def _convert_type(kind: onnx.TypeProto) -> None:
    field = kind.WhichOneof("value")
    if field == "tensor_type":
        if kind.tensor_type.elem_type in FLOATS:
            kind.tensor_type.elem_type = _DOUBLE
    elif field in ("sequence_type", "optional_type"):
        _convert_type(getattr(kind, field).elem_type)


def _convert_tensor(tensor: onnx.TensorProto) -> None:
    from onnx import numpy_helper

    if tensor.data_type in FLOATS:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _convert_attribute(
    node: onnx.NodeProto,
    attribute: onnx.AttributeProto,
    opsets: dict[str, int],
    kept: set[str],
) -> None:
    import onnx
    from onnx import numpy_helper

    if attribute.name in _TYPE_ATTRIBUTES and attribute.i in FLOATS:
        attribute.i = _DOUBLE
    elif attribute.type == onnx.AttributeProto.TENSOR:
        _convert_tensor(attribute.t)
    elif attribute.type == onnx.AttributeProto.GRAPH:
        _convert_graph(attribute.g, opsets, kept)
    elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        if attribute.ref_attr_name:
            return
        numbers = attribute.f if attribute.name == "value_float" else attribute.floats
        tensor = numpy_helper.from_array(np.array(numbers, np.float64))
        attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
