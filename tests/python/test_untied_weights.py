"""Weights that only equal values made one in a file: trained and written separately."""

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxgrad as og
from support import initializers, run_python

TRAIN = "import sys; sys.argv[1:1] = ['train']; from onnxgrad.cli import main; main()"
HEADER = '<ir_version: 10, opset_import: ["" : 21]>'
RATE = 0.1


def proto(text, header=HEADER, **arrays):
    """The model of a text, with these initializers beside its own."""
    model = onnx.parser.parse_model(header + text)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model, full_check=True)
    return model


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape, scale=0.5).astype(np.float32)


def zeros(*shape):
    return np.zeros(shape, np.float32)


CHAIN = """
main (float[N, 3] x) => (float[N, 3] y) {
  a = Gemm(x, w1, b)  p = Tanh(a)  c = Gemm(p, w2, b)  q = Tanh(c)  d = MatMul(q, w3)  y = Add(b, d)
}"""
WEIGHTS = {f"w{i}": normal(3, 3, seed=i) for i in (1, 2, 3)}


def chain():
    """Three layers with one bias of zeros."""
    return proto(CHAIN, **WEIGHTS, b=zeros(3))


def data(rows=16):
    return normal(rows, 3, seed=8), normal(rows, 3, seed=9)


def numpy_steps(X, y, steps, tied, rate=RATE):
    """Gradient descent on the mean squared error of `chain`, by hand in float64; `rate` of w."""
    w = [WEIGHTS[f"w{i}"].astype(np.float64) for i in (1, 2, 3)]
    b = [np.zeros(3) for _ in range(3)]
    for _ in range(steps):
        p = np.tanh(X @ w[0] + b[0])
        q = np.tanh(p @ w[1] + b[1])
        d3 = 2 * (q @ w[2] + b[2] - y) / y.size
        d2 = (d3 @ w[2].T) * (1 - q * q)
        d1 = (d2 @ w[1].T) * (1 - p * p)
        of_biases = [d1.sum(axis=0), d2.sum(axis=0), d3.sum(axis=0)]
        if tied:
            of_biases = [sum(of_biases)] * 3
        w = [w[0] - rate * X.T @ d1, w[1] - rate * p.T @ d2, w[2] - rate * q.T @ d3]
        b = [one - RATE * gradient for one, gradient in zip(b, of_biases, strict=True)]
    return w, b


def stock_outputs(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, feeds)


