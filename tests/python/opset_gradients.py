"""Gradients of the operators' cases (test_op_cases) in older operator sets, in stock onnxruntime.

A gradient that is written for an opset runs in onnxruntime with the values of ours, or it is an
error that names the operator which that opset lacks.
"""

import re
import warnings
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
    r"(?P<operator>\w+) node.*(does not exist in opset|which the target opset cannot express|"
    r"cannot be written in opset)"
)
RANDOM = ("draw", "dropout")


def floating_inputs(model: onnx.ModelProto) -> list[str]:
    return [
        value.name
        for value in model.graph.input
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    ]


def feeds_of(case: Any, model: onnx.ModelProto) -> dict[str, np.ndarray]:
    names = [value.name for value in model.graph.input]
    return dict(zip(names, case.tensors("inputs"), strict=True))


class RefusedError(Exception):
    """The opset lacks something; `operator` is what the message names."""

    def __init__(self, operator: str, text: str) -> None:
        super().__init__(text)
        self.operator = operator


def written(model: onnx.ModelProto, opset: int, is_inlined: bool) -> onnx.ModelProto:
    try:
        return og.gradient(
            model,
            floating_inputs(model),
            fill_grad=True,
            target_opset=opset,
            inline=is_inlined or opset < FIRST_WITH_FUNCTIONS,
        )
    except og.ModelError as error:
        text = str(error).splitlines()[0]
        found = REFUSAL.search(text)
        assert found, f"opset {opset}: {text}"
        raise RefusedError(found["operator"], text) from error


def chosen(all_cases: dict[str, list[Any]]) -> Iterator[tuple[Any, int]]:
    """Each case with a gradient in two opsets, all of them in turn."""
    number = 0
    for stem, some in all_cases.items():
        if stem in RANDOM:
            continue
        for case in some:
            if case.entry["dtype"] != "float32" or not case.entry["gradient"]:
                continue
            for _ in range(2):
                yield case, OPSETS[number * 7 % len(OPSETS)]
                number += 1


def values(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    names = [value.name for value in model.graph.input]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return og.InferenceSession(model, threads=1).run(None, {n: feeds[n] for n in names})
