"""Which values of a graph depend on which others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

__all__ = ["names_above", "names_read", "subgraphs"]


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
    for graph in subgraphs(node):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from names_read(inner)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the attributes of a node: the branches of an If, the body of a Loop."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
