"""Trainings written as TrainingInfoProto, for any model, loss and optimizer."""

import subprocess
import sys

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxgrad as og
from support import initializers, mlp_proto
from training_infos import Interpreter, assert_same_state, state_of


def data_for(model, rows, seed=0, classes=0):
    rng = np.random.default_rng(seed)
    info = og.InferenceSession(model).get_inputs()[0]
    dtype = np.float64 if info.type == "tensor(double)" else np.float32
    x = rng.normal(size=(rows, info.shape[1])).astype(dtype)
    if classes:
        return x, rng.integers(0, classes, rows)
    return x, rng.normal(size=(rows, 1)).astype(dtype)


def feeds_of(session, x, y, weight=None):
    feeds = {session.get_inputs()[0].name: x, session.target_name: y}
    if weight is not None:
        feeds["weight"] = weight
    return feeds


def compare(
    model, written, x, y, steps=4, rows=8, rtol=1e-8, weight=None, runtime="reference", **options
):
    """Our training, that of the written file by us, and by the reference evaluator."""
    onnx.checker.check_model(written, full_check=True)
    direct = og.TrainingSession(model, **options)
    loaded, interpreter = og.TrainingSession(written), Interpreter(written, runtime)
    assert loaded.optimizer is None
    for i in range(steps):
        part = slice(rows * i, rows * (i + 1))
        w = None if weight is None else weight[part]
        loss = direct.step(feeds_of(direct, x[part], y[part], w))
        again = loaded.step(feeds_of(loaded, x[part], y[part], w))
        by_the_book = interpreter.step(feeds_of(loaded, x[part], y[part], w))
        assert again == pytest.approx(loss, rel=rtol)
        assert float(by_the_book["loss"]) == pytest.approx(loss, rel=rtol)
    ours = direct.state()
    assert_same_state(loaded.state(), ours, rtol, rtol)
    assert_same_state(ours, interpreter.state(), rtol, rtol)
    return direct, loaded


MLP = mlp_proto([4, 6, 1], dtype=np.float64)
OPTIMIZERS = [name for name in og.optimizers.names() if name != "lbfgs"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_written(name):
    x, y = data_for(MLP, 32)
    written = og.add_training_info(MLP, "squared_error", name)
    assert written.graph == MLP.graph  # as it was
    compare(MLP, written, x, y, loss="squared_error", optimizer=name)


@pytest.mark.parametrize("loss", ["huber", "absolute_error", "poisson", "squared_error"])
def test_losses_are_written(loss):
    x, y = data_for(MLP, 32)
    y = np.abs(y)
    written = og.add_training_info(MLP, loss, "adam", sample_weight="weight")
    weight = np.random.default_rng(3).uniform(0.5, 2, 32)
    compare(MLP, written, x, y, weight=weight, loss=loss, optimizer="adam", sample_weight="weight")


@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.5},
        {"clip_value": 0.1},
        {"accumulate": 2},
        {"frozen": "W0"},
        {"trainable": ["W1", "b1"]},
        {"penalty": {"W*": {"l1": 0.01, "l2": 0.1}}},
        {"groups": og.optimizers.ParameterGroup("b*", lr_factor=0.1)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_are_written(options):
    x, y = data_for(MLP, 32)
    written = og.add_training_info(MLP, "squared_error", "adamw", **options)
    compare(MLP, written, x, y, loss="squared_error", optimizer="adamw", **options)


def test_a_classifier_is_written_and_float32_too():
    model = mlp_proto([4, 8, 3], head="Softmax")
    x, y = data_for(model, 32, classes=3)
    written = og.add_training_info(model, optimizer="adam")
    # The reference evaluator's OneHot refuses a depth [1].
    compare(model, written, x, y, rtol=1e-5, runtime="stock", loss="auto", optimizer="adam")


def test_a_schedule_counts_in_the_graph():
    x, y = data_for(MLP, 64)
    schedule = og.schedules.Cosine()
    written = og.add_training_info(
        MLP, "squared_error", og.optimizers.SGD(lr=0.1), schedule=schedule, updates=8
    )
    assert {"step_count"} <= state_of(written).keys()
    loaded, interpreter = og.TrainingSession(written), Interpreter(written)
    trainer = og.Trainer(MLP, "squared_error", "sgd", lr=0.1, schedule=schedule)
    trainer.fit(x, y, epochs=1, batch_size=8, shuffle=False, verbose=0)
    for i in range(8):
        feeds = feeds_of(loaded, x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8])
        loaded.step(feeds)
        interpreter.step(feeds)
    weights = {name: trainer.session.state()[name] for name in ("W0", "b0", "W1", "b1")}
    assert_same_state(loaded.state(), weights, 1e-9, 1e-9)
    assert_same_state(interpreter.state(), weights, 1e-9, 1e-9)
    with pytest.raises(og.ModelError, match="plateau"):
        og.add_training_info(MLP, "squared_error", schedule=og.schedules.Plateau())
    with pytest.raises(og.ModelError, match="L-BFGS"):
        og.add_training_info(MLP, "squared_error", "lbfgs")


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("opset", [None, 13, 17, 26])
def test_opsets_and_functions(opset, inline):
    x, y = data_for(MLP, 32)
    written = og.add_training_info(MLP, "squared_error", "adam", target_opset=opset, inline=inline)
    version = {entry.domain: entry.version for entry in written.opset_import}
    assert version[""] == (opset or 17)
    if inline:
        assert not written.functions
    compare(MLP, written, x, y, loss="squared_error", optimizer="adam")


