"""Concurrent calls of a session; its profiles and memory; losses that are not finite."""

import json
import threading

import numpy as np
import onnx
import pytest

import onnxgrad as og
from support import initializers, mlp_proto


def data(rows=64, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4)).astype(np.float32)
    return X, np.stack([X.sum(axis=1), X[:, 0]], axis=1)


def test_profile_is_a_table_and_a_trace(tmp_path):
    X, y = data()
    session = og.TrainingSession(mlp_proto([4, 8, 2]), "squared_error", "adam", threads=1)
    with session.profiling() as profile:
        for _ in range(7):
            session.step({"X": X, "label": y})
    assert {kernel.calls for kernel in profile.kernels} == {7}
    times = [kernel.total_s for kernel in profile.kernels]
    assert times == sorted(times, reverse=True)
    assert profile.kernels[0].op_type in str(profile)
    profile.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == 7 * len(profile.kernels)
    by_node = {}
    for event in events:
        assert event["ph"] == "X"
        assert event["dur"] >= 0
        by_node[event["name"]] = by_node.get(event["name"], 0) + event["dur"]
    for kernel in profile.kernels:
        assert by_node[kernel.node] == pytest.approx(1e6 * kernel.total_s, rel=1e-6)


def test_memory_counts_what_numpy_counts():
    X, y = data()
    model = mlp_proto([4, 8, 2])
    session = og.TrainingSession(model, "squared_error", "adam")
    session.step({"X": X, "label": y})
    memory = session.memory()
    assert memory.weights == sum(weight.nbytes for weight in initializers(model).values())
    assert memory.weights + memory.optimizer_state == sum(
        v.nbytes for v in session.state().values()
    )
    assert memory.total == sum(part for part in memory if isinstance(part, (int, float)))


def test_inference_has_profile_and_memory(tmp_path):
    X, _ = data()
    model = mlp_proto([4, 8, 2])
    session = og.InferenceSession(model, threads=1)
    assert session.memory().activations == 0
    session.run(None, {"X": X})
    with session.profiling() as profile:
        for _ in range(5):
            session.run(None, {"X": X})
    assert profile.kernels
    assert {kernel.calls for kernel in profile.kernels} == {5}
    assert profile.kernels[0].op_type in str(profile)
    profile.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == 5 * len(profile.kernels)
    memory = session.memory()
    assert isinstance(memory, type(og.TrainingSession(model, "squared_error").memory()))
    assert memory.activations >= 64 * 2 * 4  # the output
    assert memory.weights == memory.optimizer_state == memory.evaluation == memory.snapshots == 0
    assert memory.total == sum(part for part in memory if isinstance(part, (int, float)))
    with pytest.raises(og.DataError), session.profiling():
        session.run(["none"], {"X": X})
    with session.profiling() as profile:
        session.run(None, {"X": X})
    assert profile.kernels[0].calls == 1


def test_shapes_are_compiled_once():
    X, y = data()
    session = og.TrainingSession(mlp_proto([4, 8, 2]), "squared_error", "sgd")
    for _ in range(3):
        for rows in (5, 64, 1):
            session.step({"X": X[:rows], "label": y[:rows]})
    assert session.num_compiled == 3


def test_other_threads_are_refused_while_fit_runs():
    X, y = data()
    trainer = og.Trainer(mlp_proto([4, 8, 2]), lr=1e-5)
    session = trainer.session
    begun, answers = threading.Event(), []
    calls = [
        lambda: session.step({"X": X, "label": y}),
        lambda: session.state(),
        lambda: session.predict({"X": X}),
        lambda: setattr(session, "lr", 9.0),
        lambda: trainer.fit(X, y, verbose=0),
        lambda: trainer.evaluate(X, y),
        lambda: session.trained_model(),
        lambda: session.reset(),
    ]

    def work(call):
        begun.wait(60)
        try:
            call()
            answers.append("done")
        except og.Error as error:
            answers.append(str(error))
        if len(answers) == len(calls):
            trainer.stop("all have asked")

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()

    def on_epoch_end(_trainer, _logs):
        begun.set()

    trainer.fit(X, y, epochs=10**9, verbose=0, callbacks=[on_epoch_end])
    for thread in threads:
        thread.join()
    assert all("busy" in answer for answer in answers), answers
    assert trainer.stop_reason == "all have asked"
    assert trainer.session.lr == pytest.approx(1e-5)


def test_callbacks_may_read_and_set_the_rate():
    X, y = data()
    trainer = og.Trainer(mlp_proto([4, 8, 2]), "squared_error")
    seen = []

    def on_epoch_end(trainer, _logs):
        trainer.session.state()
        trainer.predict(X)
        trainer.session.lr = 1e-4
        for call in (
            lambda: trainer.session.step({"X": X, "label": y}),
            lambda: trainer.session.reset(),
            lambda: trainer.fit(X, y, verbose=0),
        ):
            with pytest.raises(og.Error, match="callback"):
                call()
        seen.append(trainer.session.lr)

    trainer.fit(X, y, epochs=2, verbose=0, callbacks=[on_epoch_end])
    assert seen == [1e-4, 1e-4]


