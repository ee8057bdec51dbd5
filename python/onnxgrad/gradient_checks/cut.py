"""Models cut to what some of their outputs depend on."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message  # type: ignore[import-untyped]

__all__ = ["cut", "floating_outputs", "is_float", "names_above", "names_read", "show_scores"]

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


def names_above(nodes: Iterable[onnx.NodeProto], names: Iterable[str]) -> set[str]:
    """Return `names` and all values that these depend on; nodes may come in any order."""
    makers = {name: node for node in nodes for name in node.output if name}
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        if name in makers:
            waiting += names_read(makers[name])
    return needed


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the values that a node reads, also those that its subgraphs read (and their own)."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            yield from (value.name for value in graph.output)
            for inner in graph.node:
                yield from names_read(inner)


def _replace(field: Any, items: Iterable[Message]) -> None:
    copies = [copy.deepcopy(item) for item in items]
    del field[:]
    field.extend(copies)
