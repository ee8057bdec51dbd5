"""Models that describe their training themselves: TrainingInfoProto, executed and written."""

import re

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

import onnxgrad as og
from training_infos import Interpreter, assert_same_state, state_of

HEADER = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>'
TRAINING = "ai.onnx.preview.training"

LINE = """
line (float[N,2] x) => (float[N,1] y) <float[2,1] w = {0.5, -0.5}, float[1] b = {0.1}> {
  p = MatMul (x, w)
  y = Add (p, b)
}"""
LOSS = """
  e = Sub (y, label)
  ee = Mul (e, e)
  loss = ReduceMean <keepdims = 0> (ee)
"""
GRADIENT = f'  dw, db = {TRAINING}.Gradient <xs = ["w", "b"], zs = ["x"], y = "loss"> (w, b, x)\n'


def parsed(text):
    return onnx.parser.parse_model(HEADER + text)


def algorithm(inputs, outputs, initializers, body):
    """A graph that continues a model's: the parser needs all names of one graph."""
    text = f"algorithm ({inputs}) => ({outputs}) <{initializers}> {{{body}}}"
    return onnx.parser.parse_graph(text)


def described(model, *infos):
    """`model` with training information: (algorithm, bindings[, initialization, bindings])."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in infos:
        graph, bindings, *initial = info
        start, values = initial or (None, None)
        pairs = [list(bindings.items()), None if values is None else list(values.items())]
        message = helper.make_training_info(graph, pairs[0], start, pairs[1])
        if start is None:
            message.ClearField("initialization")
        copy.training_info.append(message)
    onnx.checker.check_model(copy)
    return copy


def adam_line(model=None, **options):
    """A line fitted by Adam, with Gradient and Adam of ONNX's preview operators."""
    graph = algorithm(
        "float[N,1] label",
        "float loss, float[2,1] w_new, float[1] b_new, float[2,1] vw_new, float[1] vb_new, "
        "float[2,1] hw_new, float[1] hb_new, int64 t_new",
        "float R = {0.05}, int64 T = {0}, float[2,1] vw = {0, 0}, float[1] vb = {0}, "
        "float[2,1] hw = {0, 0}, float[1] hb = {0}, int64 one = {1}",
        LOSS
        + GRADIENT
        + f"""
  w_new, b_new, vw_new, vb_new, hw_new, hb_new =
      {TRAINING}.Adam <alpha = 0.9, beta = 0.99> (R, T, w, b, dw, db, vw, vb, hw, hb)
  t_new = Add (T, one)
""",
    )
    names = ("w", "b", "vw", "vb", "hw", "hb")
    bindings = {name: f"{name}_new" for name in names} | {"T": "t_new"}
    return described(model or parsed(LINE), (graph, bindings), **options)


def line_data(rows=40, seed=0, dtype=np.float32):
    x = np.random.default_rng(seed).normal(size=(rows, 2)).astype(dtype)
    return x, (x @ np.array([[1.0], [-2.0]]) + 0.5).astype(dtype)


def adam_by_hand(x, y, steps, state=None):
    """The weights after full-batch steps, in float64."""
    if state is None:
        state = {"w": np.array([[0.5], [-0.5]]), "b": np.array([0.1]), "t": 0}
        state |= {slot + name: 0 * state[name] for slot in "vh" for name in "wb"}
    losses = []
    for _ in range(steps):
        error = x @ state["w"] + state["b"] - y
        losses.append(np.mean(error**2))
        slopes = {"w": 2 * x.T @ error / len(x), "b": 2 * np.mean(error, axis=0)}
        rate, t = 0.05, state["t"]
        if t > 0:
            rate *= np.sqrt(1 - 0.99**t) / (1 - 0.9**t)
        for name, slope in slopes.items():
            v = state["v" + name] = 0.9 * state["v" + name] + 0.1 * slope
            h = state["h" + name] = 0.99 * state["h" + name] + 0.01 * slope**2
            state[name] = state[name] - rate * v / (np.sqrt(h) + 1e-6)
        state["t"] += 1
    return state, losses


# ------------------------------------------------------------------------------------- execution


