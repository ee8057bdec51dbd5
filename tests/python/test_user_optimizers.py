"""Updates that users write: models and traced functions, against torch, NumPy and onnxruntime."""

import pickle
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxgrad as og
from onnxgrad import optimizers as opt
from support import initializers, mlp_proto

DATA = Path(__file__).resolve().parents[1] / "data" / "optimizers" / "reference.npz"
KEPT = (1, 2, 10, 50)  # steps after which the weights are stored

MOMENTUM = """
    <ir_version: 8, opset_import: ["" : 17]>
    momentum (FLOAT[n] w, FLOAT[n] g, FLOAT rate, int64 step, FLOAT[n] velocity)
    => (FLOAT[n] new_w, FLOAT[n] new_velocity)
    <FLOAT mu = {0.9}> {
        kept = Mul(velocity, mu)
        new_velocity = Add(kept, g)
        move = Mul(rate, new_velocity)
        new_w = Sub(w, move)
    }"""

# No declared ranks: weights keep their shapes. The learning rate is declared as [1].
ADAM = """
    <ir_version: 8, opset_import: ["" : 17]>
    adam (FLOAT w, FLOAT g, FLOAT[1] rate, FLOAT t, FLOAT m, FLOAT v)
    => (FLOAT new_w, FLOAT new_m, FLOAT new_v)
    <FLOAT b1 = {0.9}, FLOAT b2 = {0.999}, FLOAT a1 = {0.1}, FLOAT a2 = {0.001},
     FLOAT one = {1}, FLOAT epsilon = {1e-8}> {
        m1 = Mul(m, b1)
        m2 = Mul(g, a1)
        new_m = Add(m1, m2)
        v1 = Mul(v, b2)
        gg = Mul(g, g)
        v2 = Mul(gg, a2)
        new_v = Add(v1, v2)
        p1 = Pow(b1, t)
        c1 = Sub(one, p1)
        p2 = Pow(b2, t)
        c2 = Sub(one, p2)
        root = Sqrt(new_v)
        croot = Sqrt(c2)
        scaled = Div(root, croot)
        below = Add(scaled, epsilon)
        direction = Div(new_m, below)
        length = Div(rate, c1)
        scalar = Squeeze(length)
        move = Mul(scalar, direction)
        new_w = Sub(w, move)
    }"""


def rule(text, dtype=np.float32):
    return onnx.parser.parse_model(
        text.replace("FLOAT", {np.float32: "float", np.float64: "double"}[dtype])
    )


@pytest.fixture(scope="module")
def stored():
    with np.load(DATA) as arrays:
        return dict(arrays)


