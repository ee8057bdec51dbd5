"""Selecting a part of a model, and renaming what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
import onnx.helper

__all__ = ["onnx_rename_names", "select_model_inputs_outputs"]


def select_model_inputs_outputs(
    model: onnx.ModelProto,
    outputs: str | Sequence[str] | None = None,
    inputs: str | Sequence[str] | None = None,
) -> onnx.ModelProto:
    """Return the part of a model between some values; unused nodes and weights are left out.

    Parameters
    ----------
    model : onnx.ModelProto
    outputs, inputs : str or list of str, default=None
        Names of values; None is the model's own.

    Raises
    ------
    ValueError
        A name that the model does not have.
    """
    import onnx.shape_inference

    graph = model.graph
    wanted = _names(outputs, [value.name for value in graph.output])
    given = _names(inputs, [value.name for value in graph.input])
    known = {value.name: value for value in [*graph.input, *graph.output]}
    made = {name for node in graph.node for name in node.output}
    for name in [*wanted, *given]:
        if name not in known and name not in made:
            raise ValueError(f"Unable to find {name!r} in the model.")
    if any(name not in known for name in [*wanted, *given]):
        inferred = onnx.shape_inference.infer_shapes(model)
        known = {**{value.name: value for value in inferred.graph.value_info}, **known}

    needed, kept = set(wanted), []
    for node in reversed(graph.node):
        if needed & (set(node.output) - set(given)):
            kept.append(node)
            needed |= _inputs_of(node)
    kept.reverse()
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for field in ("node", "input", "output", "initializer", "value_info"):
        result.graph.ClearField(field)
    result.graph.node.extend(kept)
    result.graph.input.extend(known.get(n, onnx.ValueInfoProto(name=n)) for n in given)
    result.graph.output.extend(known.get(n, onnx.ValueInfoProto(name=n)) for n in wanted)
    result.graph.initializer.extend(i for i in graph.initializer if i.name in needed)
    return result


def onnx_rename_names(
    model: onnx.ModelProto,
    strategy: str = "simple",
    recursive: bool = True,
    replace: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Rename values and initializers in place, keeping the names of inputs and outputs.

    Parameters
    ----------
    model : onnx.ModelProto
    strategy : str, default="simple"
        Results become r0, r1, ..., initializers i0, i1, ...
    recursive : bool, default=True
        Whether the bodies of If, Loop and Scan are renamed too.
    replace : dict of str to str, default=None
        These names and no others are replaced.

    Returns
    -------
    onnx.ModelProto
        The same model.
    """
    if strategy != "simple":
        raise ValueError(f"Unknown strategy {strategy!r}, expected 'simple'.")
    table = dict(replace) if replace is not None else _short_names(model.graph)
    _rename(model.graph, table, recursive, replace is None)
    return model


def _names(names: str | Sequence[str] | None, default: list[str]) -> list[str]:
    if names is None:
        return default
    return [names] if isinstance(names, str) else list(names)


def _subgraphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _inputs_of(node: onnx.NodeProto) -> set[str]:
    names = {name for name in node.input if name}
    for graph in _subgraphs(node):
        for inner in graph.node:
            names |= _inputs_of(inner)
        names |= {value.name for value in graph.output}
    return names


def _short_names(graph: onnx.GraphProto) -> dict[str, str]:
    kept = {value.name for value in [*graph.input, *graph.output]}
    table: dict[str, str] = {}
    for count, init in enumerate(i for i in graph.initializer if i.name not in kept):
        table[init.name] = f"i{count}"
    results = [name for node in graph.node for name in node.output if name and name not in kept]
    table.update({name: f"r{count}" for count, name in enumerate(results)})
    return table


def _rename(graph: onnx.GraphProto, table: dict[str, str], recursive: bool, is_short: bool) -> None:
    for node in graph.node:
        for field in (node.input, node.output):
            for place, name in enumerate(field):
                field[place] = table.get(name, name)
        for body in _subgraphs(node):
            # A body reads values of the outer graph by name, so these are replaced in any case.
            inner = dict(table)
            if recursive and is_short:
                made = [name for child in body.node for name in child.output if name]
                taken = {value.name for value in [*body.input, *body.output]}
                start = len(inner)
                fresh = [name for name in made if name not in taken]
                inner.update({name: f"r{start + i}" for i, name in enumerate(fresh)})
            _rename(body, inner, recursive, is_short)
    for collection in (graph.initializer, graph.input, graph.output, graph.value_info):
        for value in collection:
            value.name = table.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = table.get(sparse.values.name, sparse.values.name)
