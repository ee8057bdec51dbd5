"""Models cut to what some of their outputs depend on."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from onnxgrad.graphs.dependencies import names_above

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message  # type: ignore[import-untyped]

__all__ = ["cut", "floating_outputs", "is_float", "show_scores"]

# Numbers of types in ONNX: float, float16, double, bfloat16.
_FLOATS = {1, 10, 11, 16}


def is_float(kind: int) -> bool:
    """Return whether a type of ONNX is of floating-point numbers that have gradients."""
    return kind in _FLOATS


def show_scores(model: onnx.ModelProto) -> dict[str, str]:
    """Replace outputs that are maps of a ZipMap by the scores that it reads.

    Returns the name of that value for each such output.
    """
    import onnx

    maps = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "ZipMap"}
    outputs: list[onnx.ValueInfoProto] = []
    for value in model.graph.output:
        name = maps.get(value.name, value.name)
        if name != value.name:
            value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        if all(other.name != name for other in outputs):
            outputs.append(value)
    _replace(model.graph.output, outputs)
    return maps


def floating_outputs(model: onnx.ModelProto) -> list[str]:
    """Return the outputs that are tensors of floating-point numbers, or of no type in the file."""
    return [
        value.name
        for value in model.graph.output
        if value.type.WhichOneof("value") is None or is_float(value.type.tensor_type.elem_type)
    ]


def cut(
    model: onnx.ModelProto, outputs: Sequence[str], kept: Collection[str] = ()
) -> onnx.ModelProto:
    """Return the model with these outputs and the nodes, inputs and weights that they depend on.

    Inputs and weights that are named in `kept` stay as well.
    """
    import onnx

    found = onnx.ModelProto()
    found.CopyFrom(model)
    graph = found.graph
    needed = set(kept) | names_above(graph.node, outputs)
    nodes = [node for node in model.graph.node if not needed.isdisjoint(node.output)]
    values = needed.union(*(node.output for node in nodes))
    _replace(graph.node, nodes)
    _replace(graph.output, [value for value in model.graph.output if value.name in outputs])
    _replace(graph.input, [value for value in model.graph.input if value.name in needed])
    _replace(graph.initializer, [one for one in model.graph.initializer if one.name in needed])
    _replace(graph.value_info, [one for one in model.graph.value_info if one.name in values])
    return found


def _replace(field: Any, items: Iterable[Message]) -> None:
    copies = [copy.deepcopy(item) for item in items]
    del field[:]
    field.extend(copies)
