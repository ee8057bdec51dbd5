"""Dropout and BatchNormalization in training: by NumPy, and by the step in stock onnxruntime."""

import copy
import pickle

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og
from support import initializers

NORMALIZED = """
<ir_version: 8, opset_import: ["" : 17]>
normalized (float[N, 3] X) => (float[N, 2] Y)
<float[3] scale = {1, 2, 0.5}, float[3] bias = {0, 0.1, -0.2}, float[3] mean = {0.5, 0, 0},
 float[3] variance = {1, 2, 1}, float[3, 2] w = {1, 0, 0, 1, 1, 1}>
{
  n = BatchNormalization<momentum = 0.75, epsilon = 0.01>(X, scale, bias, mean, variance)
  Y = MatMul(n, w)
}
"""

DROPPED = """
<ir_version: 8, opset_import: ["" : 17]>
dropped (float[N, 100] X) => (float[N, 100] Y)
<float ratio = {0.25}, float[100] w = {%s}>
{ d = Dropout(X, ratio)  Y = Mul(d, w) }
""" % ", ".join("1" for _ in range(100))  # noqa: UP031 (braces)

OPTIONS = {"weights": "w", "input_gradients": False}


@pytest.fixture
def normalized():
    return onnx.parser.parse_model(NORMALIZED)


@pytest.fixture
def dropped():
    return onnx.parser.parse_model(DROPPED)


