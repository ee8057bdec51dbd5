"""Cutting a model into parts that run one after the other."""

from __future__ import annotations

import itertools

import onnx

from onnxgrad.compat.mlprodict.onnx_tools.onnx_manipulations import select_model_inputs_outputs

__all__ = ["split_onnx"]


def split_onnx(
    onnx_model: onnx.ModelProto, n_parts: int | None = None, cut_points: list[str] | None = None
) -> list[onnx.ModelProto]:
    """Return parts of a model; the outputs of each are the inputs of the next.

    Parameters
    ----------
    onnx_model : onnx.ModelProto
    n_parts : int, default=None
        Number of parts; they are cut where they have about the same number of nodes.
    cut_points : list of str, default=None
        In place of `n_parts`, names of values where all of the computation goes through.

    Raises
    ------
    ValueError
        Neither or both are given, or the model cannot be cut there.
    """
    if (n_parts is None) == (cut_points is None):
        raise ValueError("Give either n_parts or cut_points.")
    possible = _single_values(onnx_model.graph)
    if cut_points is None:
        assert n_parts is not None
        cut_points = _choose(possible, len(onnx_model.graph.node), n_parts)
    for name in cut_points:
        if name not in possible:
            raise ValueError(f"Unable to split at {name!r}, only at {[*possible]}.")
    ordered = sorted(cut_points, key=lambda name: possible[name])
    borders = [None, *ordered, None]
    return [
        select_model_inputs_outputs(onnx_model, outputs=last, inputs=first)
        for first, last in itertools.pairwise(borders)
    ]


def _single_values(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the values that everything after them depends on alone, with their places."""
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


def _choose(possible: dict[str, int], nodes: int, parts: int) -> list[str]:
    if parts < 2 or len(possible) < parts - 1:
        raise ValueError(
            f"Unable to split into {parts} parts: there are {len(possible)} places to cut."
        )
    chosen: list[str] = []
    for part in range(1, parts):
        left = [name for name in possible if name not in chosen]
        chosen.append(min(left, key=lambda name: abs(possible[name] - nodes * part / parts)))
    return chosen