def retied(model, names):
    """The model with the parts of a weight put together again."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for part, name in names.items():
        (tensor,) = (one for one in model.graph.initializer if one.name == part)
        model.graph.initializer.remove(tensor)
        for node in model.graph.node:
            for i, value in enumerate(node.input):
                node.input[i] = name if value == part else value
    return model


@pytest.mark.parametrize("untie", [True, False])
def test_training_is_that_of_numpy_and_the_file_has_its_outputs(untie):
    X, y = data()
    session = og.TrainingSession(chain(), "squared_error", og.optimizers.SGD(lr=RATE), untie=untie)
    for _ in range(20):
        session.step({"x": X, "label": y})
    w, b = numpy_steps(X, y, 20, tied=not untie)
    trained = session.trained_model()
    found = initializers(trained)
    names = ["b", "b_1", "b_2"] if untie else ["b"]
    assert sorted(found) == sorted([*WEIGHTS, *names])
    for i, values in enumerate(w):
        np.testing.assert_allclose(found[f"w{i + 1}"], values, rtol=1e-4, atol=1e-5)
    for name, values in zip(names, b, strict=False):
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)
    (expected,) = session.predict({"x": X})
    np.testing.assert_allclose(stock_outputs(trained, {"x": X})[0], expected, rtol=1e-5, atol=1e-6)
    if untie:
        (numpy_outputs,) = (np.tanh(np.tanh(X @ w[0] + b[0]) @ w[1] + b[1]) @ w[2] + b[2],)
        np.testing.assert_allclose(expected, numpy_outputs, rtol=1e-4, atol=1e-5)


def test_nothing_else_changes_in_the_file():
    original = chain()
    kept = og.TrainingSession(original, "squared_error", untie=False).trained_model()
    assert kept.SerializeToString() == original.SerializeToString()
    apart = og.TrainingSession(original, "squared_error").trained_model()
    assert [one.name for one in apart.graph.initializer] == ["w1", "w2", "w3", "b", "b_1", "b_2"]
    readers = [list(node.input) for node in apart.graph.node if node.op_type in ("Gemm", "Add")]
    assert readers == [["x", "w1", "b"], ["p", "w2", "b_1"], ["b_2", "d"]]
    assert retied(apart, {"b_1": "b", "b_2": "b"}) == original
    # Once apart, they stay as they are.
    assert og.TrainingSession(apart, "squared_error").trained_model() == apart


def test_it_is_reported(capfd):
    X, y = data()
    trainer = og.Trainer(chain(), "squared_error")
    said = "trained separately, since only equal values made them one in the file: "
    assert trainer.session.weights_line.splitlines() == [
        "trains 6 of 6 weights",
        said + "'b' as 'b', 'b_1', 'b_2'",
    ]
    trainer.fit(X, y, epochs=1, verbose=1)
    assert said in capfd.readouterr().err
    report = og.report(chain())
    assert report.separated == {"b": ["b", "b_1", "b_2"]}
    assert "trained separately: 'b' as 'b', 'b_1', 'b_2'" in str(report)
    assert "trained separately" in report._repr_html_()
    tied = og.Trainer(chain(), "squared_error", untie=False)
    assert tied.session.weights_line == "trains 4 of 4 weights"


def test_the_written_step_in_stock_onnxruntime():
    X, y = data()
    step = og.training_step(chain(), "squared_error", "sgd")
    run = onnxruntime.InferenceSession(step.SerializeToString())
    names = [output.name for output in step.graph.output]
    state = {}
    for _ in range(5):
        feeds = {"x": X, "label": y, "learning_rate": np.array(RATE, np.float32), **state}
        results = dict(zip(names, run.run(names, feeds), strict=True))
        state = {n.removeprefix("next/"): v for n, v in results.items() if n.startswith("next/")}
    _, b = numpy_steps(X, y, 5, tied=False)
    for name, values in zip(["b", "b_1", "b_2"], b, strict=True):
        np.testing.assert_allclose(state[name], values, rtol=1e-4, atol=1e-6)
    tied = og.training_step(chain(), "squared_error", "sgd", untie=False)
    assert "next/b_1" not in {output.name for output in tied.graph.output}


def test_biases_alone_are_separate_too():
    X, y = data()
    session = og.TrainingSession(
        chain(), "squared_error", og.optimizers.SGD(lr=RATE), adapter="bitfit"
    )
    for _ in range(5):
        session.step({"x": X, session.target_name: y})
    w, b = numpy_steps(X, y, 5, tied=False, rate=0)
    trained = initializers(session.trained_model())
    for name, values in zip(["b", "b_1", "b_2"], b, strict=True):
        np.testing.assert_allclose(trained[name], values, rtol=1e-4, atol=1e-6)
    h = np.tanh(np.tanh(X @ w[0] + b[0]) @ w[1] + b[1]) @ w[2] + b[2]
    np.testing.assert_allclose(
        stock_outputs(session.trained_model(), {"x": X})[0], h, rtol=1e-4, atol=1e-5
    )


def test_patterns_checkpoints_and_weights_by_name(tmp_path):
    X, y = data()
    frozen = og.TrainingSession(chain(), "squared_error", frozen=["b_1"])
    assert [one.name for one in frozen.trained_weights] == ["w1", "w2", "w3", "b", "b_2"]
    assert [w.name for w in og.TrainingSession(chain(), trainable="b*").trained_weights] == [
        "b",
        "b_1",
        "b_2",
    ]
    session = og.TrainingSession(chain(), "squared_error", "adam")
    session.step({"x": X, "label": y})
    session.save(tmp_path / "state.safetensors")
    other = og.TrainingSession(chain(), "squared_error", "adam")
    other.load(tmp_path / "state.safetensors")
    trained = session.trained_model()
    assert other.trained_model() == trained
    assert og.set_weights(chain(), tmp_path / "state.safetensors") == trained
    assert og.set_weights(chain(), initializers(trained)) == trained
    assert initializers(og.set_weights(chain(), {"b": np.ones(3, np.float32)}))["b"][0] == 1
    with pytest.raises(og.errors.ModelError, match="'b_3'"):
        og.set_weights(chain(), {"b_3": zeros(3)})
    with pytest.raises(og.errors.CheckpointError):
        og.TrainingSession(chain(), "squared_error", "adam", untie=False).load(
            tmp_path / "state.safetensors"
        )


def test_forward_backward_and_initialize():
    X, _ = data()
    layer = og.ForwardBackward(chain())
    (outputs,) = layer.forward({"x": X})
    weights = layer.backward(np.ones_like(outputs)).weights
    tied = og.ForwardBackward(chain(), untie=False)
    (outputs,) = tied.forward({"x": X})
    together = tied.backward(np.ones_like(outputs)).weights["b"]
    parts = weights["b"] + weights["b_1"] + weights["b_2"]
    np.testing.assert_allclose(parts, together, rtol=1e-5)
    assert set(initializers(layer.trained_model())) == {*WEIGHTS, "b", "b_1", "b_2"}
    drawn = initializers(og.initialize(chain(), "uniform", seed=3))
    assert not np.array_equal(drawn["b"], drawn["b_1"])
    assert "b_1" not in initializers(og.initialize(chain(), "uniform", seed=3, untie=False))


def parts(model):
    return og.report(model).separated


SHARED = """
main (float[N, 3] x) => (float[N, 3] y) {
  a = MatMul(x, e)  p = Add(a, b)  q = Relu(p)  t = Transpose<perm = [1, 0]>(e)  c = MatMul(q, t)
  y = Add(c, b)
}"""


def test_a_weight_with_values_of_its_own_stays_one():
    assert parts(proto(SHARED, e=normal(3, 3), b=normal(3, seed=1))) == {}


# One layer that is used on two inputs, with its normalisation before and behind it.
SIAMESE = """
main (float[N, 3] x, float[N, 3] z) => (float[N, 3] y) {
  ax = LayerNormalization(x, g, b)  bx = Gemm(ax, w, b)  cx = Relu(bx)
  dx = LayerNormalization(cx, g, b)
  az = LayerNormalization(z, g, b)  bz = Gemm(az, w, b)  cz = Relu(bz)
  dz = LayerNormalization(cz, g, b)  y = Sub(dx, dz)
}"""


def test_what_a_design_shares_stays_one():
    model = proto(SIAMESE, w=normal(3, 3), g=np.ones(3, np.float32), b=zeros(3))
    # Before, in and behind the one layer; for the scale before and behind it.
    assert parts(model) == {"g": ["g", "g_1"], "b": ["b", "b_1", "b_2"]}
    session = og.TrainingSession(model, "squared_error")
    assert parts(session.trained_model()) == {}
    nodes = session.trained_model().graph.node
    assert [list(node.input[1:]) for node in nodes if len(node.input) == 3] == [
        ["g", "b"],
        ["w", "b_1"],
        ["g_1", "b_2"],
        ["g", "b"],
        ["w", "b_1"],
        ["g_1", "b_2"],
    ]


def test_constants_keep_a_tensor_of_their_own():
    model = proto(
        """main (float[N, 3] x) => (float[N, 3] y) {
          c = Sub(x, zero)  n = BatchNormalization(c, one, zero, zero, one)
          k = Tanh(n)  m = BatchNormalization(k, one, zero, zero, one)  h = MatMul(m, w)
          y = Add(h, zero)
        }""",
        w=normal(3, 3),
        one=np.ones(3, np.float32),
        zero=zeros(3),
    )
    # Scale and variance, shift and mean of each normalisation, and the bias.
    assert {name: len(names) for name, names in parts(model).items()} == {"one": 4, "zero": 6}
    X, y = data()
    session = og.TrainingSession(model, "squared_error", og.optimizers.SGD(lr=RATE))
    for _ in range(3):
        session.step({"x": X, "label": y})
    trained = session.trained_model()
    found = initializers(trained)
    normalizations = [one for one in trained.graph.node if one.op_type == "BatchNormalization"]
    assert trained.graph.node[0].input[1] == "zero"
    np.testing.assert_array_equal(found["zero"], zeros(3))
    names = [name for node in normalizations for name in node.input[1:]]
    assert len(set(names)) == 8
    for name in names:
        start = initializers(model)[name.split("_")[0]]
        assert np.all(found[name] != start), name
    (expected,) = session.predict({"x": X})
    np.testing.assert_allclose(stock_outputs(trained, {"x": X})[0], expected, rtol=1e-5, atol=1e-6)


BRANCHES = """
main (float[N, 3] x, bool c) => (float[N, 3] y) {
  h = Gemm(x, w1, b)
  y = If(c) <then_branch = t () => (float[N, 3] u) { r = Relu(h)  u = Gemm(r, w2, b) },
             else_branch = e () => (float[N, 3] v) <float[3] z = {0, 0, 0}> {
               s = Gemm(h, w2, z)  k = Tanh(s)  v = Gemm(k, w3, z) }>
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_branches(condition):
    model = proto(BRANCHES, **WEIGHTS, b=zeros(3))
    X, y = data()
    session = og.TrainingSession(model, "squared_error", og.optimizers.SGD(lr=RATE))
    assert parts(model) == {"b": ["b", "b_1"], "z": ["z", "z_1"]}
    feeds = {"x": X, "c": np.array(condition)}
    for _ in range(3):
        session.step({**feeds, "label": y})
    trained = session.trained_model()
    onnx.checker.check_model(trained, full_check=True)
    (expected,) = session.predict(feeds)
    np.testing.assert_allclose(stock_outputs(trained, feeds)[0], expected, rtol=1e-5, atol=1e-6)
    assert parts(trained) == {}


FUNCTIONS = """
main (float[N, 3] x) => (float[N, 3] y) {
  h = local.layer(x, w1, b)  y = local.layer(h, w2, b)
}
<domain: "local", opset_import: ["" : 21]>
layer (x, w, b) => (y) { z = Constant<value = float[3] {0, 0, 0}>()  a = MatMul(x, w)  c = Add(a, b)
  d = Add(c, z)  y = Tanh(d) }"""


def test_functions():
    header = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>'
    model = proto(FUNCTIONS, header, w1=WEIGHTS["w1"], w2=WEIGHTS["w2"], b=zeros(3))
    X, y = data()
    session = og.TrainingSession(model, "squared_error", og.optimizers.SGD(lr=RATE))
    assert parts(model) == {"b": ["b", "b_1"]}
    for _ in range(3):
        session.step({"x": X, "label": y})
    trained = session.trained_model()
    assert [list(node.input) for node in trained.graph.node] == [
        ["x", "w1", "b"],
        ["h", "w2", "b_1"],
    ]
    (expected,) = session.predict({"x": X})
    np.testing.assert_allclose(stock_outputs(trained, {"x": X})[0], expected, rtol=1e-5, atol=1e-6)


def test_external_data(tmp_path):
    model = chain()
    onnx.save(
        model,
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="model.data",
        size_threshold=0,
    )
    before = (tmp_path / "model.data").read_bytes()
    X, y = data()
    trainer = og.Trainer(str(tmp_path / "model.onnx"), "squared_error", og.optimizers.SGD(lr=RATE))
    trainer.fit(X, y, epochs=5, batch_size=16, verbose=0)
    for folder in (tmp_path, tmp_path / "other"):
        folder.mkdir(exist_ok=True)
        trainer.save(folder / "trained.onnx")
        run = onnxruntime.InferenceSession(folder / "trained.onnx")
        np.testing.assert_allclose(
            run.run(None, {"x": X})[0], trainer.predict(X), rtol=1e-5, atol=1e-6
        )
        found = initializers(onnx.load(folder / "trained.onnx"))
        assert not np.array_equal(found["b"], found["b_1"])
    assert (tmp_path / "model.data").read_bytes() == before


def test_constant_nodes_old_files_and_taken_names():
    constant = proto(
        """main (float[N, 3] x) => (float[N, 3] y) {
          z = Constant<value = float[3] {0, 0, 0}>()
          a = Gemm(x, w1, z)  p = Tanh(a)  y = Gemm(p, w2, z)
        }""",
        w1=WEIGHTS["w1"],
        w2=WEIGHTS["w2"],
    )
    trained = og.TrainingSession(constant, "squared_error").trained_model()
    onnx.checker.check_model(trained, full_check=True)
    assert [list(node.input) for node in trained.graph.node[1:]] == [
        ["x", "w1", "z"],
        ["a"],
        ["p", "w2", "z_1"],
    ]
    # Before IR version 4 every initializer is an input too.
    old = proto(CHAIN.replace("x) =>", "x, float[3] b) =>"), **WEIGHTS, b=zeros(3))
    old.ir_version = 3
    for name, array in WEIGHTS.items():
        shape = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, array.shape)
        old.graph.input.append(shape)
    del old.opset_import[:]
    old.opset_import.append(onnx.helper.make_opsetid("", 11))
    apart = og.TrainingSession(old, "squared_error").trained_model()
    onnx.checker.check_model(apart)
    assert [one.name for one in apart.graph.input] == ["x", "b", "b_1", "b_2", "w1", "w2", "w3"]
    taken = proto(
        CHAIN.replace("c =", "b_1 =").replace("Tanh(c)", "Tanh(b_1)"), **WEIGHTS, b=zeros(3)
    )
    assert parts(taken) == {"b": ["b", "b_2", "b_3"]}