def test_weights_that_are_no_initializers_become_ones():
    text = """
    m (double[N,2] x) => (double[N,1] y) {
      w = Constant <value = double[2,1] {0.5, -0.5}> ()
      p = MatMul (x, w)
      y = Tanh (p)
    }"""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + text)
    x = np.random.default_rng(0).normal(size=(32, 2))
    y = np.tanh(x @ [[1.0], [2.0]])
    written = og.add_training_info(model, "squared_error", "momentum")
    direct, _ = compare(model, written, x, y, loss="squared_error", optimizer="momentum")
    assert len(written.graph.initializer) >= 1
    before = og.InferenceSession(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(og.InferenceSession(written).run(None, {"x": x})[0], before)
    assert direct.steps == 4


IF_MODEL = """
m (double[N,3] x) => (double[N,1] y)
<double[3,1] w = {0.5, -0.5, 0.2}, double[3,1] v = {0.1, 0.2, 0.3}, double[1] b = {0.1}> {
  s = ReduceSum <keepdims = 0> (x)
  zero = Constant <value = double {0.0}> ()
  c = Greater (s, zero)
  h = If (c) <then_branch = a () => (double[N,1] p) { p = MatMul (x, w) },
              else_branch = o () => (double[N,1] q) { r = MatMul (x, v)  q = Tanh (r) }>
  y = Add (h, b)
}"""

LOOP_MODEL = """
m (double[N,3] x) => (double[N,3] y) <double[3,3] w = {0.5,-0.5,0.2,0.1,0.3,0.2,-0.4,0.1,0.6}> {
  n = Constant <value = int64 {3}> ()
  go = Constant <value = bool {1}> ()
  y = Loop (n, go, x) <body = body (int64 i, bool c, double[N,3] h) => (bool k, double[N,3] next) {
      k = Identity (c)
      p = MatMul (h, w)
      next = Tanh (p)
  }>
}"""


@pytest.mark.parametrize("text", [IF_MODEL, LOOP_MODEL], ids=["If", "Loop"])
def test_models_with_subgraphs(text):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + text)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 3))
    y = rng.normal(size=(32, 3 if "Loop" in text else 1))
    written = og.add_training_info(model, "squared_error", "adam")
    # The reference evaluator has no Scan from the last to the first.
    runtime = "stock" if "Loop" in text else "reference"
    options = {"loss": "squared_error", "optimizer": "adam"}
    compare(model, written, x, y, runtime=runtime, **options)


def test_several_losses_and_outputs():
    text = """
    m (double[N,3] x) => (double[N,1] y, double[N,2] z)
    <double[3,1] w = {0.5, -0.5, 0.2}, double[3,2] v = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}> {
      y = MatMul (x, w)
      z = MatMul (x, v)
    }"""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + text)
    losses = {"y": "squared_error", "z": "huber"}
    written = og.add_training_info(model, losses, "adam")
    rng = np.random.default_rng(0)
    x, y, z = (rng.normal(size=(32, n)) for n in (3, 1, 2))
    direct = og.TrainingSession(model, losses, "adam")
    loaded, interpreter = og.TrainingSession(written), Interpreter(written)
    feeds = {"x": x, "label_y": y, "label_z": z}
    for _ in range(3):
        direct.step(feeds)
        loaded.step(feeds)
        interpreter.step(feeds)
    assert_same_state(loaded.state(), direct.state(), 1e-9, 1e-9)
    assert_same_state(direct.state(), interpreter.state(), 1e-9, 1e-9)


