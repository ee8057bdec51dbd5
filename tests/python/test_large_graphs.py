"""Very large graphs: very wide nodes, very long chains, very many states."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxgrad as og

FLOAT = onnx.TensorProto.FLOAT


def model_of(nodes, outputs, inputs=("x",), weights=()):
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info(name, FLOAT, ["N", 3]) for name in inputs],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


REDUCTIONS = {"Sum": np.sum, "Mean": np.mean, "Max": np.max, "Min": np.min}


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_thousands_of_terms(kind):
    """x w_i through Relu, all in one node: more than one program may have instructions."""
    rng = np.random.default_rng(0)
    count = 2100
    w = rng.uniform(0.5, 1.5, (count, 3)).astype(np.float32)
    nodes = [helper.make_node("Split", ["w", "parts"], [f"w{i}" for i in range(count)], axis=0)]
    for i in range(count):
        nodes.append(helper.make_node("Mul", ["x", f"w{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Relu", [f"p{i}"], [f"r{i}"]))
    nodes.append(helper.make_node(kind, [f"r{i}" for i in range(count)], ["y"]))
    parts = np.ones(count, np.int64)
    model = model_of(nodes, ["y"], weights=[("w", w), ("parts", parts)])
    x = rng.normal(size=(2, 3)).astype(np.float32)
    terms = np.maximum(x[None] * w[:, None].astype(np.float64), 0)
    y = REDUCTIONS[kind](terms, axis=0)
    assert og.InferenceSession(model).run(None, {"x": x})[0] == pytest.approx(y, rel=1e-5)

    gradient = og.gradient(model, wrt=["w"], outputs=["y"], fill_grad=True)
    (found,) = og.InferenceSession(gradient).run(None, {"x": x, "w": w})
    share = (terms == y) / (terms == y).sum(axis=0) if kind in ("Max", "Min") else terms > 0
    expected = np.where(terms > 0, share * x, 0) / (count if kind == "Mean" else 1)
    assert found == pytest.approx(expected.sum(axis=1), rel=1e-5, abs=1e-7)


def test_wide_concat_and_split():
    count = 1500
    nodes = [helper.make_node("Split", ["x", "parts"], [f"s{i}" for i in range(count)], axis=0)]
    nodes += [helper.make_node("Neg", [f"s{i}"], [f"n{i}"]) for i in range(count)]
    nodes.append(helper.make_node("Concat", [f"n{i}" for i in range(count)], ["y"], axis=0))
    model = model_of(nodes, ["y"], weights=[("parts", np.ones(count, np.int64))])
    x = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    (y,) = og.InferenceSession(model).run(None, {"x": x})
    np.testing.assert_array_equal(y, -x)
    gradient = og.gradient(model, wrt=["x"], outputs=["y"])
    (found,) = og.InferenceSession(gradient).run(None, {"x": x, "y_grad": x})
    np.testing.assert_array_equal(found, -x)


def chain(length):
    """Alternately w x + x / 2, and what every tenth node adds from far back."""
    nodes = []
    last = "x"
    for i in range(length):
        other = "x" if i % 10 == 0 else "w"
        nodes.append(helper.make_node(("Mul", "Add")[i % 2 == 0], [last, other], [f"v{i}"]))
        last = f"v{i}"
    w = np.array([0.5, -0.25, 0.125], np.float32)
    return model_of(nodes, [last], weights=[("w", w)]), w


def test_long_chain():
    length = 4000
    model, w = chain(length)
    x = np.array([[1.0, 2.0, -1.0]], np.float32)
    expected, slope, exact = x.astype(np.float64), np.zeros((1, 3)), w.astype(np.float64)
    for i in range(length):
        other, change = (x, 0) if i % 10 == 0 else (exact, 1)
        if i % 2 == 0:
            expected, slope = expected + other, slope + change
        else:
            expected, slope = expected * other, slope * other + expected * change
    gradient = og.gradient(
        model, wrt=["w"], outputs=[f"v{length - 1}"], fill_grad=True, keep_outputs=True
    )
    found, y = og.InferenceSession(gradient).run(None, {"x": x, "w": w})
    assert y == pytest.approx(expected, rel=1e-5)
    assert found == pytest.approx(slope.sum(axis=0), rel=1e-5)


def test_every_value_of_a_chain_is_an_output():
    count = 2000
    nodes = [helper.make_node("Identity", ["x"], ["v0"])]
    for i in range(1, count):
        kind = ("Identity", "Neg", "Relu")[i % 3]
        nodes.append(helper.make_node(kind, [f"v{i - 1}"], [f"v{i}"]))
    model = model_of(nodes, [f"v{i}" for i in range(count)])
    x = np.array([[1.0, -2.0, 0.0]], np.float32)
    results = og.InferenceSession(model).run(None, {"x": x})
    last = x
    for i, found in enumerate(results):
        last = last if i % 3 == 0 else -last if i % 3 == 1 else np.maximum(last, 0)
        np.testing.assert_array_equal(found, last)