def test_a_file_with_gradient_and_adam_trains_as_it_says():
    x, y = line_data()
    session = og.TrainingSession(adam_line())
    losses = [session.step({"x": x, "label": y}) for _ in range(30)]
    expected, expected_losses = adam_by_hand(x, y, 30)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    state = session.state()
    for name in ("w", "b", "vw", "vb", "hw", "hb"):
        np.testing.assert_allclose(state[name], expected[name], rtol=1e-3, atol=1e-5)
    assert state["T"] == 30
    assert session.loss_line == "loss: 'loss' of the training that the file describes"
    assert session.optimizer is None
    assert session.target_name == "label"
    assert [weight.name for weight in session.trained_weights] == ["w", "b"]
    assert "trained as the file says" in repr(session)


def test_the_returned_file_continues_where_it_stopped():
    x, y = line_data()
    model = adam_line()
    trainer = og.Trainer(model)
    trainer.fit(x, y, epochs=12, batch_size=40, shuffle=False, verbose=0)
    trained = trainer.trained_model()
    onnx.checker.check_model(trained)
    for name, value in state_of(trained).items():
        np.testing.assert_array_equal(value, trainer.session.state()[name])
    assert state_of(trained)["T"] == 12
    onward = og.Trainer(trained)
    onward.fit(x, y, epochs=8, batch_size=40, shuffle=False, verbose=0)
    at_once = og.Trainer(model)
    at_once.fit(x, y, epochs=20, batch_size=40, shuffle=False, verbose=0)
    for name, value in at_once.session.state().items():
        np.testing.assert_array_equal(onward.session.state()[name], value)
    losses = trainer.history["train_loss"] + onward.history["train_loss"]
    assert losses == at_once.history["train_loss"]

    # Nothing else has changed.
    for proto in (trained, model):
        for graph in (proto.graph, proto.training_info[0].algorithm):
            for tensor in graph.initializer:
                tensor.ClearField("raw_data")
                tensor.ClearField("float_data")
                tensor.ClearField("int64_data")
    assert trained == model


def test_evaluation_and_prediction_use_the_models_graph():
    x, y = line_data()
    trainer = og.Trainer(adam_line())
    trainer.fit(x, y, epochs=10, batch_size=16, validation=(x[:10], y[:10]), verbose=0)
    state = trainer.session.state()
    predicted = x @ state["w"] + state["b"]
    np.testing.assert_allclose(trainer.predict(x), predicted, rtol=1e-5)
    loss = np.mean((predicted - y) ** 2)
    assert trainer.evaluate(x, y).loss == pytest.approx(loss, rel=1e-5)
    assert trainer.history["val_loss"][-1] == pytest.approx(
        np.mean((predicted[:10] - y[:10]) ** 2), rel=1e-5
    )
    assert [value.name for value in trainer.session.get_outputs()] == ["y"]
    inference = og.InferenceSession(trainer.trained_model())
    np.testing.assert_allclose(inference.run(None, {"x": x})[0], predicted, rtol=1e-5)


def momentum_by_formulas():
    """Standard operators only: what ONNX's reference evaluator can run. Two algorithms: the first
    updates w, the second b (with the new w), in turn; both count their steps."""
    first = algorithm(
        "float[N,1] label",
        "float loss, float[2,1] w_new, float[2,1] vw_new, int64 t_new",
        "float rate = {0.1}, float[2,1] vw = {0, 0}, int64 t = {0}, int64 one = {1}",
        """
  e = Sub (y, label)
  ee = Mul (e, e)
  loss = ReduceMean <keepdims = 0> (ee)
  xt = Transpose <perm = [1, 0]> (x)
  d = MatMul (xt, e)
  n = Shape (y)
  axis = Constant <value = int64 {0}> ()
  rows = Gather (n, axis)
  rows_f = Cast <to = 1> (rows)
  dw = Div (d, rows_f)
  m = Constant <value = float {0.5}> ()
  vm = Mul (vw, m)
  vw_new = Add (vm, dw)
  s = Mul (vw_new, rate)
  w_new = Sub (w, s)
  t_new = Add (t, one)
""",
    )
    second = algorithm(
        "float[N,1] label",
        "float[1] b_new, int64 count_new",
        "float rate = {0.2}, int64 count = {5}, int64 one = {1}",
        """
  e = Sub (y, label)
  axes = Constant <value = int64[1] {0}> ()
  db = ReduceMean <axes = [0], keepdims = 0> (e)
  s = Mul (db, rate)
  b_new = Sub (b, s)
  count_new = Add (count, one)
""",
    )
    return described(
        parsed(LINE),
        (first, {"w": "w_new", "vw": "vw_new", "t": "t_new"}),
        (second, {"b": "b_new", "count": "count_new"}),
    )


