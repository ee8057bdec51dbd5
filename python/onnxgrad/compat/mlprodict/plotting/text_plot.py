"""Models as text: one line for each operator set, input, initializer, node and output."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.numpy_helper

__all__ = ["onnx_simple_text_plot", "onnx_text_plot_io"]


def onnx_text_plot_io(
    model: onnx.ModelProto, verbose: bool = False, att_display: Any = None
) -> str:
    """Return operator sets, inputs, initializers and outputs of a model.

    Parameters
    ----------
    model : onnx.ModelProto
    verbose, att_display
        Taken for compatibility; there is nothing to choose.
    """
    del verbose, att_display
    graph = model.graph
    lines = [f"opset: domain={o.domain!r} version={o.version}" for o in model.opset_import]
    lines += [_value("input", value) for value in graph.input]
    lines += [_initializer(init) for init in graph.initializer]
    lines += [_value("output", value) for value in graph.output]
    return "\n".join(lines)


def onnx_simple_text_plot(
    model: onnx.ModelProto, verbose: bool = False, att_display: Any = None
) -> str:
    """Return a model as text.

    A node that reads what the node above it makes is indented by two more than that one.

    Parameters
    ----------
    model : onnx.ModelProto
    verbose : bool, default=False
        Taken for compatibility.
    att_display : list of str, default=None
        Names of attributes to show; None is all but bodies and tensors.
    """
    del verbose
    graph = model.graph
    lines = [f"opset: domain={o.domain!r} version={o.version}" for o in model.opset_import]
    lines += [_value("input", value) for value in graph.input]
    for init in graph.initializer:
        array = onnx.numpy_helper.to_array(init)
        suffix = f" -- {array.ravel()!r}" if array.size <= 10 else ""
        lines.append(_initializer(init) + suffix)
    depth = {value.name: -1 for value in [*graph.input, *graph.initializer]}
    above: set[str] = set()
    level = 0
    for node in graph.node:
        level = level + 1 if above & set(node.input) else 0
        above = set(node.output)
        depth.update(dict.fromkeys(node.output, level))
        lines.append("  " * level + _node(node, att_display))
    lines += [_value("output", value) for value in graph.output]
    return "\n".join(lines)


def _type(tensor: Any) -> str:
    if not tensor.elem_type:
        return "type=? shape=?"
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim]
    return f"type=dtype({dtype.name!r}) shape={tuple(dims)}"


def _value(kind: str, value: onnx.ValueInfoProto) -> str:
    return f"{kind}: name={value.name!r} {_type(value.type.tensor_type)}"


def _initializer(init: onnx.TensorProto) -> str:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(init.data_type)
    return f"init: name={init.name!r} type=dtype({dtype.name!r}) shape={tuple(init.dims)}"


def _node(node: onnx.NodeProto, att_display: Any) -> str:
    shown = []
    for attribute in node.attribute:
        is_plain = attribute.type not in (
            onnx.AttributeProto.GRAPH,
            onnx.AttributeProto.GRAPHS,
            onnx.AttributeProto.TENSOR,
        )
        if attribute.name in att_display if att_display is not None else is_plain:
            value = onnx.helper.get_attribute_value(attribute)
            text = value.decode() if isinstance(value, bytes) else value
            shown.append(f"{attribute.name}={text}")
    domain = f"[{node.domain}]" if node.domain else ""
    inputs = ", ".join([*node.input, *shown])
    return f"{node.op_type}{domain}({inputs}) -> {', '.join(node.output)}"