def test_estimators_and_pickles():
    from onnxgrad.sklearn import OnnxRegressor

    X, y = data(40)
    options = {"max_iter": 3, "random_state": 0}
    model = chain().SerializeToString()
    assert "b_2" in initializers(OnnxRegressor(model, **options).fit(X, y).to_onnx())
    tied = OnnxRegressor(model, untie=False, **options).fit(X, y)
    assert "b_2" not in initializers(tied.to_onnx())
    import pickle

    trainer = og.Trainer(model, "squared_error", untie=False).fit(X, y, epochs=1, verbose=0)
    assert pickle.loads(pickle.dumps(trainer)).trained_model() == trainer.trained_model()


@pytest.mark.parametrize("flags", [[], ["--no-untie"]])
def test_command_line(tmp_path, flags):
    X, y = data()
    np.savez(tmp_path / "rows.npz", x=X, y=y)
    onnx.save(chain(), tmp_path / "model.onnx")
    command = [tmp_path / "model.onnx", "--data", tmp_path / "rows.npz", "--target", "y"]
    command += ["--epochs", 1, "-o", tmp_path / "trained.onnx", *flags]
    done = run_python(TRAIN, *command)
    found = initializers(tmp_path / "trained.onnx")
    assert ("b_1" in found) == (not flags), done.stderr
    assert ("trained separately" in done.stderr) == (not flags)
