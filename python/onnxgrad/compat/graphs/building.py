"""A graph under construction: nodes, names and value infos."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

__all__ = [
    "add_node",
    "empty_model",
    "fresh_name",
    "has_value",
    "register_outputs",
    "typed_value",
]

# Operator sets that nodes add to a model.
_VERSIONS = {"": 17, "ai.onnx.ml": 3, "com.microsoft": 1}

_COUNTER = itertools.count(1)


def fresh_name(token: str) -> str:
    """Return a name that no earlier call has returned, in the form of onnxruntime-training."""
    return f"onnx::{token}::{next(_COUNTER)}"


def has_value(model: onnx.ModelProto, name: str) -> bool:
    """Return whether a node reads or writes a value of this name."""
    return any(name in node.input or name in node.output for node in model.graph.node)


def typed_value(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Return a copy of the declaration of an input, output or inner value.

    Raises
    ------
    LookupError
        It is not declared, and its type cannot be inferred.
    """
    for inferred in (False, True):
        graph = (onnx.shape_inference.infer_shapes(model) if inferred else model).graph
        for value in [*graph.input, *graph.output, *graph.value_info]:
            if value.name == name:
                found = onnx.ValueInfoProto()
                found.CopyFrom(value)
                return found
    raise LookupError(f"{name!r} is no input, output or inner value of known type.")


def register_outputs(model: onnx.ModelProto, names: str | Sequence[str]) -> None:
    """Make these values the outputs of a model whose types have been inferred."""
    wanted = [names] if isinstance(names, str) else list(names)
    declared = {v.name: v for v in [*model.graph.value_info, *model.graph.output]}
    missing = [name for name in wanted if name not in declared]
    if missing:
        raise LookupError(f"{missing} are no values of known type and cannot become outputs.")
    outputs = [onnx.ValueInfoProto.FromString(declared[n].SerializeToString()) for n in wanted]
    del model.graph.output[:]
    model.graph.output.extend(outputs)


def empty_model(version: int, producer_name: str) -> onnx.ModelProto:
    """Return a model without nodes, of com.microsoft too."""
    sets = [onnx.helper.make_opsetid("com.microsoft", 1), onnx.helper.make_opsetid("", version)]
    return onnx.helper.make_model(
        onnx.helper.make_graph([], "graph", [], []),
        opset_imports=sets,
        producer_name=producer_name,
        ir_version=onnx.helper.find_min_ir_version_for(sets[1:]),
    )


def add_node(
    model: onnx.ModelProto,
    op_type: str,
    inputs: Sequence[str],
    domain: str,
    attributes: Mapping[str, Any],
) -> str:
    """Add a node with one output, and its operator set if it is new, and return the output."""
    output = fresh_name(f"{op_type.lower()}_output")
    if all(used.domain != domain for used in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(domain, _VERSIONS[domain]))
    model.graph.node.append(
        onnx.helper.make_node(
            op_type, inputs, [output], fresh_name(op_type), domain=domain, **attributes
        )
    )
    return output
