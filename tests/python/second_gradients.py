"""Gradients of gradients of the operators' cases (test_op_cases), beside differences.

A case's gradient file, a function of its inputs and of the seeds, is differentiated again. Along a
random direction, the result must be the central difference of a random projection of the first
gradients, which test_op_cases and the C++ tests compare with others.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

import onnxgrad as og

PER_OPERATOR = 2  # cases, those with the fewest elements that have some
STEP = 1e-5
TOLERANCE = 1e-5
ROUNDED = 0.02  # where values pass float32 on their way: of the differences of steps of 1e-2


def own_operator(model: onnx.ModelProto) -> str:
    """The operator of the last node, after which its test is named."""
    return model.graph.node[-1].op_type


def size(case: Any) -> int:
    return sum(int(np.prod(entry["dims"])) for entry in case.entry["inputs"])


def _is_rounded(model: onnx.ModelProto) -> bool:
    return any(
        node.op_type == "Cast" and node.attribute[0].i == onnx.TensorProto.FLOAT
        for node in model.graph.node
    ) or any(node.domain == "ai.onnx.ml" for node in model.graph.node)


def by_operator(all_cases: dict[str, list[Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for some in all_cases.values():
        for case in some:
            if case.entry["dtype"] == "float64" and case.entry["gradient"] and size(case) > 1:
                found.setdefault(own_operator(case.model("model")), []).append(case)
    return {name: sorted(found[name], key=size)[:PER_OPERATOR] for name in sorted(found)}


def slope_error(case: Any) -> float:
    """The error of the second gradient along a direction, relative to slopes larger than 1.

    In units of what is tolerated.
    """
    model = case.model("gradient")
    names = [value.name for value in model.graph.input]
    arrays = case.tensors("inputs") + case.tensors("seeds")
    feeds = dict(zip(names, arrays, strict=True))
    first = len(model.graph.output) - len(case.entry["gradients"])
    outputs = [value.name for value in model.graph.output][first:]
    wrt = [name for name in names if feeds[name].dtype == np.float64]
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about zero gradients
        second = og.gradient(model, wrt, outputs)
    session, again = og.InferenceSession(model), og.InferenceSession(second)
    seeds = {
        f"{name}_grad": rng.uniform(-1, 1, np.shape(array))
        for name, array in zip(outputs, session.run(outputs, feeds), strict=True)
    }
    inputs = {value.name for value in second.graph.input}
    given = {name: array for name, array in (feeds | seeds).items() if name in inputs}
    gradients = dict(zip(wrt, again.run(None, given), strict=True))
    step, tolerance = (1e-2, ROUNDED) if _is_rounded(model) else (STEP, TOLERANCE)
    direction = {name: rng.uniform(-1, 1, feeds[name].shape) for name in wrt}

    def value(sign: int) -> float:
        moved = {name: feeds[name] + sign * step * direction[name] for name in wrt}
        results = session.run(outputs, feeds | moved)
        return sum(
            float(np.sum(array * seeds[f"{name}_grad"]))
            for name, array in zip(outputs, results, strict=True)
        )

    expected = (value(1) - value(-1)) / (2 * step)
    ours = sum(float(np.sum(gradients[name] * direction[name])) for name in wrt)
    return abs(ours - expected) / max(1.0, abs(expected)) / tolerance


def problems(some: list[Any]) -> Iterator[str]:
    for case in some:
        try:
            error = slope_error(case)
        except og.Error as message:
            yield f"{case.entry['name']}: {str(message).splitlines()[0]}"
            continue
        if not error <= 1:
            yield f"{case.entry['name']}: {error:.1e} times what is tolerated"