def test_batch_statistics_and_dropout():
    text = """
    m (float[N,4] x) => (float[N,1] y)
    <float[4] s = {1, 1, 1, 1}, float[4] o = {0, 0, 0, 0}, float[4] mean = {0, 0, 0, 0},
     float[4] var = {1, 1, 1, 1}, float[4,1] w = {0.1, 0.2, 0.3, 0.4}> {
      n = BatchNormalization (x, s, o, mean, var)
      ratio = Constant <value = float {0.4}> ()
      d = Dropout (n, ratio)
      y = MatMul (d, w)
    }"""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + text)
    x, y = data_for(model, 64)
    written = og.add_training_info(model, "squared_error", "adam")
    onnx.checker.check_model(written)
    direct, loaded = og.TrainingSession(model, "squared_error", "adam"), og.TrainingSession(written)
    for _ in range(5):
        # The two plans need not have the same kernels.
        expected = pytest.approx(loaded.step({"x": x, "label": y}), rel=1e-6)
        assert direct.step({"x": x, "label": y}) == expected
    assert_same_state(loaded.state(), direct.state())  # equal draws, equal statistics
    assert np.all(loaded.state()["mean"] != 0)
    expected = direct.predict({"x": x})[0]
    np.testing.assert_allclose(loaded.predict({"x": x})[0], expected, rtol=1e-5, atol=1e-7)


def test_a_training_is_written_as_it_is_now():
    x, y = data_for(MLP, 32)
    trainer = og.Trainer(MLP, "squared_error", "adam", lr=0.05)
    trainer.fit(x, y, epochs=3, batch_size=32, verbose=0)
    written = trainer.with_training_info()
    onward = og.Trainer(written)
    assert onward.session.lr == pytest.approx(0.05)
    assert onward.session.state()["step_count"] == 3
    onward.fit(x, y, epochs=3, batch_size=32, verbose=0)
    trainer.fit(x, y, epochs=3, batch_size=32, verbose=0)
    assert_same_state(onward.session.state(), trainer.session.state(), 1e-12, 1e-12)
    assert onward.history["train_loss"] == pytest.approx(trainer.history["train_loss"])
    # A training that the file describes: the trained model has it.
    assert onward.with_training_info() == onward.trained_model()
    replaced = og.add_training_info(written, "squared_error", "sgd")
    assert len(replaced.training_info) == 1
    assert state_of(replaced).keys() == {"W0", "b0", "W1", "b1"}


def test_names_of_the_model_are_left_alone():
    # Inner values have the names that the step would take.
    text = """
    m (double[N,2] x) => (double[N,1] y) <double[2,1] w = {0.5, -0.5}, double[1] b = {0.1}> {
      label = MatMul (x, w)
      loss = Tanh (label)
      step_count = Identity (loss)
      y = Add (step_count, b)
    }"""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + text)
    written = og.add_training_info(model, "squared_error", "adam")
    nodes = [(node.op_type, list(node.output)) for node in model.graph.node]
    assert [(node.op_type, list(node.output)) for node in written.graph.node] == nodes
    x, y = data_for(model, 16)
    direct = og.TrainingSession(model, "squared_error", "adam")
    loaded, interpreter = og.TrainingSession(written), Interpreter(written)
    for _ in range(3):
        loss = direct.step(feeds_of(direct, x, y))
        assert loaded.step(feeds_of(loaded, x, y)) == pytest.approx(loss)
        interpreter.step(feeds_of(loaded, x, y))
    for name in ("w", "adam_m/w"):
        np.testing.assert_allclose(loaded.state()[name], direct.state()[name], rtol=1e-12)
        np.testing.assert_allclose(interpreter.state()[name], direct.state()[name], rtol=1e-12)


