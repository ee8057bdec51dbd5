"""Files whose operators are in training mode, as torch exports them with TrainingMode.TRAINING."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og
from support import initializers

NORM = {
    18: "h, m2, v2 = BatchNormalization <training_mode = 1, momentum = 0.8> (x, s, b, mean, var)",
    13: "h, m2, v2, sm, sv = BatchNormalization <momentum = 0.8> (x, s, b, mean, var)",
}
WEIGHTS = """float[3] s = {1, 2, 0.5}, float[3] b = {0.1, -0.2, 0.3}, float[3] mean = {0, 0, 0},
  float[3] var = {1, 1, 1}, float[3, 2] w = {0.3, -0.5, 0.2, 0.7, -0.1, 0.4}, float ratio = {0.5},
  bool on = {1}"""


def exported(opset, rest="y = MatMul(h, w)", first="N", outputs=""):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[{first}, 3] x) => (float[{first}, 2] y{outputs}) <{WEIGHTS}> {{
          {NORM[opset]}
          {rest}
        }}"""
    )
    used = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def stock(model, X):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(["y"], {"x": X})[0]


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return (rng.standard_normal((40, 3)) * 2 + 1).astype(np.float32), rng.integers(0, 2, 40)


@pytest.mark.parametrize("opset", NORM)
@pytest.mark.parametrize("first", ["N", 40])
def test_running_statistics_are_updated_and_written(opset, first, rows):
    X, y = rows
    model = exported(opset, first=first)
    trainer = og.Trainer(model, "cross_entropy", "sgd", lr=0.1)
    trainer.fit(X, y, epochs=2, batch_size=40, verbose=0)
    trained = trainer.trained_model()
    found = initializers(trained)
    mean, var = np.zeros(3), np.ones(3)
    for _ in range(2):
        mean = 0.8 * mean + 0.2 * X.mean(axis=0)
        var = 0.8 * var + 0.2 * X.var(axis=0)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(found["var"], var, rtol=1e-5)
    assert [node.op_type for node in trained.graph.node] == [n.op_type for n in model.graph.node]
    inference = og.to_inference(trained)
    onnx.checker.check_model(inference, full_check=True)
    normalized = (X - mean) / np.sqrt(var + 1e-5) * found["s"] + found["b"]
    np.testing.assert_allclose(stock(inference, X), normalized @ found["w"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trainer.predict(X), normalized @ found["w"], rtol=1e-4, atol=1e-5)
    assert og.to_inference(inference).SerializeToString() == inference.SerializeToString()


@pytest.mark.parametrize("opset", NORM)
def test_training_mode_off_uses_the_file_s_statistics(opset, rows):
    X, y = rows
    model = exported(opset)
    trainer = og.Trainer(model, "cross_entropy", "sgd", lr=0.1, training_mode=False)
    scores = X / np.sqrt(1 + 1e-5) * initializers(model)["s"] + initializers(model)["b"]
    scores = scores @ initializers(model)["w"]
    loss = np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(40), y])
    trainer.fit(X, y, epochs=1, batch_size=40, verbose=0)
    assert trainer.history["train_loss"][0] == pytest.approx(loss, rel=1e-5)
    for name in ("mean", "var"):
        found = initializers(trainer.trained_model())[name]
        np.testing.assert_array_equal(found, initializers(model)[name])


def test_dropout_in_training_mode(rows):
    X, y = rows
    model = exported(18, "d = Dropout (h, ratio, on)  y = MatMul(d, w)")
    inference = og.to_inference(model)
    plain = og.to_inference(exported(18))
    np.testing.assert_allclose(stock(inference, X), stock(plain, X), rtol=1e-6)
    losses = {}
    for mode in ("auto", True, False):
        trainer = og.Trainer(model, "cross_entropy", "sgd", lr=0.1, training_mode=mode)
        np.testing.assert_allclose(trainer.predict(X), stock(plain, X), rtol=1e-5, atol=1e-6)
        trainer.fit(X, y, epochs=1, batch_size=40, verbose=0)
        losses[mode] = trainer.history["train_loss"][0]
    without = og.Trainer(exported(18), "cross_entropy", "sgd", lr=0.1, training_mode=False)
    without.fit(X, y, epochs=1, batch_size=40, verbose=0)
    assert losses[False] == pytest.approx(without.history["train_loss"][0], rel=1e-6)
    assert losses["auto"] == losses[True] != losses[False]


def test_separate_passes_and_written_steps(rows):
    X, _ = rows
    model = exported(18)
    layer = og.ForwardBackward(model)
    np.testing.assert_allclose(
        layer.forward({"x": X}, training=False)[0], stock(og.to_inference(model), X), rtol=1e-5
    )
    trained = layer.forward({"x": X})[0]
    normalized = (X - X.mean(axis=0)) / np.sqrt(X.var(axis=0) + 1e-5)
    weights = initializers(model)
    expected = (normalized * weights["s"] + weights["b"]) @ weights["w"]
    np.testing.assert_allclose(trained, expected, rtol=1e-4, atol=1e-5)
    step = og.training_step(model, "cross_entropy", "sgd")
    assert {"next/mean", "next/var"} <= {value.name for value in step.graph.output}


def test_statistics_that_are_outputs(rows):
    """In inference mode they are those of the file."""
    X, _ = rows
    model = exported(18, outputs=", float[3] m2")
    inference = og.to_inference(model)
    onnx.checker.check_model(inference, full_check=True)
    session = onnxruntime.InferenceSession(inference.SerializeToString())
    np.testing.assert_array_equal(session.run(["m2"], {"x": X})[0], np.zeros(3))