def test_several_algorithms_in_order_against_the_reference():
    model = momentum_by_formulas()
    x, y = line_data()
    interpreter, session = Interpreter(model), og.TrainingSession(model)
    for i in range(6):
        rows = slice(6 * i, 6 * i + 6)
        expected = interpreter.step({"x": x[rows], "label": y[rows]})
        loss = session.step({"x": x[rows], "label": y[rows]})
        assert loss == pytest.approx(float(expected["loss"]), rel=1e-5)
        assert_same_state(session.state(), interpreter.state())
    assert (session.state()["t"], session.state()["count"]) == (6, 11)
    assert_same_state(state_of(session.trained_model()), interpreter.state())


def test_initial_values_are_computed_once():
    graph = algorithm(
        "float[N,1] label",
        "float loss, float[1] b_new, int64 t_new",
        "float rate = {0.1}, int64 t = {7}, int64 one = {1}",
        LOSS
        + """
  db = ReduceMean <axes = [0], keepdims = 0> (e)
  s = Mul (db, rate)
  b_new = Sub (b, s)
  t_new = Add (t, one)
""",
    )
    start = onnx.parser.parse_graph("""start () => (float[2,1] w0, int64 t0) {
      one = Constant <value = float[2,1] {1.0, -2.0}> ()
      w0 = Identity (one)
      t0 = Constant <value = int64 {0}> ()
    }""")
    model = described(
        parsed(LINE), (graph, {"b": "b_new", "t": "t_new"}, start, {"w": "w0", "t": "t0"})
    )
    x, y = line_data()
    interpreter = Interpreter(model)
    interpreter.initialize()
    session = og.TrainingSession(model)
    for _ in range(4):
        loss = session.step({"x": x, "label": y})
        assert loss == pytest.approx(float(interpreter.step({"x": x, "label": y})["loss"]))
    assert_same_state(session.state(), interpreter.state())
    assert session.state()["t"] == 4
    trained = session.trained_model()
    onward = og.TrainingSession(trained)
    assert onward.state()["t"] == 4
    np.testing.assert_array_equal(onward.state()["b"], session.state()["b"])
    session.reset()
    assert session.state()["t"] == 0
    np.testing.assert_allclose(session.predict({"x": x[:1]})[0], x[:1] @ [[1.0], [-2.0]] + 0.1)