def data(rows=8, columns=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(1, 2, size=(rows, columns)).astype(np.float32)
    return X, rng.normal(size=(rows, 2)).astype(np.float32)


def normalize(x, scale, bias, mean, variance):
    return (x - mean) / np.sqrt(variance + 0.01) * scale + bias


def running(old, batch, momentum=0.75):
    return momentum * old + (1 - momentum) * batch


def test_a_step_takes_the_batch_statistics(normalized):
    X, y = data()
    before = initializers(normalized)
    session = og.TrainingSession(normalized, "squared_error", og.optimizers.SGD(lr=0.0))
    h = normalize(X, before["scale"], before["bias"], X.mean(axis=0), X.var(axis=0))
    expected = np.mean((h @ before["w"] - y) ** 2)
    assert session.step({"X": X, "label": y}) == pytest.approx(expected, rel=1e-5)
    state = session.state()
    np.testing.assert_allclose(state["mean"], running(before["mean"], X.mean(axis=0)), rtol=1e-5)
    np.testing.assert_allclose(
        state["variance"], running(before["variance"], X.var(axis=0)), rtol=1e-5
    )


def test_evaluation_and_file_are_in_inference_mode(normalized):
    X, y = data()
    session = og.TrainingSession(normalized, "squared_error", og.optimizers.SGD(lr=0.05))
    for seed in range(5):
        batch, target = data(seed=seed)
        session.step({"X": batch, "label": target})
    trained = session.trained_model()
    (node,) = [n for n in trained.graph.node if n.op_type == "BatchNormalization"]
    assert {a.name for a in node.attribute} == {"momentum", "epsilon"}
    assert len(node.output) == 1
    state, weights = session.state(), initializers(trained)
    for name in ("scale", "bias", "mean", "variance", "w"):
        np.testing.assert_array_equal(weights[name], state[name])
        assert not np.array_equal(weights[name], initializers(normalized)[name])
    expected = onnxruntime.InferenceSession(trained.SerializeToString()).run(None, {"X": X})[0]
    np.testing.assert_allclose(session.predict({"X": X})[0], expected, rtol=1e-5, atol=1e-6)
    loss = session.evaluate({"X": X, "label": y}).loss
    assert loss == pytest.approx(np.mean((expected - y) ** 2), rel=1e-5)


def test_the_step_in_onnxruntime_does_the_same(normalized):
    step = og.training_step(normalized, "squared_error", "adam")
    theirs = onnxruntime.InferenceSession(step.SerializeToString())
    session = og.TrainingSession(normalized, "squared_error", "adam")
    names = [output.name for output in theirs.get_outputs()]
    state = {}
    for seed in range(10):
        X, y = data(seed=seed)
        feeds = {"X": X, "label": y, "learning_rate": np.array(0.001, np.float32), **state}
        results = dict(zip(names, theirs.run(None, feeds), strict=True))
        state = {n.removeprefix("next/"): v for n, v in results.items() if n != "loss"}
        assert session.step({"X": X, "label": y}) == pytest.approx(results["loss"], rel=1e-5)
    for name, value in session.state().items():
        np.testing.assert_allclose(state[name], value, rtol=2e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("mode", "frozen", "is_on"),
    [
        ("auto", None, True),
        ("auto", ["scale", "bias"], False),
        ("auto", ["scale"], True),
        (True, ["scale", "bias"], True),
        (False, None, False),
    ],
)
def test_when_it_is_switched_on(normalized, mode, frozen, is_on):
    X, y = data()
    trainer = og.Trainer(normalized, "squared_error", training_mode=mode, frozen=frozen)
    trainer.fit(X, y, epochs=1, verbose=0)
    after = initializers(trainer.session.trained_model())
    before = initializers(normalized)
    assert np.array_equal(after["mean"], before["mean"]) != is_on


def test_freezing_keeps_the_statistics(normalized):
    session = og.TrainingSession(normalized, "squared_error", "adam")
    X, y = data()
    session.step({"X": X, "label": y})
    mean = session.state()["mean"].copy()
    session.freeze(["scale", "bias"])
    session.step({"X": X, "label": y})
    np.testing.assert_array_equal(session.state()["mean"], mean)
    np.testing.assert_array_equal(initializers(session.trained_model())["mean"], mean)
    session.unfreeze("scale")
    session.step({"X": X, "label": y})
    np.testing.assert_allclose(
        session.state()["mean"], running(mean, X.mean(axis=0)), rtol=1e-5, atol=1e-7
    )


def test_a_layer_used_twice_updates_twice():
    model = onnx.parser.parse_model(
        NORMALIZED.replace(
            "Y = MatMul",
            "n2 = BatchNormalization<momentum = 0.75, epsilon = 0.01>"
            "(n, scale, bias, mean, variance)  Y = MatMul",
        ).replace("MatMul(n, w)", "MatMul(n2, w)")
    )
    X, y = data()
    w = initializers(model)
    session = og.TrainingSession(model, "squared_error", og.optimizers.SGD(lr=0.0))
    session.step({"X": X, "label": y})
    first = running(w["mean"], X.mean(axis=0))
    h = normalize(X, w["scale"], w["bias"], X.mean(axis=0), X.var(axis=0))
    expected = running(first, h.mean(axis=0))
    np.testing.assert_allclose(session.state()["mean"], expected, rtol=1e-4, atol=1e-6)


def dropped_share(outputs):
    return np.mean(np.concatenate([np.ravel(y) for y in outputs]) == 0)


def test_dropout_drops_in_training_only(dropped):
    X = np.ones((50, 100), np.float32)
    layer = og.ForwardBackward(dropped, **OPTIONS, seed=3)
    np.testing.assert_array_equal(layer.forward([X], training=False)[0], X)
    (y,) = outputs = layer.forward([X])
    assert dropped_share([y]) == pytest.approx(0.25, abs=0.03)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    # The gradient goes where the value came from: d(sum y)/dw = sum of y / w over the rows.
    gradients = layer.backward(np.ones_like(y), context=outputs.context)
    np.testing.assert_allclose(gradients.weights["w"], y.sum(axis=0), rtol=1e-5)
    other = layer.forward([X])[0]
    assert not np.array_equal(other, y)
    again = og.ForwardBackward(dropped, **OPTIONS, seed=3).forward([X])[0]
    np.testing.assert_array_equal(again, y)
    assert not np.array_equal(og.ForwardBackward(dropped, **OPTIONS, seed=4).forward([X])[0], y)
    off = og.ForwardBackward(dropped, **OPTIONS, training_mode=False)
    np.testing.assert_array_equal(off.forward([X])[0], X)


def test_seeds_make_training_with_dropout_reproducible(dropped):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2, 40, 100)).astype(np.float32)

    def train(seed):
        trainer = og.Trainer(dropped, "squared_error", trainable="w", seed=seed)
        trainer.fit(X, y, epochs=3, batch_size=16, shuffle=False, verbose=0)
        return trainer.session.state()["w"]

    np.testing.assert_array_equal(train(5), train(5))
    assert not np.array_equal(train(5), train(6))


