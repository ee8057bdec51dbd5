"""Optimizers of a network that is large enough for blocked products, against PyTorch's values."""

from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import pytest
from onnx import numpy_helper

import onnxgrad as og
from large_problem import KEPT, SHAPES, STEPS, make_large_problem, projected
from onnxgrad import optimizers as opt

DATA = Path(__file__).resolve().parents[1] / "data" / "optimizers" / "large.npz"

CASES = {
    "sgd": opt.SGD(0.5),
    "momentum": opt.SGD(0.1, momentum=0.9),
    "nesterov": opt.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": opt.Adam(0.005),
    "adamw": opt.AdamW(0.005, weight_decay=0.1),
    "adagrad": opt.Adagrad(0.02),
    "rmsprop": opt.RMSProp(0.002),
}


def network(weights, dtype):
    """Y = tanh(X W0 + b0) W1 + b1."""
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        onnx.helper.make_node(kind, inputs, [output])
        for kind, inputs, output in (
            ("MatMul", ["X", "W0"], "m0"),
            ("Add", ["m0", "b0"], "a0"),
            ("Tanh", ["a0"], "h"),
            ("MatMul", ["h", "W1"], "m1"),
            ("Add", ["m1", "b1"], "Y"),
        )
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "network",
        [onnx.helper.make_tensor_value_info("X", element, ["N", 100])],
        [onnx.helper.make_tensor_value_info("Y", element, ["N", 10])],
        [numpy_helper.from_array(array.astype(dtype), name) for name, array in weights.items()],
    )
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_fifty_steps_of_a_network_end_where_torch_ends(name, dtype):
    x, y, weights = make_large_problem()
    session = og.TrainingSession(network(weights, dtype), "squared_error", CASES[name])
    kept = []
    for step in range(STEPS):
        session.step({"X": x[step].astype(dtype), "label": y[step].astype(dtype)})
        if step + 1 in KEPT:
            state = session.state()
            kept.append(projected({weight: state[weight] for weight in SHAPES}))
    with np.load(DATA) as stored:
        expected = stored[name]
    error = np.abs(np.array(kept) - expected).max() / np.abs(expected).max()
    assert error <= (1e-12 if dtype == "float64" else 1e-5)