def test_random_initial_values_follow_the_seed():
    graph = algorithm(
        "float[N,1] label",
        "float loss, float[1] b_new",
        "",
        LOSS
        + """
  b_new = Identity (b)
""",
    )
    start = onnx.parser.parse_graph("""start () => (float[2,1] w0) {
      w0 = RandomNormal <shape = [2, 1]> ()
    }""")
    model = described(parsed(LINE), (graph, {"b": "b_new"}, start, {"w": "w0"}))
    x = np.eye(2, dtype=np.float32)
    first, same, other = (
        og.TrainingSession(model, seed=seed).predict({"x": x})[0] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert np.all(first != other)


def test_a_learning_rate_by_name_can_be_set_and_scheduled():
    x, y = line_data()
    graph = algorithm(
        "float[N,1] label",
        "float loss, float[1] b_new",
        "float learning_rate = {0.1}",
        LOSS
        + """
  db = ReduceMean <axes = [0], keepdims = 0> (e)
  s = Mul (db, learning_rate)
  b_new = Sub (b, s)
""",
    )
    model = described(parsed(LINE), (graph, {"b": "b_new"}))
    trainer = og.Trainer(model, lr=0.5, schedule=og.schedules.Exponential(0.5))
    assert og.TrainingSession(model).lr == pytest.approx(0.1)
    trainer.fit(x, y, epochs=3, batch_size=40, verbose=0)
    b = np.array([0.1])
    w = np.array([[0.5], [-0.5]])
    for rate in trainer.history["lr"]:
        b = b - rate * np.mean(x @ w + b - y, axis=0)
    assert trainer.history["lr"][0] == 0.5 > trainer.history["lr"][1]
    np.testing.assert_allclose(trainer.session.state()["b"], b, rtol=1e-5)
    fixed = og.Trainer(adam_line())
    with pytest.raises(og.OptionError, match="no learning rate"):
        fixed.session.lr = 0.1
    with pytest.raises(og.OptionError, match="no learning rate"):
        og.Trainer(adam_line(), schedule="cosine").fit(x, y, epochs=1, verbose=0)


def test_options_that_contradict_the_file_are_refused():
    model = adam_line()
    for options in (
        {"clip_norm": 1.0},
        {"frozen": "w"},
        {"trainable": "w"},
        {"accumulate": 2},
        {"training_mode": True},
        {"penalty": {"w": {"l2": 1.0}}},
        {"sample_weight": "s"},
        {"outputs": ["y"]},
        {"target": "t"},
    ):
        with pytest.raises(og.OptionError, match=next(iter(options))):
            og.TrainingSession(model, **options)
    session = og.TrainingSession(model)
    with pytest.raises(og.OptionError, match="describes its training"):
        session.freeze("w")
    other = og.TrainingSession(model, "squared_error", "sgd")  # asked for: as any model
    assert other.loss_name == "squared_error"


def test_checkpoints_and_resume(tmp_path):
    x, y = line_data()
    model = adam_line()

    def fit(folder, epochs, resume=False):
        trainer = og.Trainer(model, seed=4)
        callback = og.callbacks.Checkpoint(folder)
        trainer.fit(x, y, epochs=epochs, batch_size=8, callbacks=callback, resume=resume, verbose=0)
        return trainer.session.state()

    whole = fit(tmp_path / "a", 6)
    fit(tmp_path / "b", 3)
    for name, value in fit(tmp_path / "b", 6, resume=True).items():
        np.testing.assert_array_equal(value, whole[name])


def test_skipped_steps_keep_the_state():
    x, y = line_data()
    x[3, 0] = np.inf
    session = og.TrainingSession(adam_line(), skip_non_finite=True)
    before = session.state()
    session.step({"x": x, "label": y})
    for name, value in session.state().items():
        np.testing.assert_array_equal(value, before[name])


ERRORS = {
    "unknown": ({"w": "w_new", "ww": "b_new"}, "update_binding: there is no initializer 'ww'"),
    "no_output": ({"w": "s"}, "'w' is to become 's', which is no output"),
    "shape": ({"w": "b_new"}, r"'w' is float32\[2, 1\], but 'b_new', which it is to become"),
    "type": ({"w": "t_new"}, "which it is to become, is int64"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_bindings_are_refused(case):
    bindings, message = ERRORS[case]
    graph = algorithm(
        "float[N,1] label",
        "float loss, float[2,1] w_new, float[1] b_new, int64 t_new",
        "int64 t = {0}",
        LOSS
        + """
  s = Add (w, w)
  w_new = Identity (s)
  b_new = Identity (b)
  t_new = Identity (t)
""",
    )
    model = described(parsed(LINE), (graph, bindings))
    with pytest.raises(og.ModelError, match=r"training_info\[0\]") as caught:
        og.Trainer(model)
    assert re.search(message, str(caught.value)), str(caught.value)


def simple(output="float[1] b_new", body="  b_new = Identity (b)\n", inputs="float[N,1] label"):
    return algorithm(inputs, f"float loss, {output}", "", LOSS + body)


def test_other_faults_are_refused():
    line = parsed(LINE)
    twice = described(line, (simple(), {"b": "b_new"}), (simple(), {"b": "b_new"}))
    with pytest.raises(og.ModelError, match=r"training_info\[1\].*'b' is bound twice"):
        og.Trainer(twice)
    start = onnx.parser.parse_graph("start (float[1] s) => (float[1] b0) { b0 = Identity (s) }")
    with pytest.raises(og.ModelError, match=r"initialization: it has the input 's'"):
        og.Trainer(described(line, (simple(), {"b": "b_new"}, start, {"b": "b0"})))
    with pytest.raises(og.ModelError, match="updates nothing"):
        og.Trainer(described(line, (simple(), {})))
    unknown = described(line, (simple(body="  b_new = Identity (bb)\n"), {"b": "b_new"}))
    with pytest.raises(og.ModelError, match=r"training_info\[0\].algorithm.*'bb' is not defined"):
        og.Trainer(unknown)
    no_loss = algorithm("", "float[1] b_new", "", "b_new = Identity (b)")
    with pytest.raises(og.ModelError, match="has no loss"):
        og.Trainer(described(line, (no_loss, {"b": "b_new"})))
    shared = simple(body="  p = Identity (b)\n  b_new = Identity (b)\n")
    with pytest.raises(og.ModelError, match=r"'p' has a name that is already used"):
        og.Trainer(described(line, (shared, {"b": "b_new"})))


def test_new_values_of_another_shape_for_a_batch_are_refused():
    # As far as the graph shows, [N, 1] may be [2, 1].
    graph = algorithm(
        "float[N,1] label",
        "float loss, float[N,1] w_new",
        "",
        LOSS + "  w_new = Identity (e)\n",
    )
    session = og.TrainingSession(described(parsed(LINE), (graph, {"w": "w_new"})))
    x, y = line_data()
    with pytest.raises(og.ShapeError, match=r"state 'w' is float32\[2, 1\].*\[3, 1\]"):
        session.step({"x": x[:3], "label": y[:3]})
    session.step({"x": x[:2], "label": y[:2]})
    error = x[:2] @ np.array([[0.5], [-0.5]]) + 0.1 - y[:2]
    np.testing.assert_allclose(session.state()["w"], error, rtol=1e-5)


def test_one_output_for_two_initializers_and_inputs_by_name():
    graph = algorithm(
        "float[N,1] label, float[N,1] scale, float[1] step",
        "float loss, float[1] b_new",
        "float[1] old = {9}",
        """
  e = Sub (y, label)
  s = Mul (e, scale)
  ee = Mul (s, s)
  loss = ReduceMean <keepdims = 0> (ee)
  b_new = Sub (b, step)
""",
    )
    model = described(parsed(LINE), (graph, {"b": "b_new", "old": "b_new"}))
    session = og.TrainingSession(model)
    assert session.target_name == "label"
    assert [value.name for value in session.get_inputs()] == ["x", "scale", "step"]
    x, y = line_data()
    feeds = {"x": x, "label": y, "scale": 2 * np.ones_like(y), "step": np.array([0.25], np.float32)}
    loss = session.step(feeds)
    assert loss == pytest.approx(4 * np.mean((x @ [[0.5], [-0.5]] + 0.1 - y) ** 2), rel=1e-5)
    assert session.state()["b"] == session.state()["old"] == pytest.approx(-0.15)


def test_labels_of_a_written_classifier(iris):
    from sklearn.linear_model import LogisticRegression

    skl2onnx = pytest.importorskip("skl2onnx")
    x, y = iris
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    estimator = LogisticRegression(max_iter=5).fit(x, names)
    model = skl2onnx.to_onnx(estimator, x[:1], options={"zipmap": False}, target_opset=17)
    written = og.add_training_info(model, optimizer="sgd")
    loaded, direct = og.Trainer(written), og.Trainer(model, optimizer="sgd")
    for trainer in (loaded, direct):
        trainer.fit(x, names, epochs=3, batch_size=50, verbose=0)
    assert list(loaded.session.classes) == ["setosa", "versicolor", "virginica"]
    assert loaded.history["train_loss"] == pytest.approx(direct.history["train_loss"], rel=1e-5)
    with pytest.raises(og.DataError, match="daisy"):
        loaded.fit(x[:2], np.array(["setosa", "daisy"]), epochs=1, verbose=0)
