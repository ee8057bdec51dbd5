"""Batches that a file fixes are opened; each row is that of stock onnxruntime on the file."""

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from command_line import run
from fixed_batch_models import KEPT, OPENED, Fixed
from support import initializers


def stock(model, feeds):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, feeds)


def in_batches(case, feeds, rows):
    """The outputs of the fixed file in stock onnxruntime, batch by batch."""
    parts = []
    for start in range(0, rows, case.rows):
        stop = start + case.rows
        part = {n: v[start:stop] if n in case.batch_inputs else v for n, v in feeds.items()}
        parts.append(stock(case.proto(), part))
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def shapes(values):
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in values
    }


@pytest.mark.parametrize("case", OPENED, ids=lambda case: case.name)
def test_each_row_is_that_of_the_file(case):
    fixed = case.proto()
    opened = og.open_batch(fixed)
    onnx.checker.check_model(opened, full_check=True)
    rows = 3 * case.rows
    feeds = case.feeds(rows)
    expected = in_batches(case, feeds, rows)
    for found in (stock(opened, feeds), og.InferenceSession(opened).run(None, feeds)):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    single = {n: v[:1] if n in case.batch_inputs else v for n, v in feeds.items()}
    for a, b in zip(stock(opened, single), expected, strict=True):
        np.testing.assert_allclose(a, b[: len(a)], rtol=1e-5, atol=1e-5)
    for name, shape in shapes(opened.graph.input).items():
        assert (shape[0] == "batch") == (name in case.batch_inputs)
    old, new = initializers(fixed), initializers(opened)
    for name in case.weights:  # unless it was a shape that nothing reads anymore
        assert name not in new or np.array_equal(old[name], new[name])
    assert og.open_batch(opened).SerializeToString() == opened.SerializeToString()


@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
def test_obstacles_are_named(case):
    with pytest.raises(og.ModelError, match=case.obstacle) as caught:
        og.open_batch(case.proto())
    assert "dynamic_shapes" in str(caught.value)


def test_an_inference_session_opens_on_request():
    case = OPENED[0]
    feeds = case.feeds(5)
    with pytest.raises(og.ShapeError, match="open_batch"):
        og.InferenceSession(case.proto()).run(None, feeds)
    session = og.InferenceSession(case.proto(), open_batch=True)
    np.testing.assert_allclose(
        session.run(None, feeds)[0], in_batches(case, feeds, 5)[0], atol=1e-5
    )


