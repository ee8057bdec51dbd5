"""Branches: known ones, those that do not fit, what they compile and what is kept of it."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og
from dynamic_models import KINDS

ISSUE = """
<ir_version: 10, opset_import: ["" : 18]>
small (float[N, 3] x) => (float[N, 2] y)
<float[3, 2] a = {0.5, -0.25, 0.125, 1, -1, 0.75}, float none = {0}>
{
  h = MatMul(x, a)
  s = ReduceSum<keepdims = 0>(x)
  c = Greater(s, none)
  y = If (c) <then_branch = t () => (float[N, 2] ht) { ht = Relu(h) },
              else_branch = e () => (float[N, 2] he) { he = Tanh(h) }>
}
"""

MISFIT = """
<ir_version: 10, opset_import: ["" : 18]>
misfit (float[2, 3] x, bool c) => (float[2, 3] y)
<float[3] w = {1, 2, 3}, float[4] long = {1, 1, 1, 1}>
{
  y = If (c) <then_branch = t () => (float[2, 3] a) { a = Mul(x, w) },
              else_branch = e () => (float[2, 3] b) { [wrong] q = Add(x, long)  b = Mul(q, w) }>
}
"""

CHOSEN_BY_DEFAULT = """
<ir_version: 10, opset_import: ["" : 18]>
chosen (float[N, 3] x, bool c) => (float[P, Q] y)
<bool c = {1}, float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, int64[1] last = {-1}>
{
  h = MatMul(x, w)
  y = If (c) <then_branch = t () => (float[N, 3] a) { a = Tanh(h) },
              else_branch = e () => (float[M] b) { b = Reshape(h, last) }>
}
"""


def batch(rows=32, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 1, (rows, 3)).astype(np.float32), rng.integers(0, 3, rows)


@pytest.mark.parametrize("kind", ["if_then", "nonzero", "ifs_on_data", "normalization_in_if"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fresh_labels_compile_nothing(kind, optimizer):
    model = KINDS[kind].build("float32", 3)
    session = og.TrainingSession(model, "softmax_cross_entropy", optimizer)
    x, y = batch()
    session.step({"x": x, "label": y})
    compiled = session.num_compiled
    assert compiled > 1  # nodes after the branch count
    for seed in range(5):
        session.step({"x": x, "label": batch(seed=seed)[1]})
    assert session.num_compiled == compiled
    session.step({"x": x[:7], "label": y[:7]})
    assert session.num_compiled > compiled


def test_kept_plans_are_bounded_and_counted():
    model = KINDS["selected"].build("float32", 3)
    session = og.TrainingSession(model, "softmax_cross_entropy", "adam")
    x, y = batch(rows=100)
    seen = []
    for rows in range(1, 101):
        signs = np.where(np.arange(100)[:, None] < rows, 1, -1).astype(np.float32)
        session.step({"x": x * signs, "label": y[:rows]})
        seen.append((session.num_cached, session.memory().dynamic))
    assert session.num_compiled > 100
    assert max(cached for cached, _ in seen) <= 128
    # Plans that are kept last are of larger batches than plans that were dropped.
    assert 0 < seen[0][1] < seen[70][1] < seen[-1][1] < 3 * seen[70][1]
    memory = session.memory()
    assert memory.total == sum(part for part in memory if isinstance(part, (int, float)))


def test_a_plain_model_has_no_such_plans():
    session = og.TrainingSession(KINDS["plain"].build("float32", 3), "softmax_cross_entropy")
    x, y = batch()
    session.step({"x": x, "label": y})
    assert (session.num_compiled, session.num_cached, session.memory().dynamic) == (1, 1, 0)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
def test_trainer_trains_an_if_with_its_defaults(options):
    x, _ = batch(64)
    y = np.column_stack([x.sum(axis=1), x[:, 0]])
    trainer = og.Trainer(onnx.parser.parse_model(ISSUE), "mse", lr=0.05, **options)
    trainer.fit(x, y, epochs=60, batch_size=16, verbose=False)
    assert trainer.history["train_loss"][-1] < 0.2 * trainer.history["train_loss"][0]


@pytest.mark.parametrize("kind", ["if_known", "ifs_known"])
def test_known_branches_are_gone_from_what_is_written(kind):
    model = KINDS[kind].build("float32", 3)
    step = og.training_step(model, "softmax_cross_entropy", "adam", inline=True)
    assert "If" in {node.op_type for node in model.graph.node}
    assert "If" not in {node.op_type for node in step.graph.node}
    session = og.TrainingSession(model, "softmax_cross_entropy", "adam")
    x, y = batch()
    session.step({"x": x, "label": y})
    assert session.num_compiled == 1
    # The file that is returned has its branches still.
    assert "If" in {node.op_type for node in session.trained_model().graph.node}


def test_a_default_decides_in_training():
    model = onnx.parser.parse_model(CHOSEN_BY_DEFAULT)
    x, y = batch()
    session = og.TrainingSession(model, "softmax_cross_entropy", "sgd")
    loss = session.step({"x": x, "label": y})
    scores = np.tanh(x @ np.arange(1, 10, dtype=np.float32).reshape(3, 3)).astype(np.float64)
    log_sums = np.log(np.exp(scores).sum(axis=1))
    assert loss == pytest.approx(np.mean(log_sums - scores[np.arange(32), y]), rel=1e-6)
    assert session.num_compiled == 1


def test_a_branch_that_does_not_fit_is_an_error_only_when_it_is_taken():
    model = onnx.parser.parse_model(MISFIT)
    x = batch(2)[0]
    w = np.array([1, 2, 3], np.float32)
    session = og.InferenceSession(model)
    np.testing.assert_array_equal(session.run(None, {"x": x, "c": np.array(True)})[0], x * w)
    with pytest.raises(og.ShapeError, match="wrong"):
        session.run(None, {"x": x, "c": np.array(False)})
    layer = og.ForwardBackward(model, weights=["w"])
    outputs = layer.forward({"x": x, "c": np.array(True)})
    seed = np.ones((2, 3), np.float32)
    gradients = layer.backward([seed])
    np.testing.assert_allclose(gradients.weights["w"], x.sum(axis=0), rtol=1e-6)
    np.testing.assert_allclose(gradients.inputs["x"], np.tile(w, (2, 1)))
    np.testing.assert_array_equal(outputs[0], x * w)


@pytest.mark.parametrize("from_shape", [False, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_affine_grid(dims, from_shape):
    """Its definition has branches for pictures and for volumes; one of them never fits."""
    size = [2, 1, *range(6 - dims, 6)]
    numbers, axes = (", ".join(map(str, values)) for values in (size, range(1, dims + 2)))
    sizes = "size = Shape(image)" if from_shape else "size = Identity(given)"
    image = ", ".join("N" if i == 0 else str(n) for i, n in enumerate(size))
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        grids (float[2, {dims}, {dims + 1}] theta, float[{image}] image)
          => (float[2, {", ".join("abc"[:dims])}, {dims}] grid, float[N] same)
        <int64[{dims + 2}] given = {{{numbers}}}, int64[{dims + 1}] axes = {{{axes}}}>
        {{
          {sizes}
          grid = AffineGrid(theta, size)
          same = ReduceSum<keepdims = 0>(image, axes)
        }}"""
    )
    rng = np.random.default_rng(3)
    feeds = {
        "theta": rng.normal(size=(2, dims, dims + 1)).astype(np.float32),
        "image": rng.normal(size=size).astype(np.float32),
    }
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    found = og.InferenceSession(model).run(None, feeds)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)
    # The grid is linear in theta: <seed, grid(theta)> = <gradient, theta>.
    layer = og.ForwardBackward(model, inputs=["theta"])
    layer.forward(feeds)
    seed = rng.normal(size=wanted[0].shape).astype(np.float32)
    gradient = layer.backward([seed, None]).inputs["theta"]
    assert np.sum(gradient * feeds["theta"]) == pytest.approx(np.sum(seed * wanted[0]), rel=1e-4)


