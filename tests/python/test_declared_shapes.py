"""Shapes that a file declares for computed values are hints: what is fed determines them.

Stock onnxruntime computes the expected outputs. Operators here are linear in x, so that a gradient
is right if <gradient, v> = <seed, operator(v)> for any v, where onnxruntime computes the operator.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


class Fed(NamedTuple):
    """A node that reads sizes from an input, and what the file declares for its output."""

    op: str
    x: tuple[int, ...]
    declared: list[int]
    sizes: dict[str, Any]
    inputs: tuple[str, ...] = ("x", "r")
    attributes: Mapping[str, Any] = MappingProxyType({})
    opset: int = 21
    constants: Mapping[str, Any] = MappingProxyType({})


def ints(*values):
    return np.array(values, np.int64)


LINEAR = [
    Fed("Reshape", (2, 6), [3, 4], {"r": ints(4, 3)}),
    Fed("Reshape", (2, 6), [3, 4], {"r": ints(-1, 2, 3)}),
    Fed("Expand", (3, 1), [3, 4], {"r": ints(3, 2)}),
    Fed("Tile", (2, 3), [4, 3], {"r": ints(1, 2)}),
    Fed("Unsqueeze", (3, 4), [3, 1, 4], {"r": ints(0)}),
    Fed("Squeeze", (1, 3, 1, 5), [1, 3, 5], {"r": ints(0)}),
    Fed("Slice", (4, 5), [2, 5], {"r": ints(1), "s": ints(4)}, ("x", "r", "s")),
    Fed("Pad", (2, 3), [3, 3], {"r": ints(0, 1, 2, 0)}),
    Fed("ReduceSum", (2, 3, 4), [1, 3, 4], {"r": ints(1, 2)}),
    Fed("ReduceMean", (2, 3), [2, 1], {"r": ints(0)}, attributes={"keepdims": 0}),
    Fed("CenterCropPad", (4, 6), [2, 2], {"r": ints(3, 8)}),
    Fed("Col2Im", (1, 4, 9), [1, 1, 2, 18], {"r": ints(4, 4), "s": ints(2, 2)}, ("x", "r", "s")),
    Fed(
        "Resize",
        (1, 1, 2, 3),
        [1, 1, 2, 3],
        {"r": ints(1, 1, 4, 5)},
        ("x", "", "", "r"),
        {"mode": "linear"},
    ),
    Fed(
        "Resize",
        (1, 1, 2, 3),
        [1, 1, 2, 3],
        {"r": np.array([1, 1, 2, 2], np.float32)},
        ("x", "", "r"),
    ),
    Fed("Upsample", (1, 1, 2, 3), [1, 1, 2, 3], {"r": np.array([1, 1, 2, 2], np.float32)}, opset=9),
    Fed("OneHot", (2,), [2, 4], {"r": np.array(3)}, ("i", "r", "x"), constants={"i": ints(0, 2)}),
    Fed("AffineGrid", (1, 2, 3), [1, 2, 2, 2], {"r": ints(1, 1, 3, 4)}),
]

OTHERS = [
    Fed("ConstantOfShape", (), [4, 3], {"r": ints(2, 2)}, ("r",)),
    Fed(
        "Range",
        (),
        [4],
        {"a": np.array(0), "b": np.array(6), "c": np.array(2)},
        ("a", "b", "c"),
    ),
    Fed("TopK", (2, 5), [2, 4], {"r": ints(2)}),
]


def name_of(case):
    return f"{case.op}-{'x'.join(map(str, next(iter(case.sizes.values())).ravel()))}"


def model_of(case, place, weight=False):
    """`place`: where the shape is declared; `weight`: x is multiplied by a weight first."""
    nodes = []
    inputs = list(case.inputs)
    weights = [numpy_helper.from_array(value, name) for name, value in case.constants.items()]
    if weight:
        nodes.append(helper.make_node("Mul", ["x", "w"], ["scaled"]))
        inputs[inputs.index("x")] = "scaled"
        weights.append(numpy_helper.from_array(np.full(case.x, 0.5, np.float32), "w"))
    results = ["y", "places"] if case.op == "TopK" else ["y"]
    nodes.append(helper.make_node(case.op, inputs, results, "sized", **case.attributes))
    formals = [helper.make_tensor_value_info("x", FLOAT, case.x)] if "x" in case.inputs else []
    formals += [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in case.sizes.items()
    ]
    element = INT if case.op == "Range" else FLOAT
    declared = helper.make_tensor_value_info("y", element, case.declared)
    output, infos = declared, []
    if place == "value_info":
        nodes.append(helper.make_node("Identity", ["y"], ["z"]))
        output, infos = helper.make_tensor_value_info("z", element, None), [declared]
    graph = helper.make_graph(nodes, "g", formals, [output], weights, value_info=infos)
    return helper.make_model(
        graph, ir_version=8, opset_imports=[helper.make_opsetid("", case.opset)]
    )


def stock(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def values(rng, shape):
    return rng.standard_normal(shape).astype(np.float32)


def feeds_of(case, x):
    return case.sizes | ({"x": x} if "x" in case.inputs else {})


@pytest.mark.parametrize("place", ["output", "value_info"])
@pytest.mark.parametrize("case", [*LINEAR, *OTHERS], ids=name_of)
def test_fed_sizes_determine_the_shape(case, place):
    model = model_of(case, place)
    feeds = feeds_of(case, values(np.random.default_rng(1), case.x))
    expected = stock(model).run(None, feeds)[0]
    session = og.InferenceSession(model)
    for _ in range(2):
        (found,) = session.run(None, feeds)
        assert found.shape == expected.shape != tuple(case.declared)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", ["output", "value_info"])
@pytest.mark.parametrize("case", LINEAR, ids=name_of)
def test_gradients_follow_fed_sizes(case, place):
    rng = np.random.default_rng(2)
    model = model_of(case, place)
    feeds = feeds_of(case, values(rng, case.x))
    forward = stock(model)
    y = forward.run(None, feeds)[0]
    seed, v = values(rng, y.shape), values(rng, case.x)
    expected = np.sum(seed * forward.run(None, feeds | {"x": v})[0], dtype=np.float64)

    written = og.gradient(model, ["x"], inline=True)
    (by_stock,) = stock(written).run(
        ["x_grad"], feeds | {f"{model.graph.output[0].name}_grad": seed}
    )
    passes = og.ForwardBackward(model, inputs=["x"])
    passes.forward(feeds)
    for found in (by_stock, passes.backward([seed]).inputs["x"]):
        assert found.shape == case.x
        assert np.sum(found * v, dtype=np.float64) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("case", LINEAR, ids=name_of)
def test_training_follows_fed_sizes(case):
    rng = np.random.default_rng(3)
    model = model_of(case, "output", weight=True)
    feeds = feeds_of(case, values(rng, case.x))
    forward = stock(model_of(case, "output"))
    target = values(rng, forward.run(None, feeds | {"x": feeds["x"] * 0.5})[0].shape)

    def loss(w):
        return np.mean((forward.run(None, feeds | {"x": feeds["x"] * w})[0] - target) ** 2.0)

    session = og.TrainingSession(
        model,
        og.losses.SquaredError(output="y"),
        "sgd:lr=1",
        trainable=["w"],
        outputs=["w_grad"],
        open_batch=False,  # w has a number for each row
    )
    total, (gradient,) = session.step(feeds | {session.target_name: target})
    w = np.full(case.x, 0.5, np.float32)
    assert float(total) == pytest.approx(loss(w), rel=1e-4)
    v = values(rng, case.x)
    slope = (loss(w + 0.05 * v) - loss(w - 0.05 * v)) / 0.1  # exact for a quadratic
    assert np.sum(gradient * v) == pytest.approx(slope, rel=2e-3, abs=1e-4)


STALE = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] X) => (float[1, 3] y)
<float[4, 8] w, int64[2] s = {-1, 8}, float[8, 3] w2>
{ h = MatMul(X, w)  r = Reshape(h, s)  y = MatMul(r, w2) }
"""


