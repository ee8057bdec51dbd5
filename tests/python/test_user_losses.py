"""Losses that users write: ONNX models, and functions of ndonnx or onnxscript."""

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from support import initializers, mlp_proto

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
# max(0.9 d, -0.1 d) with d = target - scores: the pinball loss of the quantile 0.9.
PINBALL = f"""{HEADER}
loss (float[M, K] scores, float[M, K] target) => (float[M, K] rows)
<float high = {{0.9}}, float low = {{-0.1}}>
{{ d = Sub(target, scores)  above = Mul(d, high)  below = Mul(d, low)
  rows = Max(above, below) }}"""
# PINBALL for the batch: the mean.
PINBALL_MEAN = PINBALL.replace("(float[M, K] rows)", "(float loss)").replace(
    "rows = Max(above, below)", "all = Max(above, below)  loss = ReduceMean<keepdims = 0>(all)"
)
# Weights inside: rows are w * d^2.
WEIGHTED = f"""{HEADER}
loss (float[M, 1] scores, float[M, 1] target, float[M] w) => (float[M] rows)
<int64[1] axis = {{1}}>
{{ d = Sub(scores, target)  e = Mul(d, d)  q = Squeeze(e, axis)  rows = Mul(q, w) }}"""
# Squared distance to one-hot rows, from class numbers: the Brier score.
BRIER = f"""{HEADER}
loss (float[M, 3] p, int64[M] label) => (float[M] rows)
<int64 depth = {{3}}, float[2] off_on = {{0, 1}}, int64[1] axis = {{1}}>
{{ t = OneHot(label, depth, off_on)  d = Sub(p, t)  e = Mul(d, d)
  rows = ReduceSum<keepdims = 0>(e, axis) }}"""


def pinball(X, y, weights):
    """Rows of the pinball loss and the gradient of coef, with the row weights w, in NumPy."""
    d = y - (X.astype(np.float64) @ weights["coef"] + weights["intercept"])
    return np.maximum(0.9 * d, -0.1 * d)[:, 0], np.where(d > 0, -0.9, 0.1)


@pytest.mark.parametrize("form", ["text", "file", "sum", "none", "weighted"])
def test_a_model_that_gives_the_loss_of_each_row(form, linear_proto, linear_data, tmp_path):
    X, y = linear_data
    model = onnx.parser.parse_model(PINBALL)
    if form == "file":
        onnx.save(model, tmp_path / "pinball.onnx")
        model = tmp_path / "pinball.onnx"
    reduction = form if form in ("sum", "none") else "mean"
    loss = og.losses.User(model, reduction=reduction)
    rows, slope = pinball(X, y, initializers(linear_proto))
    w = np.linspace(0, 2, len(X)) if form == "weighted" else np.ones(len(X))
    scale = w.sum() if reduction == "mean" else 1.0
    expected = w * rows if form == "none" else (w * rows).sum() / scale
    name = "w" if form == "weighted" else None
    session = og.TrainingSession(
        linear_proto, loss, og.optimizers.SGD(lr=0.0), sample_weight=name, outputs=["coef_grad"]
    )
    feeds = {"X": X, "label": y} | ({"w": w.astype(np.float32)} if name else {})
    found, (gradient,) = session.step(feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient, X.T @ (slope * w[:, None]) / scale, rtol=1e-3, atol=1e-4)
    stock = onnxruntime.InferenceSession(
        og.add_loss(linear_proto, loss, sample_weight=name).SerializeToString()
    )
    np.testing.assert_allclose(stock.run(["loss"], feeds)[0], expected, rtol=1e-4, atol=1e-6)


def test_a_model_that_gives_the_loss_of_the_batch(linear_proto, linear_data):
    X, y = linear_data
    loss = og.losses.User(onnx.parser.parse_model(PINBALL_MEAN))
    rows, _ = pinball(X, y, initializers(linear_proto))
    trainer = og.Trainer(linear_proto, loss, og.optimizers.SGD(lr=0.0))
    trainer.fit(X, y, validation=(X, y), epochs=1, batch_size=48, verbose=0)
    assert trainer.history["train_loss"][0] == pytest.approx(rows.mean(), rel=1e-5)
    assert trainer.history["val_loss"][0] == pytest.approx(rows.mean(), rel=1e-5)
    with pytest.raises(og.ModelError, match="takes no sample weights"):
        og.TrainingSession(linear_proto, loss, sample_weight="w")
    with pytest.raises(og.ModelError, match="one loss for the batch, not one for each row"):
        og.TrainingSession(linear_proto, loss.replace(reduction="none"))


def test_a_model_that_takes_the_sample_weights(linear_proto, linear_data):
    X, y = linear_data
    loss = og.losses.User(onnx.parser.parse_model(WEIGHTED))
    w = np.linspace(0, 2, len(X)).astype(np.float32)
    weights = initializers(linear_proto)
    squares = (X.astype(np.float64) @ weights["coef"] + weights["intercept"] - y)[:, 0] ** 2
    weighted = og.TrainingSession(linear_proto, loss, sample_weight="w")
    found = weighted.step({"X": X, "label": y, "w": w})
    assert found == pytest.approx((w * squares).sum() / w.sum(), rel=1e-5)
    plain = og.TrainingSession(linear_proto, loss)
    assert plain.step({"X": X, "label": y}) == pytest.approx(squares.mean(), rel=1e-5)