def test_forward_backward_updates_running_statistics(normalized):
    X, _ = data()
    before = initializers(normalized)
    layer = og.ForwardBackward(normalized)
    assert layer.weight_names == ["scale", "bias", "w"]
    layer.forward([X], training=False)
    np.testing.assert_array_equal(layer.weights["mean"], before["mean"])
    (y,) = layer.forward([X])
    h = normalize(X, before["scale"], before["bias"], X.mean(axis=0), X.var(axis=0))
    np.testing.assert_allclose(y, h @ before["w"], rtol=1e-4, atol=1e-5)
    gradients = layer.backward(np.ones_like(y))
    np.testing.assert_allclose(gradients.weights["w"], h.T @ np.ones_like(y), rtol=1e-4, atol=1e-4)
    mean = running(before["mean"], X.mean(axis=0))
    np.testing.assert_allclose(layer.weights["mean"], mean, rtol=1e-5)
    # Shifting all rows by the same number changes nothing in training mode.
    np.testing.assert_allclose(gradients.inputs["X"].sum(axis=0), 0, atol=1e-4)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(twin.weights["mean"], layer.weights["mean"])
    trained = initializers(layer.trained_model())
    np.testing.assert_array_equal(trained["mean"], layer.weights["mean"])


def test_steps_that_are_not_finite_are_skipped():
    model = onnx.parser.parse_model(NORMALIZED)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(12, 3)).astype(np.float32)
    y = rng.normal(size=(12, 2)).astype(np.float32)
    y[4:8] = 1e30  # the square of this is infinite
    trainer = og.Trainer(model, "squared_error", "adam")
    good = og.Trainer(model, "squared_error", "adam")
    trainer.fit(X, y, epochs=1, batch_size=4, shuffle=False, non_finite="skip", verbose=0)
    keep = np.r_[0:4, 8:12]
    good.fit(X[keep], y[keep], epochs=1, batch_size=4, shuffle=False, verbose=0)
    mine, theirs = trainer.session.state(), good.session.state()
    for name in theirs:
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-5, atol=1e-7, err_msg=name)
    assert trainer.session.steps == 3
    assert trainer.skipped_steps == 1
    assert good.skipped_steps == 0
    assert np.isfinite(trainer.history["train_loss"][-1])
    assert trainer.history["train_loss"][-1] == pytest.approx(good.history["train_loss"][-1])


def test_new_weights_that_are_not_finite_are_not_taken():
    session = og.TrainingSession(
        onnx.parser.parse_model(NORMALIZED),
        "squared_error",
        og.optimizers.SGD(lr=3e38),
        skip_non_finite=True,
    )
    X, y = data()
    before = session.state()
    assert np.isfinite(session.step({"X": X, "label": 100 * y}))
    for name, value in session.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_options_are_checked(normalized):
    with pytest.raises(og.OptionError, match="training_mode"):
        og.TrainingSession(normalized, training_mode="sometimes")
    with pytest.raises(og.OptionError, match="non_finite"):
        og.Trainer(normalized, "squared_error").fit(*data(), non_finite="maybe", verbose=0)


def test_an_epoch_of_skipped_steps_has_no_loss():
    X, y = np.random.default_rng(0).normal(size=(2, 40, 3)).astype(np.float32)
    model = onnx.parser.parse_model(NORMALIZED)
    trainer = og.Trainer(model, "squared_error", og.optimizers.SGD(lr=1e20))
    trainer.fit(X, y[:, :2], epochs=3, non_finite="skip", verbose=0)
    losses = trainer.history["train_loss"]
    assert np.isfinite(losses[0])
    assert np.all(np.isnan(losses[1:]))


