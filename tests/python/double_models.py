"""Node tests in float64: as they are otherwise, with their inputs."""

from typing import Any

import onnx
from onnx import TensorProto

from onnxgrad.gradient_checks.double import array_in_double, model_in_double


def in_double(
    model: onnx.ModelProto, feeds: dict[str, Any]
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model and its inputs with float64 wherever a floating-point type was.

    Where the inputs of an operator may be of integers or of floating-point numbers, and the test
    has integers (CumSum, Trilu), these are float64 too.
    """
    double = model_in_double(model)
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
    if always:
        return (
            [item.astype(float) for item in value]
            if isinstance(value, list)
            else value.astype(float)
        )
    return array_in_double(value)


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
