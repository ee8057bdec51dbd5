"""Replacing an operator by a small model, and a loss by its losses per row."""

from __future__ import annotations

import onnx

from onnxgrad import summed_losses

__all__ = ["onnx_rewrite_operator", "unreduced_onnx_loss"]


def onnx_rewrite_operator(
    onx: onnx.ModelProto, op_type: str, sub_onx: onnx.ModelProto, recursive: bool = True
) -> onnx.ModelProto:
    """Return the model with every node of a type replaced by the nodes of another model.

    Parameters
    ----------
    onx : onnx.ModelProto
    op_type : str
    sub_onx : onnx.ModelProto
        As many inputs and outputs as the nodes have, in this order.
    recursive : bool, default=True
        Whether bodies of If, Loop and Scan are rewritten too.

    Raises
    ------
    ValueError
        A node with another number of inputs or outputs.
    """
    result = onnx.ModelProto()
    result.CopyFrom(onx)
    taken = _all_names(result.graph)
    _rewrite(result.graph, op_type, sub_onx.graph, recursive, taken)
    known = {opset.domain: opset for opset in result.opset_import}
    for opset in sub_onx.opset_import:
        if opset.domain not in known:
            result.opset_import.add().CopyFrom(opset)
    return result


def unreduced_onnx_loss(onx: onnx.ModelProto, output_name: str = "score") -> onnx.ModelProto:
    """Return a loss model that gives the loss of each element in place of their sum or mean.

    See `onnxgrad.summed_losses.unreduced_loss`.
    """
    return summed_losses.unreduced_loss(onx, output_name)


def _all_names(graph: onnx.GraphProto) -> set[str]:
    names = {value.name for value in [*graph.input, *graph.output, *graph.initializer]}
    for node in graph.node:
        names |= {*node.input, *node.output}
        for attribute in node.attribute:
            if attribute.HasField("g"):
                names |= _all_names(attribute.g)
    return names


def _fresh(name: str, taken: set[str]) -> str:
    fresh, count = name, 1
    while fresh in taken:
        fresh, count = f"{name}_{count}", count + 1
    taken.add(fresh)
    return fresh


def _rewrite(
    graph: onnx.GraphProto, op_type: str, sub: onnx.GraphProto, recursive: bool, taken: set[str]
) -> None:
    nodes = []
    for node in graph.node:
        if recursive:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    _rewrite(attribute.g, op_type, sub, recursive, taken)
        if node.op_type != op_type:
            nodes.append(node)
            continue
        if len(node.input) != len(sub.input) or len(node.output) != len(sub.output):
            raise ValueError(
                f"Node {node.name!r} ({op_type}) has {len(node.input)} inputs and "
                f"{len(node.output)} outputs, the replacement {len(sub.input)} and "
                f"{len(sub.output)}."
            )
        table = {v.name: name for v, name in zip(sub.input, node.input, strict=True)}
        table |= {v.name: name for v, name in zip(sub.output, node.output, strict=True)}
        for init in sub.initializer:
            table[init.name] = _fresh(init.name, taken)
            graph.initializer.add().CopyFrom(init)
            graph.initializer[-1].name = table[init.name]
        for inner in sub.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(inner)
            for name in inner.output:
                table.setdefault(name, _fresh(name, taken))
            copy.input[:] = [table.get(name, name) for name in inner.input]
            copy.output[:] = [table[name] for name in inner.output]
            nodes.append(copy)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    graph.ClearField("node")
    graph.node.extend(kept)