def test_a_loss_that_is_not_finite():
    X, y = data()
    trainer = og.Trainer(mlp_proto([4, 2]), "squared_error", og.optimizers.SGD(lr=1e30))
    before = trainer.session.state()
    with pytest.raises(og.ConvergenceError) as caught:
        trainer.fit(X, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    text = str(caught.value)
    assert "epoch 1, step 2 (batch 2, rows 16, 17, 18, 19, ...)" in text
    assert "the first value that is not finite is 'loss/Mul'" in text
    # The first step by NumPy: gradient descent on the mean over all elements.
    w, b = (before[name].astype(np.float64) for name in ("W0", "b0"))
    difference = X[:16] @ w + b - y[:16]
    expected = w - 1e30 * 2 * X[:16].T @ difference / difference.size
    np.testing.assert_allclose(trainer.session.state()["W0"], expected, rtol=1e-4)
    assert trainer.session.steps == 1


PAIR = """<ir_version: 8, opset_import: ["" : 17]>
    m (float[N, 3] A, float[N, 3] B) => (float[N, 1] Y) <float[3, 1] w = {1, 2, 3}>
    { X = Add (A, B)  Y = MatMul (X, w) }"""
PLACES = """<ir_version: 8, opset_import: ["" : 17]>
    m (float[N, T, 2] A, float[M, T, 2] B) => (float[K, T, 4] Y)
    { Y = Concat <axis = 2> (A, B) }"""


def ones(*shape):
    return np.ones(shape, np.float32)


def entry_points():
    """Every call that takes arrays, with B of `b` rows and labels of `y` rows beside A of 4."""
    proto = onnx.parser.parse_model(PAIR)
    session = og.TrainingSession(proto, "squared_error", sample_weight="weight")
    trainer = og.Trainer(proto, "squared_error")
    passes = og.ForwardBackward(proto)

    def feeds(b, y, w):
        return {"A": ones(4, 3), "B": ones(b, 3), "label": ones(y, 1), "weight": ones(w)}

    def rows(b, y, w):
        return {"A": ones(4, 3), "B": ones(b, 3)}, ones(y, 1), ones(w)

    def inputs(b):
        return {"A": ones(4, 3), "B": ones(b, 3)}

    return {
        "step": lambda b, y, w: session.step(feeds(b, y, w)),
        "evaluate": lambda b, y, w: session.evaluate(feeds(b, y, w)),
        "predict": lambda b, y, w: session.predict(inputs(b)),
        "run": lambda b, y, w: og.InferenceSession(proto).run(None, inputs(b)),
        "forward": lambda b, y, w: passes.forward(inputs(b)),
        "fit": lambda b, y, w: trainer.fit(*rows(b, y, w), epochs=1, verbose=0),
        "batches": lambda b, y, w: trainer.fit([rows(b, y, w)], epochs=1, verbose=0),
        "Trainer.evaluate": lambda b, y, w: trainer.evaluate(*rows(b, y, w)),
    }


ENTRY_POINTS = entry_points()


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_unequal_numbers_of_rows_name_the_arrays(name):
    call = ENTRY_POINTS[name]
    call(4, 4, 4)
    has_labels = name not in ("predict", "run", "forward")
    for other in (5, 3) + ((1,) if has_labels else ()):  # one row would be broadcast
        wrong = [(other, 4, 4)] if other > 1 else []
        wrong += [(4, other, 4), (4, 4, other)] if has_labels else []
        for counts in wrong:
            with pytest.raises((og.ShapeError, og.DataError)) as info:
                call(*counts)
            first = str(info.value).splitlines()[0]
            assert "rows" in first, first
            assert "4" in first, first
            assert str(other) in first, first
            array = ("'B'", "'label'", "'weight'")[[count != 4 for count in counts].index(True)]
            assert array in first or "target" in first or "sample weights" in first, first
    call(4, 4, 4)


def test_gradients_of_another_number_of_rows_name_the_output():
    passes = og.ForwardBackward(onnx.parser.parse_model(PAIR))
    passes.forward({"A": ones(4, 3), "B": ones(4, 3)})
    with pytest.raises(og.ShapeError, match=r"'Y' is float32\[5, 1\], expected float32\[4, 1\]"):
        passes.backward({"Y": ones(5, 1)})


def test_other_sizes_of_one_name_are_reported_too():
    session = og.InferenceSession(onnx.parser.parse_model(PLACES))
    with pytest.raises(og.ShapeError) as info:
        session.run(None, {"A": ones(2, 5, 2), "B": ones(2, 4, 2)})
    text = str(info.value)
    assert "differ in the size of 'T': 'A' [2, 5, 2] has 5, 'B' [2, 4, 2] has 4" in text
    assert "As a result:" in text