BRANCHED = """
<ir_version: 8, opset_import: ["" : 17]>
branched (float[N, 3] X, bool flag) => (float[N, 2] Y)
<float[3] scale = {1, 2, 0.5}, float[3] bias = {0, 0.1, -0.2}, float[3] mean = {0.5, 0, 0},
 float[3] variance = {1, 2, 1}, float[3, 2] w = {1, 0, 0, 1, 1, 1}>
{
  h = If(flag) <
    then_branch = normalized () => (float[N, 3] a) {
      a = BatchNormalization<momentum = 0.75, epsilon = 0.01>(X, scale, bias, mean, variance)
    },
    else_branch = plain () => (float[N, 3] b) { b = Mul(X, scale) }
  >
  Y = MatMul(h, w)
}
"""


def test_batch_normalization_in_a_branch_keeps_statistics():
    model = onnx.parser.parse_model(BRANCHED)
    before = initializers(model)
    session = og.TrainingSession(model, "squared_error", og.optimizers.SGD(lr=0.0))
    mean, variance = before["mean"], before["variance"]
    for seed, flag in enumerate([True, False, True]):
        X, y = data(seed=seed)
        loss = session.step({"X": X, "flag": np.array(flag), "label": y})
        h = X * before["scale"]
        if flag:
            h = normalize(X, before["scale"], before["bias"], X.mean(axis=0), X.var(axis=0))
            mean, variance = running(mean, X.mean(axis=0)), running(variance, X.var(axis=0))
        assert loss == pytest.approx(np.mean((h @ before["w"] - y) ** 2), rel=1e-5)
        state = session.state()
        np.testing.assert_allclose(state["mean"], mean, rtol=1e-5)
        np.testing.assert_allclose(state["variance"], variance, rtol=1e-5)
    trained = initializers(session.trained_model())
    np.testing.assert_allclose(trained["mean"], mean, rtol=1e-5)


ITERATED = """
<ir_version: 8, opset_import: ["" : 17]>
iterated (float[N, 3] X, int64 count) => (float[N, 2] Y)
<float[3] scale = {1, 2, 0.5}, float[3] bias = {0, 0.1, -0.2}, float[3] mean = {0.5, 0, 0},
 float[3] variance = {1, 2, 1}, float[3, 2] w = {1, 0, 0, 1, 1, 1}, int64[2] halves = {0, 1}>
{
  %s
  Y = MatMul(h, w)
}
"""

LAYER = "n = BatchNormalization<momentum = 0.75, epsilon = 0.01>(x, scale, bias, mean, variance)"
REPEATED = {
    "loop": f"""h = Loop(count, , X) <body = step (int64 i, bool c, float[N, 3] x)
        => (bool d, float[N, 3] next) {{ d = Identity(c)  {LAYER}  next = Sin(n) }}>""",
    "scan": f"""h = Scan(X, halves) <num_scan_inputs = 1, body = step (float[N, 3] x, int64 i)
        => (float[N, 3] next) {{ {LAYER}  next = Sin(n) }}>""",
    "branch in a loop": f"""h = Loop(count, , X) <body = step (int64 i, bool c, float[N, 3] x)
        => (bool d, float[N, 3] next) {{
          d = Identity(c)
          always = Constant<value_int = 1>()
          one = Cast<to = 9>(always)
          both = And(one, c)
          next = If(both) <
            then_branch = on () => (float[N, 3] a) {{ {LAYER}  a = Sin(n) }},
            else_branch = off () => (float[N, 3] b) {{ b = Sin(x) }}>
        }}>""",
    "loop in a loop": f"""one = Constant<value_int = 1>()
        h = Loop(count, , X) <body = step (int64 i, bool c, float[N, 3] y)
        => (bool d, float[N, 3] z) {{
          d = Identity(c)
          z = Loop(one, , y) <body = inner (int64 j, bool e, float[N, 3] x)
            => (bool f, float[N, 3] next) {{ f = Identity(e)  {LAYER}  next = Sin(n) }}>
        }}>""",
}


