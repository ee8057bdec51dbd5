"""Models in float64 that are as they are otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onnxgrad.graphs.dependencies import names_above, names_read, subgraphs

if TYPE_CHECKING:
    import onnx

__all__ = [
    "FLOATS",
    "STRAIGHT_THROUGH",
    "all_nodes",
    "array_in_double",
    "model_in_double",
    "names_in_single",
    "names_rounded",
    "parameters_in_single",
    "schema_of",
]

# Numbers of types in ONNX: float, float16, bfloat16; and double.
FLOATS = {1, 10, 16}
_FLOAT = 1
_DOUBLE = 11
_SINGLE = "tensor(float)"
_SINGLE_TYPES = {_SINGLE, "tensor(float16)", "tensor(bfloat16)"}
_IN_SINGLE = "__float32"  # in names of values
# Attributes that are the number of a type.
_TYPE_ATTRIBUTES = {"dtype", "output_dtype", "softmax_precision", "stash_type", "to"}
# Their gradients pass over rounding, by convention.
STRAIGHT_THROUGH = {
    "DynamicQuantizeLinear",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
}


def model_in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with float64 wherever a floating-point type was, also in its functions.

    Operators that know no float64 stay in float32: constants and inputs that only they read, as the
    scales of Resize, are left as they are, and around others there are nodes Cast.
    """
    import onnx

    double = onnx.ModelProto()
    double.CopyFrom(model)
    opsets = {opset.domain: opset.version for opset in double.opset_import}
    _convert_graph(double.graph, opsets, parameters_in_single(double))
    for function in double.functions:
        own = {opset.domain: opset.version for opset in function.opset_import}
        kept = _kept(function.node, own, set())
        for value in function.value_info:
            _convert_value(value, kept)
        _convert_nodes(function.node, own, kept)
    return double


def parameters_in_single(model: onnx.ModelProto) -> set[str]:
    """Return the inputs and constants that only operators read which take float32 alone."""
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    given = [*model.graph.input, *model.graph.initializer]
    return _kept(model.graph.node, opsets, {value.name for value in given})


def _kept(nodes: Sequence[onnx.NodeProto], opsets: Mapping[str, int], given: set[str]) -> set[str]:
    single: set[str] = set()
    others: set[str] = set()
    constant = set(given)
    for node in _nodes_of(nodes):
        if node.op_type in ("Cast", "Constant"):
            constant.update(node.output)
        for graph in subgraphs(node):
            constant.update(tensor.name for tensor in graph.initializer)
            others.update(value.name for value in graph.output)
        for name, formal in zip_longest(node.input, schema_of(node, opsets).inputs):
            if name:
                is_single = formal is not None and formal.types == {_SINGLE}
                (single if is_single else others).add(name)
    return (single - others) & constant


def names_in_single(model: onnx.ModelProto) -> set[str]:
    """Return the values of the graph that operators depend on which compute in float32 alone."""
    return _values_before(model, _computes_in_single)


def names_rounded(model: onnx.ModelProto) -> set[str]:
    """Return the values of the graph whose gradients pass over rounding, by convention."""
    return _values_before(model, lambda node, _opsets: node.op_type in STRAIGHT_THROUGH)


def _values_before(
    model: onnx.ModelProto, wanted: Callable[[onnx.NodeProto, Mapping[str, int]], bool]
) -> set[str]:
    """Return the values of the graph that nodes depend on of which `wanted` is true."""
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    functions = {
        (function.domain, function.name)
        for function in model.functions
        if any(
            wanted(node, {opset.domain: opset.version for opset in function.opset_import})
            for node in _nodes_of(function.node)
        )
    }
    read = {
        name
        for node in model.graph.node
        if any(
            wanted(inner, opsets) or (inner.domain, inner.op_type) in functions
            for inner in _nodes_of([node])
        )
        for name in names_read(node)
    }
    return names_above(model.graph.node, read)


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


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, with those of subgraphs and functions."""
    yield from _nodes_of(model.graph.node)
    for function in model.functions:
        yield from _nodes_of(function.node)


def _nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _nodes_of(graph.node)


class _NoSchema(NamedTuple):
    """Schema of operators that ONNX does not know."""

    attributes: Mapping[str, Any] = {}
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()


def schema_of(node: onnx.NodeProto, opsets: Mapping[str, int]) -> Any:
    """Return ONNX's schema of a node's operator, an empty one if there is none."""
    import onnx

    try:
        return onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:  # another domain, or a function
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

    converted = []
    for node in nodes:
        is_kept = node.op_type in ("Cast", "Constant") and not kept.isdisjoint(node.output)
        if is_kept:
            converted.append(node)
            continue
        # The attribute stash_type is the type it computes in, float32 by default.
        if _has_stash_type(node, opsets) and all(a.name != "stash_type" for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("stash_type", _DOUBLE))
        for attribute in node.attribute:
            _convert_attribute(node, attribute, opsets, kept)
        converted += _with_casts(node, opsets, kept)
    copies = []
    for node in converted:
        copies.append(onnx.NodeProto())
        copies[-1].CopyFrom(node)
    del nodes[:]
    nodes.extend(copies)


def _with_casts(
    node: onnx.NodeProto, opsets: Mapping[str, int], kept: set[str]
) -> list[onnx.NodeProto]:
    """Return a converted node, between nodes Cast where it knows no float64."""
    schema = schema_of(node, opsets)
    before, after = [], []
    for i, (name, formal) in enumerate(zip(node.input, schema.inputs, strict=False)):
        if name and name not in kept and formal.types == {_SINGLE}:
            node.input[i] = f"{name}{_IN_SINGLE}{node.output[0]}_{i}"
            before.append(_cast(name, node.input[i], _FLOAT))
    for i, is_single in enumerate(_outputs_in_single(node, opsets)):
        if is_single:
            name = node.output[i]
            node.output[i] = f"{name}{_IN_SINGLE}"
            after.append(_cast(node.output[i], name, _DOUBLE))
    return [*before, node, *after]


def _cast(name: str, result: str, kind: int) -> onnx.NodeProto:
    import onnx

    return onnx.helper.make_node("Cast", [name], [result], to=kind)


def _is_single(formal: Any) -> bool:
    """Return whether an output of an operator is float32 (or half), and never float64."""
    return _SINGLE in formal.types and formal.types <= _SINGLE_TYPES


def _computes_in_single(node: onnx.NodeProto, opsets: Mapping[str, int]) -> bool:
    return any(_outputs_in_single(node, opsets))


def _outputs_in_single(node: onnx.NodeProto, opsets: Mapping[str, int]) -> list[bool]:
    """Return for each output whether it is float32 always, whatever the inputs are."""
    schema = schema_of(node, opsets)
    if "stash_type" in schema.attributes:
        return []
    formals = zip(node.output, schema.outputs, strict=False)
    return [bool(name) and _is_single(formal) for name, formal in formals]


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
        if any(_outputs_in_single(node, opsets)):
            return  # such as the scale of DequantizeLinear
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
