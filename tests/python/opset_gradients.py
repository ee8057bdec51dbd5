"""Gradients of the operators' cases (test_op_cases) in older operator sets, in stock onnxruntime.

A gradient that is written for an opset runs in onnxruntime with the values of ours, or it is an
error that names the operator which that opset lacks.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

import onnxgrad as og

OPSETS = range(9, 27)
FIRST_WITH_FUNCTIONS = 15
# "CumProd node 'y_node': this operator does not exist in opset 17", or
# "Resize node 'y_node': mode cubic, which the target opset cannot express".
REFUSAL = re.compile(
    r"(?P<operator>\w+) node.*(does not exist in opset|does not exist there|cannot express|"
    r"cannot be written in opset)"
)
# Operators whose cases are drawn, or of which onnxruntime takes no absent outputs.
LEFT_OUT = ("absent", "draw", "dropout")
# By the beginnings of their names: the first opset from which they are right.
RIGHT_FROM = {
    "one_hot.negative_and_outside": 11,  # indices beyond -depth are none, not from the end
    "roi_align.": 13,  # onnxruntime merges the shapes of branches that are never taken
    "slice.huge_step": 10,
}


def is_known(name: str, opset: int, not_in_onnxruntime: tuple[str, ...]) -> bool:
    """Return whether a case is not compared in this opset."""
    if name.split(".")[0] in LEFT_OUT or name.startswith(not_in_onnxruntime):
        return True
    return any(name.startswith(start) and opset < first for start, first in RIGHT_FROM.items())


def chosen(
    all_cases: dict[str, list[Any]], not_in_onnxruntime: tuple[str, ...]
) -> Iterator[tuple[Any, int]]:
    """Yield each case with a gradient and elements in one opset, all of these in turn."""
    number = 0
    for some in all_cases.values():
        for case in some:
            entry = case.entry
            is_empty = any(0 in one["dims"] for one in entry["inputs"] + entry["outputs"])
            if entry["dtype"] != "float32" or not entry["gradient"] or is_empty:
                continue
            opset = OPSETS[number * 7 % len(OPSETS)]
            number += 1
            if not is_known(entry["name"], opset, not_in_onnxruntime):
                yield case, opset


def compared(case: Any, opset: int, run: Any) -> str:
    """Return "same", or the operator that the opset lacks; raises AssertionError."""
    model = case.model("model")
    arrays = case.tensors("inputs")
    feeds = {value.name: array for value, array in zip(model.graph.input, arrays, strict=True)}
    wrt = [
        value.name
        for value in model.graph.input
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    ]
    if not wrt:
        return "same"
    gradient = og.gradient(model, wrt, fill_grad=True)
    try:
        older = og.gradient(
            model, wrt, fill_grad=True, target_opset=opset, inline=opset < FIRST_WITH_FUNCTIONS
        )
    except og.ModelError as error:
        text = str(error).splitlines()[0]
        found = REFUSAL.search(text)
        assert found, text
        return found["operator"]
    names = [value.name for value in gradient.graph.input]
    want = og.InferenceSession(gradient, threads=1).run(None, {n: feeds[n] for n in names})
    got = run(older, [feeds[value.name] for value in older.graph.input], "ORT_ENABLE_ALL")
    for a, b in zip(got, want, strict=True):
        scale = 1 + np.abs(b).max(initial=0)
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4 * scale)
    return "same"
