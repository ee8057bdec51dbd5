"""Names and value infos of a graph under construction."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import onnx

__all__ = ["fresh_name", "has_value", "register_outputs", "typed_value"]

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