@pytest.mark.parametrize(
    "kind", ["int8", "uint8", "int16", "uint16", "uint32", "uint64", "float16", "double"]
)
def test_one_hot_with_a_depth_of_any_type_that_is_fed(kind):
    model = onnx.parser.parse_model(f"""
      <ir_version: 10, opset_import: ["" : 21]>
      m (int64[N] x, {kind}[1] depth) => (float[N, D] y) <float[2] v = {{0, 1}}>
      {{ y = OneHot (x, depth, v) }}
    """)
    dtype = np.dtype("float64" if kind == "double" else kind)
    session = og.InferenceSession(model)
    for depth in (3, 5):
        (y,) = session.run(None, {"x": np.array([0, 2, -1]), "depth": np.array([depth], dtype)})
        np.testing.assert_array_equal(y, np.eye(depth)[[0, 2, depth - 1]])


@pytest.mark.parametrize("reduction", ["ReduceSum", "ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradient_through_tiles_of_a_reduction_whose_axes_are_fed(reduction, axis):
    model = onnx.parser.parse_model(f"""
      <ir_version: 10, opset_import: ["" : 21]>
      m (float[N, 3] x, int64[1] axes) => (float[R, C] y) <float[3, 2] w = {{1, 2, 3, 4, 5, 6}}>
      {{
        p = MatMul (x, w)
        s = {reduction} <keepdims = 1> (p, axes)
        r = Constant <value_ints = [2, 3]> ()
        y = Tile (s, r)
      }}
    """)
    rng = np.random.default_rng(axis)
    x, w = rng.normal(size=(4, 3)), np.arange(1.0, 7.0).reshape(3, 2)
    p = x @ w
    function = {"ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max}[reduction]
    y = np.tile(function(p, axis, keepdims=True), (2, 3))
    dy = rng.normal(size=y.shape)
    ds = dy.reshape(2, y.shape[0] // 2, 3, y.shape[1] // 3).sum((0, 2))
    slopes = {"ReduceSum": np.ones_like(p), "ReduceMean": np.full_like(p, 1 / p.shape[axis])}
    slope = slopes.get(reduction, (p == p.max(axis, keepdims=True)).astype(float))
    feeds = {"x": x, "axes": np.array([axis]), "w": w, "y_grad": dy}
    session = og.InferenceSession(og.gradient(model, wrt="w"))
    given = {
        one.name: feeds[one.name] if one.name == "axes" else feeds[one.name].astype(np.float32)
        for one in session.get_inputs()
    }
    (found,) = session.run(["w_grad"], given)
    np.testing.assert_allclose(found, x.T @ (slope * ds), rtol=1e-4, atol=1e-5)