def problem(stored, dtype):
    """The model y = X W + b with its first weights."""
    element = {np.float32: "float", np.float64: "double"}[dtype]
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main ({element}[N, 4] X) => ({element}[N, 3] Y)
        {{ product = MatMul(X, W)  Y = Add(product, b) }}"""
    model = onnx.parser.parse_model(text)
    for name, key in (("W", "weights"), ("b", "bias")):
        value = stored[key].reshape((4, 3) if name == "W" else (3,)).astype(dtype)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def weights_of_steps(session, stored, dtype):
    kept = []
    for step in range(50):
        feeds = {"X": stored["x"][step].astype(dtype), "label": stored["y"][step].astype(dtype)}
        session.step(feeds)
        if step + 1 in KEPT:
            state = session.state()
            kept.append(np.concatenate([np.ravel(state[name]) for name in ("W", "b")]))
    return np.array(kept, np.float64)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("name", "text", "lr"), [("momentum", MOMENTUM, 0.05), ("adam", ADAM, 0.05)]
)
def test_fifty_steps_end_where_torch_ends(name, text, lr, dtype, stored):
    optimizer = opt.User(rule(text, dtype), lr=lr)
    session = og.TrainingSession(problem(stored, dtype), "squared_error", optimizer)
    tolerance = 1e-12 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(
        weights_of_steps(session, stored, dtype),
        stored[f"optimizer/{name}"],
        rtol=tolerance,
        atol=tolerance,
    )


def test_decay_is_added_to_the_gradient(stored):
    plain = """
        <ir_version: 8, opset_import: ["" : 17]>
        sgd (double[n] w, double[n] g, double rate, int64 step) => (double[n] new_w)
        { move = Mul(rate, g)  new_w = Sub(w, move) }"""
    optimizer = opt.User(onnx.parser.parse_model(plain), lr=0.1, weight_decay=0.05)
    session = og.TrainingSession(problem(stored, np.float64), "squared_error", optimizer)
    found = weights_of_steps(session, stored, np.float64)
    np.testing.assert_allclose(found, stored["optimizer/sgd_decay"], rtol=1e-12)
    assert set(session.state()) == {"W", "b"}  # nobody reads the count


@pytest.mark.parametrize("text", [MOMENTUM, ADAM], ids=["momentum", "adam"])
def test_saved_step_in_onnxruntime_does_the_same(text):
    model = mlp_proto([4, 6, 3])
    options = {
        "groups": [opt.ParameterGroup("b0", lr_factor=0.5, weight_decay=0.1)],
        "clip_norm": 0.5,
        "accumulate": 2,
    }
    optimizer = opt.User(rule(text), lr=0.05)
    file = og.training_step(model, "squared_error", optimizer, inline=True, **options)
    stock = onnxruntime.InferenceSession(file.SerializeToString())
    session = og.TrainingSession(model, "squared_error", optimizer, **options)
    rng = np.random.default_rng(5)
    outputs = [output.name for output in stock.get_outputs()]
    state = {}
    for _ in range(6):
        feeds = {
            "X": rng.normal(size=(8, 4)).astype(np.float32),
            "label": rng.normal(size=(8, 3)).astype(np.float32),
        }
        rate = {"learning_rate": np.array(0.05, np.float32)}
        found = dict(zip(outputs, stock.run(None, {**feeds, **rate, **state}), strict=True))
        session.step(feeds)
        state = {n.removeprefix("next/"): a for n, a in found.items() if n.startswith("next/")}
    ours = session.state()
    assert set(state) == set(ours)
    for name, value in state.items():
        np.testing.assert_allclose(value, ours[name], rtol=2e-6, atol=2e-6, err_msg=name)


def test_slots_start_as_their_default():
    """An accumulator that starts at 0.5, as Adagrad's."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        rule (float[n] w, float[n] g, float rate, int64 step, float[n] sum)
        => (float[n] new_w, float[n] new_sum)
        <float[1] sum = {0.5}> {
            gg = Mul(g, g)
            new_sum = Add(sum, gg)
            root = Sqrt(new_sum)
            part = Div(g, root)
            move = Mul(rate, part)
            new_w = Sub(w, move)
        }"""
    model = mlp_proto([4, 3])
    ours = og.TrainingSession(
        model, "squared_error", opt.User(onnx.parser.parse_model(text), lr=0.1)
    )
    known = opt.Adagrad(0.1, initial_accumulator=0.5, epsilon=0.0)
    theirs = og.TrainingSession(model, "squared_error", known)
    assert all(np.all(v == 0.5) for n, v in ours.state().items() if n.startswith("sum/"))
    rng = np.random.default_rng(1)
    for _ in range(5):
        feeds = {"X": rng.normal(size=(8, 4)), "label": rng.normal(size=(8, 3))}
        feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
        ours.step(feeds)
        theirs.step(feeds)
    for name, value in theirs.state().items():
        found = ours.state()[name.replace("adagrad_sum", "sum")]
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6, err_msg=name)


def data(rows=60):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(rows, 4)).astype(np.float32)
    return X, (X @ rng.normal(size=(4, 3))).astype(np.float32)


def test_resumed_fit_is_the_whole_one(tmp_path):
    X, y = data()

    def fit(epochs, **options):
        trainer = og.Trainer(mlp_proto([4, 5, 3]), "squared_error", opt.User(rule(ADAM), lr=0.01))
        save = og.callbacks.Checkpoint(tmp_path / "run")
        return trainer.fit(X, y, epochs=epochs, verbose=0, callbacks=[save], **options)

    fit(2)
    resumed = fit(5, resume=True)
    whole = og.Trainer(mlp_proto([4, 5, 3]), "squared_error", opt.User(rule(ADAM), lr=0.01))
    whole.fit(X, y, epochs=5, verbose=0)
    for name, value in initializers(whole.trained_model()).items():
        np.testing.assert_array_equal(initializers(resumed.trained_model())[name], value)
    other = og.Trainer(mlp_proto([4, 5, 3]), "squared_error", opt.User(rule(MOMENTUM), lr=0.01))
    with pytest.raises(og.CheckpointError):
        other.fit(X, y, epochs=9, verbose=0, resume=tmp_path / "run")


def test_traced_functions_are_their_formulas():
    pytest.importorskip("ndonnx")
    import ndonnx as ndx

    def normed(weight, gradient, lr, step, velocity, scale=2.0):
        """Momentum of normalised gradients; a second slot that only shrinks."""
        length = ndx.sqrt(ndx.sum(gradient * gradient))
        velocity = 0.5 * velocity + gradient / length
        return weight - lr * scale * velocity / step, velocity, scale * 0.5

    X, y = (array.astype(np.float64) for array in data())
    model = mlp_proto([4, 3], dtype=np.float64)
    optimizer = opt.traced(normed, lr=0.1, dtype="float64")
    session = og.TrainingSession(model, "squared_error", optimizer)
    w = {name: value.copy() for name, value in initializers(model).items()}
    v = dict.fromkeys(w, 0.0)
    for step in range(1, 6):
        session.step({"X": X, "label": y})
        error = 2 * (X @ w["W0"] + w["b0"] - y) / y.size
        for name, g in (("W0", X.T @ error), ("b0", error.sum(axis=0))):
            v[name] = 0.5 * v[name] + g / np.sqrt(np.sum(g * g))
            w[name] = w[name] - 0.1 * 2 * 0.5 ** (step - 1) * v[name] / step
    state = session.state()
    for name, value in w.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-12)
        np.testing.assert_allclose(state[f"velocity/{name}"], v[name], rtol=1e-12)
        assert np.all(state[f"scale/{name}"] == 2 * 0.5**5)
    with pytest.raises(og.OptionError, match="2 parameters"):
        opt.traced(lambda w, g: w)
    with pytest.raises(og.OptionError, match="1 results for 1 slots"):
        opt.traced(lambda w, g, lr, t, v: w - lr * g)


def test_descriptions_are_values():
    optimizer = opt.User(rule(MOMENTUM), lr=0.05)
    assert pickle.loads(pickle.dumps(optimizer)) == optimizer
    assert optimizer.replace(lr=0.1).lr == 0.1
    assert optimizer.replace(lr=0.1) != optimizer
    assert "lr=0.05" in repr(optimizer)


BAD = {
    "no slot's output": (
        "=> (FLOAT[n] new_w, FLOAT[n] new_velocity)",
        "=> (FLOAT[n] new_w)",
        "1 slots and 1 outputs",
    ),
    "too few inputs": (
        "FLOAT rate, int64 step, FLOAT[n] velocity",
        "FLOAT[n] velocity",
        "3 inputs",
    ),
    "a reserved name": ("velocity", "accumulated", "cannot be called 'accumulated'"),
    "another size": (
        "new_w = Sub(w, move)",
        "new_w = ReduceSum(move)",
        "output 'new_w' is float32",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_models_that_are_not_updates(case):
    old, new, message = BAD[case]
    assert old in MOMENTUM
    text = MOMENTUM.replace(old, new)
    if case == "too few inputs":
        text = text.replace("Mul(rate, ", "Identity(").replace("rate", "mu")
    with pytest.raises(og.ModelError, match=message):
        og.TrainingSession(mlp_proto([4, 3]), "squared_error", opt.User(rule(text)))


def test_weights_of_another_type_are_refused():
    optimizer = opt.User(rule(MOMENTUM, np.float64))
    with pytest.raises(og.ModelError, match="input 'w' is float64, but weights such as"):
        og.TrainingSession(mlp_proto([4, 3]), "squared_error", optimizer)


def test_groups_with_optimizers_of_their_own():
    """Each group alone moves as a session with that optimizer does."""
    X, y = data()
    model = mlp_proto([4, 5, 3], dtype=np.float64)
    feeds = {"X": X.astype(np.float64), "label": y.astype(np.float64)}
    main = opt.SGD(0.1, momentum=0.9)
    groups = [
        opt.ParameterGroup("W0", optimizer=opt.AdamW(0.02, weight_decay=0.3)),
        opt.ParameterGroup("b1", optimizer="adam", lr=0.05, weight_decay=0.2),
    ]
    mixed = og.TrainingSession(model, "squared_error", main, groups=groups)
    alone = {
        "W0": opt.AdamW(0.02, weight_decay=0.3),
        "b1": opt.Adam(0.05, weight_decay=0.2),
        "W1": main,
        "b0": main,
    }
    for name, optimizer in alone.items():
        session = og.TrainingSession(model, "squared_error", optimizer)
        mixed.reset()
        for _ in range(2):  # the second gradient depends on the other weights
            state = session.state()
            session.load_state({**state, **{w: mixed.state()[w] for w in alone}})
            mixed.step(feeds)
            session.step(feeds)
        np.testing.assert_allclose(mixed.state()[name], session.state()[name], rtol=1e-13)
    assert set(mixed.state()) == {
        *alone, "adam_m/W0", "adam_v/W0", "adam_m/b1", "adam_v/b1", "momentum/W1", "momentum/b0",
        "step_count",
    }  # fmt: skip
    with pytest.raises(og.OptionError, match="L-BFGS cannot be the optimizer of a group"):
        og.TrainingSession(
            model, "squared_error", main, groups=[opt.ParameterGroup("W0", optimizer="lbfgs")]
        )