def test_class_numbers_and_accuracy():
    rng = np.random.default_rng(2)
    model = mlp_proto([4, 3], head="Softmax")
    X, y = rng.normal(size=(40, 4)).astype(np.float32), rng.integers(0, 3, 40)
    weights = initializers(model)
    scores = X.astype(np.float64) @ weights["W0"] + weights["b0"]
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    trainer = og.Trainer(model, og.losses.User(onnx.parser.parse_model(BRIER)))
    found = trainer.evaluate(X, y)
    assert found.loss == pytest.approx(((p - np.eye(3)[y]) ** 2).sum(axis=1).mean(), rel=1e-5)
    assert found.accuracy == pytest.approx((p.argmax(axis=1) == y).mean())
    trainer.fit(X, y, epochs=2, verbose=0)
    with pytest.raises(og.DataError, match="class number 7 in row"):
        trainer.fit(X, np.where(y == 2, 7, y), verbose=0)
    on_scores = og.Trainer(model, og.losses.User(onnx.parser.parse_model(BRIER), takes_scores=True))
    assert "on 'scores'" in on_scores.session.loss_line


def test_a_function_traced_with_ndonnx(linear_proto, linear_data):
    ndx = pytest.importorskip("ndonnx")
    X, y = linear_data

    def huber(scores, target):
        d = ndx.abs(scores - target)
        return ndx.mean(ndx.where(d < 1.0, 0.5 * d * d, d - 0.5), axis=1)

    def squares(scores, target, weights):
        return weights * ndx.sum((scores - target) ** 2, axis=1)

    options = {"penalty": og.losses.Penalty(l2=0.1)}
    traced = og.Trainer(linear_proto, og.losses.traced(huber), "sgd", lr=0.1, **options)
    built_in = og.Trainer(linear_proto, "huber", "sgd", lr=0.1, **options)
    traced.fit(X, y, epochs=3, verbose=0)
    built_in.fit(X, y, epochs=3, verbose=0)
    np.testing.assert_allclose(
        traced.history["train_loss"], built_in.history["train_loss"], rtol=1e-5
    )
    w = np.linspace(0, 2, len(X))
    loss = og.losses.traced(squares, columns=1, weights=True)
    found = og.Trainer(linear_proto, loss).evaluate(X, y, w).loss
    assert found == pytest.approx(og.Trainer(linear_proto, "mse").evaluate(X, y, w).loss, rel=1e-5)

    def likelihood(p, label):
        picked = ndx.where(label[:, None] == ndx.arange(3), p, 0.0)
        return -ndx.log(ndx.sum(picked, axis=1))

    rng = np.random.default_rng(2)
    model = mlp_proto([4, 3], head="Softmax")
    rows, labels = rng.normal(size=(40, 4)).astype(np.float32), rng.integers(0, 3, 40)
    ours = og.Trainer(model, og.losses.traced(likelihood, classes=True)).evaluate(rows, labels)
    assert ours == pytest.approx(og.Trainer(model, "nll").evaluate(rows, labels), rel=1e-5)


def test_a_function_of_onnxscript(linear_proto, linear_data):
    """Such functions are recognised by their `to_model_proto`, without onnxscript."""

    class Function:
        def to_model_proto(self):
            return onnx.parser.parse_model(PINBALL)

    X, y = linear_data
    rows, _ = pinball(X, y, initializers(linear_proto))
    found = og.Trainer(linear_proto, og.losses.User(Function())).evaluate(X, y).loss
    assert found == pytest.approx(rows.mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("float[M, K] target)", "float[M, K] target, float[M] w, float z)"), "4 inputs"),
        (("float[M, K] scores", "double[M, K] scores"), "'scores' is float64, but the scores are"),
        (("(float[M, K] rows)", "(float[M, K] rows, float[M, K] d)"), "2 outputs, expected one"),
        (("float[M, K] target", "float target"), "'target' is one number"),
    ],
)
def test_models_that_are_not_losses(change, message, linear_proto):
    text = PINBALL.replace(*change)
    if "double" in text:
        text = (
            text.replace("float[M, K] target", "double[M, K] target")
            .replace("<float high = {0.9}, float low", "<double high = {0.9}, double low")
            .replace("float[M, K] rows", "double[M, K] rows")
        )
    with pytest.raises(og.ModelError, match=message):
        og.TrainingSession(linear_proto, og.losses.User(onnx.parser.parse_model(text)))


def test_traced_without_ndonnx(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ndonnx", None)
    with pytest.raises(og.OptionError, match="ndonnx is not installed"):
        og.losses.traced(lambda scores, target: scores - target)