def test_external_data(tmp_path):
    model, stored = mlp_proto([40, 30, 1]), mlp_proto([40, 30, 1])
    path = tmp_path / "model.onnx"
    onnx.save(stored, path, save_as_external_data=True, size_threshold=100)
    x, y = data_for(model, 32)
    written = og.add_training_info(path, "squared_error", "adam")
    onnx.save(written, tmp_path / "written.onnx", save_as_external_data=True, size_threshold=100)
    trainer = og.Trainer(tmp_path / "written.onnx")
    trainer.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
    trainer.save(tmp_path / "trained.onnx")
    direct = og.Trainer(model, "squared_error", "adam")
    direct.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
    onward = og.Trainer(tmp_path / "trained.onnx")
    for name, value in direct.session.state().items():
        np.testing.assert_allclose(onward.session.state()[name], value, rtol=1e-6, atol=1e-8)
    assert onward.session.state()["step_count"] == 4


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(threads):
    model = mlp_proto([20, 64, 1])
    x, y = data_for(model, 256)
    written = og.add_training_info(model, "squared_error", "adam")
    direct = og.TrainingSession(model, "squared_error", "adam", threads=threads)
    loaded = og.TrainingSession(written, threads=threads)
    for _ in range(3):
        direct.step({"X": x, "label": y})
        loaded.step({"X": x, "label": y})
    for name, value in direct.state().items():
        np.testing.assert_allclose(loaded.state()[name], value, rtol=1e-6, atol=1e-8)


def test_weights_in_half_precision_are_trained_as_float32():
    text = "m (float16[N,3] x) => (float16[N,1] y) { p = MatMul (x, w)  y = Tanh (p) }"
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + text)
    first = np.array([[0.5], [-0.5], [0.25]], np.float16)
    model.graph.initializer.append(onnx.numpy_helper.from_array(first, "w"))
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float16)
    y = np.tanh(x @ np.array([[1], [2], [0.5]], np.float16))
    written = og.add_training_info(model, "squared_error", "adam")
    onnx.checker.check_model(written)
    direct, loaded = og.Trainer(model, "squared_error", "adam"), og.Trainer(written)
    for trainer in (direct, loaded):
        trainer.fit(x, y, epochs=5, verbose=0)
    assert loaded.history["train_loss"] == pytest.approx(direct.history["train_loss"])
    trained = [initializers(trainer.trained_model())["w"] for trainer in (direct, loaded)]
    assert trained[1].dtype == np.float16
    assert np.any(trained[0] != first)
    np.testing.assert_array_equal(trained[1], trained[0])
    again = og.Trainer(loaded.trained_model())  # the float32 weight is in the file too
    for trainer in (direct, again):
        trainer.fit(x, y, epochs=5, verbose=0)
    assert again.history["train_loss"] == pytest.approx(direct.history["train_loss"])


# ------------------------------------------------------------------------------------- commands


def command(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "onnxgrad", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_commands(tmp_path, linear_file, linear_data):
    x, y = linear_data
    rows = np.hstack([x, y])
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,label", comments="")
    done = command(
        "training-info",
        linear_file,
        "-o",
        "described.onnx",
        "--loss",
        "squared_error",
        "--optimizer",
        "momentum",
        "--lr",
        0.05,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "training_info" in done.stdout
    done = command(
        "train",
        "described.onnx",
        "--data",
        "rows.csv",
        "-o",
        "trained.onnx",
        "--epochs",
        3,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    direct = og.Trainer(linear_file, "squared_error", "momentum", lr=0.05)
    table = np.loadtxt(tmp_path / "rows.csv", delimiter=",", skiprows=1).astype(np.float32)
    direct.fit(table[:, :2], table[:, 2:], epochs=3, verbose=0)
    trained = onnx.load(tmp_path / "trained.onnx")
    for name, value in state_of(trained).items():
        np.testing.assert_allclose(value, direct.session.state()[name], rtol=1e-5, atol=1e-6)
    done = command(
        "evaluate", "trained.onnx", "--data", "rows.csv", "--target", "label", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    done = command(
        "train",
        "described.onnx",
        "--data",
        "rows.csv",
        "-o",
        "again.onnx",
        "--epochs",
        1,
        "--clip-norm",
        1,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "--clip-norm has no effect" in done.stderr
    done = command(
        "train",
        "described.onnx",
        "--data",
        "rows.csv",
        "-o",
        "plain.onnx",
        "--epochs",
        1,
        "--optimizer",
        "sgd",
        "--target",
        "label",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