@pytest.mark.parametrize("form", REPEATED)
def test_batch_normalization_in_a_body_carries_statistics(form):
    model = onnx.parser.parse_model(ITERATED % REPEATED[form])
    before = initializers(model)
    options = {"trainable": ["scale", "w"]}
    session = og.TrainingSession(model, "squared_error", og.optimizers.SGD(lr=0.1), **options)
    X, y = data()
    weights = {name: before[name].astype(np.float64) for name in ("scale", "w")}
    statistics = before["mean"], before["variance"]

    def forward(scale, w):
        h, (mean, variance) = X.astype(np.float64), statistics
        for _ in range(2):
            batch = h.mean(axis=0), h.var(axis=0)
            mean, variance = running(mean, batch[0]), running(variance, batch[1])
            h = np.sin(normalize(h, scale, before["bias"], *batch))
        return np.mean((h @ w - y) ** 2), mean, variance

    def slope(name):
        result = np.zeros_like(weights[name])
        for index in np.ndindex(result.shape):
            moved = {name: values.copy() for name, values in weights.items()}
            moved[name][index] += 1e-6
            above = forward(**moved)[0]
            moved[name][index] -= 2e-6
            result[index] = (above - forward(**moved)[0]) / 2e-6
        return result

    for _ in range(3):
        expected, *statistics = forward(**weights)
        new = {name: values - 0.1 * slope(name) for name, values in weights.items()}
        loss = session.step({"X": X, "count": np.array(2), "label": y})
        assert loss == pytest.approx(expected, rel=1e-5)
        weights = new
        state = session.state()
        np.testing.assert_allclose(state["mean"], statistics[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state["variance"], statistics[1], rtol=1e-5)
        for name, values in weights.items():
            np.testing.assert_allclose(state[name], values, rtol=1e-4, atol=1e-6)
    trained = initializers(session.trained_model())
    np.testing.assert_allclose(trained["mean"], statistics[0], rtol=1e-5, atol=1e-6)


def test_batch_normalization_in_a_loop_without_iterations_keeps_statistics():
    model = onnx.parser.parse_model(ITERATED % REPEATED["loop"])
    session = og.TrainingSession(model, "squared_error", og.optimizers.SGD(lr=0.1))
    X, y = data()
    session.step({"X": X, "count": np.array(0), "label": y})
    np.testing.assert_array_equal(session.state()["mean"], initializers(model)["mean"])


DROPPED_BRANCH = """
<ir_version: 8, opset_import: ["" : 17]>
dropped (float[N, 100] X, bool flag) => (float[N, 100] Y)
<float ratio = {0.25}, float[100] w = {%s}>
{
  Y = If(flag) <
    then_branch = dropping () => (float[N, 100] a) { m = Mul(X, w)  a = Dropout(m, ratio) },
    else_branch = plain () => (float[N, 100] b) { b = Mul(X, w) }
  >
}
""" % ", ".join("1" for _ in range(100))  # noqa: UP031 (braces)


def test_dropout_in_a_branch_drops_alike_in_its_gradient():
    """With target 0 the loss is the mean of y^2, so its gradient is 2 y X / (count (1 - ratio))."""
    model = onnx.parser.parse_model(DROPPED_BRANCH)
    X = np.ones((1, 100), np.float32)
    feeds = {"X": X, "flag": np.array(True), "label": np.zeros_like(X)}
    session = og.TrainingSession(
        model, "squared_error", og.optimizers.SGD(lr=1.0), outputs=["Y"], trainable="w"
    )
    drops = []
    for _ in range(3):
        before = session.state()["w"]
        _, (y,) = session.step(feeds)
        y = y[0]
        gradient = before - session.state()["w"]
        np.testing.assert_allclose(gradient, 2 * y / 100 / 0.75, rtol=1e-5, atol=1e-7)
        drops.append(y == 0)
        assert 5 <= drops[-1].sum() <= 50
    assert (drops[0] != drops[1]).any()