def with_symbol(model):
    """Return a copy with a named batch dimension in inputs and outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in [*copy.graph.input, *copy.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    return copy


NETWORK = """
g (float[{N}, 4] x) => (float[{N}, 3] y) {{ h = Gemm(x, w, b)  r = Tanh(h)  y = Gemm(r, v, c) }}
"""


def network(rows):
    weights = {"w": (4, 8), "b": (8,), "v": (8, 3), "c": (3,)}
    return Fixed(f"network_{rows}", rows, NETWORK.format(N=rows), weights)


def labelled(rows, seed=3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 4)).astype(np.float32), rng.integers(0, 3, rows)


def fitted(model, X, y, *, options=None, **fit):
    trainer = og.Trainer(model, "cross_entropy", "sgd", lr=0.2, **(options or {}))
    fit = {"epochs": 3, "verbose": 0, "validation": 0.25, "metrics": "f1", **fit}
    return trainer.fit(X, y, **fit)


@pytest.mark.parametrize("rows", [1, 4])
def test_training_is_that_of_the_dynamic_file(rows):
    """Losses, weights and predictions agree; the file keeps its shapes, or has open ones."""
    X, y = labelled(41)
    fixed = network(rows).proto()
    expected = fitted(with_symbol(fixed), X, y)
    for opening in ("auto", True):
        trainer = fitted(fixed, X, y, options={"open_batch": opening})
        for column in ("train_loss", "val_loss", "val_f1"):
            np.testing.assert_array_equal(trainer.history[column], expected.history[column])
        np.testing.assert_array_equal(trainer.predict(X), expected.predict(X))
        assert trainer.evaluate(X, y).loss == expected.evaluate(X, y).loss
        trained = trainer.trained_model()
        wanted = fixed if opening == "auto" else og.open_batch(fixed)
        assert shapes(trained.graph.input) == shapes(wanted.graph.input)
        weights = initializers(expected.trained_model())
        for name, value in weights.items():
            np.testing.assert_array_equal(initializers(trained)[name], value)
        assert "opened" in trainer.session.batch_line
    assert fitted(fixed, X, y).session.fixed_batch is None


@pytest.mark.parametrize(
    "fit",
    [
        {},
        {"batch_size": 3},
        {"shuffle": False},
        {"drop_last": True},
        {"early_stopping": og.callbacks.EarlyStopping(patience=1)},
        {"class_weight": {0: 2.0, 1: 1.0, 2: 0.5}},
        {"sample_weight": np.linspace(0.5, 2, 41)},
    ],
    ids=str,
)
def test_a_batch_that_stays_fixed_is_filled_up(fit):
    """Losses, metrics and weights are those of whole batches of the same rows."""
    X, y = labelled(41)
    fixed = network(4).proto()
    expected = fitted(with_symbol(fixed), X, y, **{"batch_size": 4, **fit})
    trainer = fitted(fixed, X, y, options={"open_batch": False}, **fit)
    assert trainer.session.fixed_batch == 4
    for column in ("train_loss", "val_loss", "val_accuracy", "val_f1"):
        np.testing.assert_allclose(trainer.history[column], expected.history[column], rtol=1e-5)
    for name, value in initializers(expected.trained_model()).items():
        np.testing.assert_allclose(initializers(trainer.trained_model())[name], value, atol=1e-5)
    np.testing.assert_allclose(trainer.predict(X), expected.predict(X), atol=1e-5)
    found, wanted = trainer.evaluate(X, y, metrics="f1"), expected.evaluate(X, y, metrics="f1")
    assert found.rows == wanted.rows == 41
    np.testing.assert_allclose(
        [found.loss, found.accuracy, found.metrics["f1"]],
        [wanted.loss, wanted.accuracy, wanted.metrics["f1"]],
        rtol=1e-5,
    )


def test_filled_batches_of_chunks_and_single_calls(tmp_path):
    X, y = labelled(10)
    fixed = network(4).proto()
    expected = fitted(
        with_symbol(fixed), X, y, batch_size=4, shuffle=False, validation=None, metrics=()
    )
    path = tmp_path / "rows.npz"
    np.savez(path, x=X, y=y)

    def batches():
        yield X[:3], y[:3]
        yield X[3:], y[3:]

    for rows in [(str(path), "y"), (batches, None)]:
        trainer = og.Trainer(fixed, "cross_entropy", "sgd", lr=0.2, open_batch=False)
        trainer.fit(*rows, epochs=3, shuffle=False, verbose=0)
        np.testing.assert_allclose(
            trainer.history["train_loss"], expected.history["train_loss"], rtol=1e-5
        )
    session = og.TrainingSession(fixed, "cross_entropy", open_batch=False)
    found = session.evaluate({"x": X, "label": y})
    wanted = og.TrainingSession(with_symbol(fixed), "cross_entropy").evaluate({"x": X, "label": y})
    np.testing.assert_allclose(
        [found.loss, found.accuracy], [wanted.loss, wanted.accuracy], rtol=1e-5
    )
    assert found.rows == 10
    session.step({"x": X[:4], "label": y[:4]})
    with pytest.raises(og.ShapeError, match="fixes its batch at 4"):
        session.step({"x": X, "label": y})
    with pytest.raises(og.OptionError, match="batch_size is 8, but the file fixes its batch at 4"):
        og.Trainer(fixed, "cross_entropy", open_batch=False).fit(X, y, batch_size=8, verbose=0)
    with pytest.raises(og.OptionError, match="open_batch"):
        og.Trainer(fixed, open_batch="yes")


def test_what_cannot_be_opened_trains_in_whole_batches():
    """A layer that subtracts the mean of the rows: one line says why."""
    text = """g (float[4, 3] x) => (float[4, 2] y) {
      axes = Constant <value = int64[1] {0}> ()
      [centre] m = ReduceMean(x, axes)  d = Sub(x, m)  y = Gemm(d, w, b) }"""
    fixed = Fixed("centred", 4, text, {"w": (3, 2), "b": (2,)}).proto()
    with pytest.raises(og.ModelError, match="centre"):
        og.Trainer(fixed, open_batch=True)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((10, 3)).astype(np.float32), rng.integers(0, 2, 10)
    trainer = og.Trainer(fixed, "cross_entropy").fit(X, y, epochs=1, verbose=0, validation=0.3)
    assert "centre" in trainer.session.batch_line
    assert "filled up" in trainer.session.batch_line
    whole = stock(trainer.trained_model(), {"x": X[4:8]})[0]
    np.testing.assert_allclose(trainer.predict(X)[4:8], whole, atol=1e-5)
    assert trainer.predict(X).shape == (10, 2)


def test_an_input_without_rows():
    """One array for all batches, of a model that was opened and of one with a dynamic batch."""
    text = """g (float[1, 3] x, float[2] scale) => (float[1, 2] y) {
      h = MatMul(x, w)  y = Mul(h, scale) }"""
    fixed = Fixed("scaled", 1, text, {"w": (3, 2)}).proto()
    dynamic = onnx.ModelProto()
    dynamic.CopyFrom(fixed)
    for value in (dynamic.graph.input[0], dynamic.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3)).astype(np.float32)
    scale = np.float32([2, -1])
    y = X @ np.float32([[1, 0], [0, 1], [1, 1]]) * scale
    losses = []
    for model in (fixed, dynamic):
        trainer = og.Trainer(model, "mse", "sgd", lr=0.2)
        trainer.fit({"x": X, "scale": scale}, y, epochs=60, verbose=0, validation=0.2)
        losses.append(trainer.history["val_loss"])
        assert trainer.predict({"x": X, "scale": scale}).shape == (40, 2)
    np.testing.assert_array_equal(*losses)
    assert losses[0][-1] < 1e-4
    with pytest.raises(og.DataError, match="scale"):
        og.Trainer(fixed, "mse").fit({"x": X, "scale": scale[:1]}, y, verbose=0)


@pytest.mark.parametrize("opening", ["auto", False])
def test_estimators_take_any_number_of_rows(opening):
    from onnxgrad.sklearn import OnnxClassifier

    X, y = labelled(30)
    model = OnnxClassifier(network(4).proto(), max_iter=2, open_batch=opening, random_state=0)
    model.fit(X, y)
    assert model.predict(X[:7]).shape == (7,)
    assert model.predict_proba(X[:3]).shape == (3, 3)
    assert shapes(model.to_onnx().graph.input) == {"x": [4, 4]}


@pytest.mark.parametrize("opening", ["auto", "on", "off"])
def test_command_line(tmp_path, opening):
    X, y = labelled(30)
    np.savez(tmp_path / "d.npz", x=X, y=y)
    np.savez(tmp_path / "x.npz", x=X)
    onnx.save(network(4).proto(), tmp_path / "m.onnx")
    trained = tmp_path / "t.onnx"
    data = ["--data", tmp_path / "d.npz", "--target", "y", "--loss", "cross_entropy"]
    _, log = run("train", tmp_path / "m.onnx", *data, "-o", trained, "--epochs", 2,
                 "--validation", 0.2, "--open-batch", opening)  # fmt: skip
    assert "batch: 4 rows in the file" in log
    first = shapes(onnx.load(trained).graph.input)["x"][0]
    assert first == ("batch" if opening == "on" else 4)
    assert "rows        30" in run("evaluate", trained, *data)[0]
    out = tmp_path / "p.npy"
    run("predict", trained, "--data", tmp_path / "x.npz", "-o", out)
    expected = og.InferenceSession(trained, open_batch=True).run(None, {"x": X})[0]
    np.testing.assert_allclose(np.load(out), expected, atol=1e-5)


def test_predict_command_fills_batches_up(tmp_path):
    """A model that cannot be opened; the rows of whole batches are those of the file."""
    case = KEPT[1]
    onnx.save(case.proto(), tmp_path / "m.onnx")
    X = case.feeds(10)["x"]
    np.savez(tmp_path / "x.npz", x=X)
    run("predict", tmp_path / "m.onnx", "--data", tmp_path / "x.npz", "-o", tmp_path / "p.npy")
    found = np.load(tmp_path / "p.npy")
    assert found.shape == (10, 3)
    np.testing.assert_allclose(found[:8], in_batches(case, {"x": X[:8]}, 8)[0], atol=1e-6)


def test_a_written_training_takes_any_number_of_rows():
    fixed = network(1).proto()
    X, y = labelled(8)
    session = og.TrainingSession(fixed, "cross_entropy", og.optimizers.SGD(lr=0.1))
    session.step({"x": X, "label": y})
    written = og.TrainingSession(session.with_training_info())
    again = written.step({"x": X, "label": y})
    assert again == pytest.approx(session.step({"x": X, "label": y}), rel=1e-5)


def test_a_pickled_trainer_keeps_the_option():
    import pickle

    X, y = labelled(9)
    trainer = og.Trainer(network(4).proto(), "cross_entropy", open_batch=False)
    trainer.fit(X, y, epochs=1, verbose=0)
    copy = pickle.loads(pickle.dumps(trainer))
    assert copy.session.fixed_batch == 4
    np.testing.assert_array_equal(copy.predict(X), trainer.predict(X))
    copy.fit(X, y, epochs=1, verbose=0)
