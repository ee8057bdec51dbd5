"""Calls from several threads at once; `make free-threaded` runs them without the global lock."""

import sys
import threading
import time

import numpy as np
import pytest

import onnxgrad as og
from support import mlp_proto, run_python

THREADS = 4


def at_once(function, count=THREADS):
    """Results of `function(i)` for each i, called by threads that begin at the same time."""
    start, results, errors = threading.Barrier(count), [None] * count, []

    def work(i):
        try:
            start.wait(60)
            results[i] = function(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def until_free(call):
    """The result of a call that is repeated while the session is busy."""
    while True:
        try:
            return call()
        except og.Error as error:
            if "busy" not in str(error):
                raise
            time.sleep(0)


@pytest.fixture(scope="module")
def model():
    return mlp_proto([4, 16, 2])


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(96, 4)).astype(np.float32)
    return X, np.stack([X.sum(axis=1), X[:, 0]], axis=1)


def trained(model, *rows, **options):
    trainer = og.Trainer(model, "squared_error", "adam")
    trainer.fit(*rows, epochs=3, batch_size=16, verbose=0, **options)
    return trainer.trained_model().SerializeToString()


def test_each_thread_has_a_trainer(model, rows):
    for options in ({}, {"validation": 0.25, "metrics": ["rmse"]}):
        alone = trained(model, *rows, **options)
        assert at_once(lambda i, o=options: trained(model, *rows, **o)) == [alone] * THREADS


def test_callbacks_of_several_threads(model, rows):
    alone = trained(model, *rows)
    seen = [[] for _ in range(THREADS)]

    def train(i):
        def on_epoch_end(trainer, logs):
            seen[i].append((threading.get_ident(), trainer.session.steps))

        return trained(model, *rows, callbacks=[on_epoch_end])

    assert at_once(train) == [alone] * THREADS
    for calls in seen:
        assert [steps for _, steps in calls] == [6, 12, 18]
        assert len({thread for thread, _ in calls}) == 1


@pytest.mark.parametrize("kind", ["csv", "npz", "batches", "functions"])
def test_threads_share_the_data(kind, model, rows, tmp_path):
    X, y = rows
    if kind == "csv":
        path = tmp_path / "rows.csv"
        names = "a,b,c,d,p,q"
        np.savetxt(path, np.hstack([X, y]), delimiter=",", header=names, comments="")
        source = og.data.CsvFile(path, ["p", "q"], chunk_bytes=1024)
    elif kind == "npz":
        path = tmp_path / "rows.npz"
        np.savez(path, X=X, y=y)
        source = og.data.NpzFile(path, "y", chunk_bytes=1024)
    elif kind == "batches":
        source = og.data.Batches([(X[i : i + 16], y[i : i + 16]) for i in range(0, 96, 16)])
    else:
        source = og.data.Rows(lambda begin, end: (X[begin:end], y[begin:end]), 96, piece_rows=10)
    alone = trained(model, source)
    assert at_once(lambda i: trained(model, source)) == [alone] * THREADS


def test_threads_share_an_inference_session(model, rows):
    session = og.InferenceSession(model)
    inputs = [np.ascontiguousarray(rows[0][: 8 * (i + 1)]) for i in range(THREADS)]
    alone = [session.run(None, {"X": X})[0] for X in inputs]

    def run(i):
        return [until_free(lambda: session.run(None, {"X": inputs[i]}))[0] for _ in range(50)]

    for results, expected in zip(at_once(run), alone, strict=True):
        for result in results:
            np.testing.assert_array_equal(result, expected, strict=True)


def test_threads_share_a_training_session(model, rows):
    feeds = {"X": rows[0], "label": rows[1]}
    alone = og.TrainingSession(model, "squared_error", "adam")
    losses = sorted(alone.step(feeds) for _ in range(20 * THREADS))
    session = og.TrainingSession(model, "squared_error", "adam")

    def run(i):
        own = []
        for _ in range(20):
            own.append(until_free(lambda: session.step(feeds)))
            assert 0 < session.steps <= 20 * THREADS  # may be asked for at any time
            assert session.lr == pytest.approx(1e-3)
        return own

    assert sorted(loss for own in at_once(run) for loss in own) == losses
    expected = alone.state()
    for name, value in session.state().items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_descriptions_while_weights_are_frozen(model):
    session = og.TrainingSession(model, "squared_error")
    done = threading.Event()

    def ask(i):
        if i == 0:
            for _ in range(25):
                until_free(lambda: session.freeze("W0"))
                until_free(lambda: session.unfreeze("W0"))
            return done.set()
        while not done.is_set():
            assert [weight.name for weight in session.trained_weights][-1] == "b1"
            assert session.target_name == "label"
            assert session.get_inputs()[0].name == "X"
            assert "TrainingSession" in repr(session)
        return None

    at_once(ask)


def test_threads_share_a_trainer(model, rows):
    trainer = og.Trainer(model, "squared_error", "adam")

    def fit(i):
        try:
            trainer.fit(*rows, epochs=20, batch_size=16, verbose=0)
        except og.Error as error:
            return str(error)
        return "done"

    answers = at_once(fit)
    ran = answers.count("done")
    assert ran >= 1
    assert all(answer == "done" or "busy" in answer for answer in answers), answers
    assert trainer.session.steps == ran * 20 * 6
    assert len(trainer.history["train_loss"]) == 20


def test_threads_share_separate_passes(model, rows):
    passes = og.ForwardBackward(model)
    X, dy = rows[0], np.ones((96, 2), np.float32)
    passes.forward({"X": X}, training=True)
    alone = passes.backward({"Y": dy}).weights

    def run(i):
        for _ in range(10):
            context = until_free(lambda: passes.forward({"X": X}, training=True)).context
            result = until_free(lambda c=context: passes.backward({"Y": dy}, context=c))
            for name, value in result.weights.items():
                np.testing.assert_array_equal(value, alone[name], err_msg=name)

    at_once(run)


def test_derivatives_and_registrations(model):
    header = '<opset_import: ["" : 21], domain: "own">'
    alone = og.gradient(model, "X", fill_grad=True).SerializeToString()

    def differentiate(i):
        for k in range(5):
            text = f"{header} F{i}_{k} (x) => (y) {{ y = Mul (x, x) }}"
            with og.register_operator(text):
                assert og.gradient(model, "X", fill_grad=True).SerializeToString() == alone

    at_once(differentiate)


def test_errors_belong_to_their_thread(model):
    session = og.InferenceSession(model)

    def fail(i):
        for k in range(30):
            name = f"unknown {i} {k}"
            with pytest.raises(og.DataError, match=name):
                until_free(lambda n=name: session.run([n], {"X": np.ones((1, 4), np.float32)}))

    at_once(fail)


IMPORTS = """
import sys, threading
start, errors = threading.Barrier(8), []

def work(i):
    start.wait(60)
    try:
        import onnxgrad as og
        names = [name for name in og.__all__ if name not in ("ray", "sklearn", "plotting")]
        for name in names[i:] + names[:i]:
            getattr(og, name)
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(errors, getattr(sys, "_is_gil_enabled", lambda: True)())
"""


def test_several_threads_import():
    is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    done = run_python(IMPORTS)
    assert done.stdout == f"[] {is_locked}\n", done.stdout + done.stderr
    assert done.stderr == ""
