"""Editing of models: selecting parts, renaming, replacing operators, splitting.

Training does not use these functions; they are for inspecting and changing models.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from onnxgrad.graphs.dependencies import names_above, names_read, subgraphs

__all__ = [
    "all_names",
    "choose_cut_points",
    "cut_points",
    "name_constants",
    "names_above",
    "rename",
    "replace_operator",
    "select",
    "split",
    "weights_as_inputs",
]


def select(
    model: onnx.ModelProto,
    outputs: str | Sequence[str] | None = None,
    inputs: str | Sequence[str] | None = None,
) -> onnx.ModelProto:
    """Return the part of a model between some values; unused nodes and weights are left out.

    Parameters
    ----------
    model : onnx.ModelProto
    outputs, inputs : str or list of str, default=None
        Names of values; None means the model's own.

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
            needed.update(names_read(node))
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


def rename(
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
        ``"simple"``: results become r0, r1, ..., initializers i0, i1, ...
    recursive : bool, default=True
        Whether to rename in the bodies of If, Loop and Scan too.
    replace : dict of str to str, default=None
        Names to replace, instead of all.

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


def replace_operator(
    onx: onnx.ModelProto, op_type: str, sub_onx: onnx.ModelProto, recursive: bool = True
) -> onnx.ModelProto:
    """Return the model with every node of a type replaced by the nodes of another model.

    Parameters
    ----------
    onx : onnx.ModelProto
    op_type : str
    sub_onx : onnx.ModelProto
        A model with the inputs and outputs of the nodes, in the same order.
    recursive : bool, default=True
        Whether to replace in the bodies of If, Loop and Scan too.

    Raises
    ------
    ValueError
        A node with another number of inputs or outputs.
    """
    result = onnx.ModelProto()
    result.CopyFrom(onx)
    taken = all_names(result.graph)
    _rewrite(result.graph, op_type, sub_onx.graph, recursive, taken)
    known = {opset.domain: opset for opset in result.opset_import}
    for opset in sub_onx.opset_import:
        if opset.domain not in known:
            result.opset_import.add().CopyFrom(opset)
    return result


def cut_points(model: onnx.ModelProto) -> dict[str, int]:
    """Return the values that all later nodes depend on exclusively.

    Each name is mapped to the number of nodes before the cut; they are in the order of the nodes.
    """
    graph = model.graph
    constants = {init.name for init in graph.initializer}
    last_use = {name: i for i, node in enumerate(graph.node) for name in node.input}
    last_use |= {output.name: len(graph.node) for output in graph.output}
    alive = {value.name for value in graph.input} - constants
    found = {}
    for i, node in enumerate(graph.node[:-1]):
        alive |= set(node.output)
        alive = {name for name in alive if last_use.get(name, -1) > i}
        if len(alive) == 1 and node.op_type != "Constant":
            (name,) = alive
            if name in node.output:
                found[name] = i + 1
    return found


def choose_cut_points(model: onnx.ModelProto, parts: int) -> list[str]:
    """Return the cut points that split a model into parts of about the same number of nodes.

    Raises
    ------
    ValueError
        Fewer than two parts, or too few cut points.
    """
    possible, nodes = cut_points(model), len(model.graph.node)
    if parts < 2 or len(possible) < parts - 1:
        raise ValueError(
            f"Unable to split into {parts} parts: there are {len(possible)} cut points."
        )
    chosen: list[str] = []
    for part in range(1, parts):
        left = [name for name in possible if name not in chosen]
        chosen.append(min(left, key=lambda name: abs(possible[name] - nodes * part / parts)))
    return chosen


def split(model: onnx.ModelProto, cuts: Sequence[str]) -> list[onnx.ModelProto]:
    """Return the parts of a model between some of its `cut_points`.

    The output of each part is the input of the next.

    Raises
    ------
    ValueError
        A name where the model cannot be cut.
    """
    possible = cut_points(model)
    for name in cuts:
        if name not in possible:
            raise ValueError(f"Unable to split at {name!r}, only at {[*possible]}.")
    borders = [None, *sorted(cuts, key=lambda name: possible[name]), None]
    return [
        select(model, outputs=last, inputs=first) for first, last in itertools.pairwise(borders)
    ]


def weights_as_inputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Return a model with some initializers as inputs, after the others and in this order.

    Raises
    ------
    ValueError
        A name that is not an initializer.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    by_name = {init.name: init for init in model.graph.initializer}
    for name in names:
        if name not in by_name:
            raise ValueError(f"Unable to find initializer {name!r} in {sorted(by_name)}.")
    result.graph.ClearField("initializer")
    result.graph.initializer.extend(i for i in model.graph.initializer if i.name not in names)
    known = {value.name for value in result.graph.input}
    result.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, by_name[name].data_type, [*by_name[name].dims])
        for name in names
        if name not in known
    )
    return result