def stale_model(shape):
    """`shape`: of the Reshape, with a -1."""
    rng = np.random.default_rng(4)
    model = onnx.parser.parse_model(STALE)
    arrays = {"w": values(rng, (4, 8)), "s": ints(*shape), "w2": values(rng, (shape[1], 3))}
    del model.graph.initializer[:]
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return model


@pytest.mark.parametrize("shape", [(-1, 8), (-1, 4)], ids=["same_rows", "twice_the_rows"])
def test_a_declared_example_of_the_output_gives_way(shape):
    rng = np.random.default_rng(5)
    model = stale_model(shape)
    X = values(rng, (5, 4))
    expected = stock(model).run(None, {"X": X})[0]
    np.testing.assert_allclose(og.InferenceSession(model).run(None, {"X": X})[0], expected, 1e-4)
    passes = og.ForwardBackward(model, inputs=["X"])
    seed = values(rng, expected.shape)
    np.testing.assert_allclose(passes.forward({"X": X})[0], expected, 1e-4)
    gradient = passes.backward([seed]).inputs["X"]
    by_stock = stock(og.gradient(model, ["X"], inline=True)).run(None, {"X": X, "y_grad": seed})[0]
    np.testing.assert_allclose(gradient, by_stock, 1e-4, 1e-5)

    session = og.TrainingSession(model, "mse", "sgd:lr=0.01")
    losses = [session.step({"X": X, session.target_name: expected * 0}) for _ in range(3)]
    assert losses[2] < losses[0]
    written = stock(og.training_step(model, "mse", "sgd"))
    assert [i.shape for i in written.get_inputs() if i.name.startswith("y")] != [[1, 3]]


def test_a_fit_takes_any_number_of_rows():
    rng = np.random.default_rng(6)
    trainer = og.Trainer(stale_model((-1, 8)), "mse")
    trainer.fit(values(rng, (7, 4)), values(rng, (7, 3)), epochs=2, batch_size=3, verbose=0)
    assert trainer.predict(values(rng, (5, 4))).shape == (5, 3)