def name_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a traced model with its constants as initializers, named like those of mlprodict.

    They are numbered from the output backwards: for each node, those of its computed inputs, the
    last one first, then its own; equal constants share an initializer. Steps of 1 of a Slice and a
    final Identity are removed.
    """
    graph = model.graph
    constants = {
        node.output[0]: onnx.numpy_helper.to_array(node.attribute[0].t)
        for node in graph.node
        if node.op_type == "Constant"
    }
    nodes = [node for node in graph.node if node.op_type != "Constant"]
    for node in nodes:
        if node.op_type == "Slice" and len(node.input) == 5:
            steps = constants.get(node.input[4])
            if steps is not None and np.all(steps == 1):
                del node.input[4]
    nodes = _without_last_identity(nodes)
    names = _names_of(nodes, constants, graph.output[0].name)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    result.graph.ClearField("node")
    seen: dict[str, str] = {}
    for node in nodes:
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)
        result.graph.node.append(node)
    for name, new in sorted(names.items(), key=lambda item: item[1]):
        if new not in seen:
            seen[new] = name
            tensor = onnx.numpy_helper.from_array(constants[name], new)
            result.graph.initializer.append(tensor)
    return result


def _without_last_identity(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    last = nodes[-1]
    before = nodes[-2] if len(nodes) > 1 else last
    if last.op_type != "Identity" or list(last.input) != list(before.output):
        return nodes
    readers = sum(name == last.input[0] for node in nodes for name in node.input)
    if readers == 1:
        before.output[0] = last.output[0]
        return nodes[:-1]
    return nodes


def _names_of(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray[Any, Any]], output: str
) -> dict[str, str]:
    made = {name: node for node in nodes for name in node.output}
    names: dict[str, str] = {}
    values: dict[Any, str] = {}
    visited: set[int] = set()
    count = 0

    def visit(node: onnx.NodeProto) -> None:
        nonlocal count
        if id(node) in visited:
            return
        visited.add(id(node))
        for name in reversed(node.input):
            if name in made:
                visit(made[name])
        for name in node.input:
            if name not in constants or name in names:
                continue
            array = constants[name]
            key = (array.dtype.str, array.shape, array.tobytes())
            # b and c keep names with more digits in alphabetical order.
            letter = "" if count < 10 else "b" if count < 100 else "c"
            fresh = "init" if count == 0 else f"init_{letter}{count}"
            names[name] = values.setdefault(key, fresh)
            count += 1

    visit(made[output])
    return names


def _names(names: str | Sequence[str] | None, default: list[str]) -> list[str]:
    if names is None:
        return default
    return [names] if isinstance(names, str) else list(names)


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
            for i, name in enumerate(field):
                field[i] = table.get(name, name)
        for body in subgraphs(node):
            # A body reads values of the outer graph by name, so these are always replaced.
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


def all_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all values of a graph and its subgraphs."""
    names = {value.name for value in [*graph.input, *graph.output, *graph.initializer]}
    for node in graph.node:
        names |= {*node.input, *node.output}
        for body in subgraphs(node):
            names |= all_names(body)
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
            for body in subgraphs(node):
                _rewrite(body, op_type, sub, recursive, taken)
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
