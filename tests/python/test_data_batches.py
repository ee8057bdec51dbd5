"""Batches that Python makes: shapes, order, ends, errors; and the options of the epoch loop."""

import threading
import time

import numpy as np
import pytest

import onnxgrad as og
from support import initializers, mlp_proto, run_python


def in_batches(X, y, size, *more):
    return [tuple(array[i : i + size] for array in (X, y, *more)) for i in range(0, len(X), size)]


def weights_after(trainer):
    return initializers(trainer.trained_model())


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(103, 4)).astype(np.float32)
    return X, (X @ rng.normal(size=(4, 3)) + 0.1).astype(np.float32)


def make_trainer(**options):
    return og.Trainer(mlp_proto([4, 8, 3], seed=1), "squared_error", "sgd", lr=0.05, **options)


KINDS = {
    "list": lambda batches: batches,
    "function": lambda batches: lambda: iter(batches),
    "source": lambda batches: og.data.Batches(batches),
    "dictionaries": lambda batches: [{"X": X, "label": y} for X, y in batches],
    "inputs by name": lambda batches: [({"X": X}, y) for X, y in batches],
    "float64": lambda batches: [(X.astype(np.float64), y.tolist()) for X, y in batches],
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_as_they_come_are_the_rows_in_order(kind, rows):
    X, y = rows
    expected = make_trainer().fit(X, y, epochs=3, batch_size=10, shuffle=False, verbose=0)
    found = make_trainer().fit(KINDS[kind](in_batches(X, y, 10)), epochs=3, verbose=0)
    assert found.history["train_loss"] == pytest.approx(expected.history["train_loss"], rel=1e-6)
    for name, value in weights_after(expected).items():
        np.testing.assert_array_equal(weights_after(found)[name], value)


@pytest.mark.parametrize("kind", ["dictionaries", "tables"])
def test_a_target_of_several_columns(kind, rows):
    X, y = rows
    columns = ["p", "q", "r"]
    batches = []
    for part, values in in_batches(X, y, 10):
        named = {name: values[:, i] for i, name in enumerate(columns)}
        if kind == "dictionaries":
            batches.append({"X": part, **named})
        else:
            named |= {f"x{i}": part[:, i] for i in range(4)}
            batches.append(pytest.importorskip("pyarrow").table(named))
    expected = make_trainer().fit(X, y, epochs=2, batch_size=10, shuffle=False, verbose=0)
    found = make_trainer().fit(og.data.Batches(batches, target=columns), epochs=2, verbose=0)
    for name, value in weights_after(expected).items():
        np.testing.assert_array_equal(weights_after(found)[name], value)
    with pytest.raises(og.DataError, match="'z'" if kind == "dictionaries" else "columns"):
        make_trainer().fit(og.data.Batches(batches, target=["p", "z"]), epochs=1, verbose=0)


@pytest.mark.parametrize("chunk", [1, 7, 10, 64, 103])
def test_rows_are_collected_to_batches(chunk, rows):
    X, y = rows
    expected = make_trainer().fit(X, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
    found = make_trainer().fit(
        in_batches(X, y, chunk), epochs=2, batch_size=16, shuffle=False, verbose=0
    )
    for name, value in weights_after(expected).items():
        np.testing.assert_array_equal(weights_after(found)[name], value)
    assert found.history["epoch"] == [1, 2]


def test_shuffling_depends_on_seed_and_epoch_alone(rows):
    X, y = rows

    def train(seed, chunk):
        trainer = make_trainer(seed=seed)
        trainer.fit(in_batches(X, y, chunk), epochs=2, batch_size=16, verbose=0)
        return weights_after(trainer)

    first = train(1, 9)
    for name, value in train(1, 20).items():  # all rows are in one block: chunks do not matter
        np.testing.assert_array_equal(first[name], value)
    assert any((first[name] != value).any() for name, value in train(2, 9).items())


def test_windows_are_consecutive_rows_that_begin_anywhere(rows):
    X, y = rows
    found = make_trainer(seed=4).fit(X, y, epochs=2, batch_size=10, sampling="windows", verbose=0)
    starts = [og.data.window_starts(len(X), 10, 4, epoch) for epoch in (0, 1)]
    assert starts[0] != starts[1]
    assert all(len(epoch) == 11 and max(epoch) <= 93 and min(epoch) >= 0 for epoch in starts)
    expected = make_trainer()
    for epoch in starts:
        expected.fit([(X[i : i + 10], y[i : i + 10]) for i in epoch], epochs=1, verbose=0)
    for name, value in weights_after(expected).items():
        np.testing.assert_array_equal(weights_after(found)[name], value)
    drawn = [start for seed in range(100) for start in og.data.window_starts(7, 3, seed)]
    assert {*drawn} == {0, 1, 2, 3, 4}
    assert og.data.window_starts(7, 20) == [0]


def test_windows_that_cannot_be(rows):
    X, y = rows
    with pytest.raises(og.OptionError, match="sampling: unknown 'window'"):
        make_trainer().fit(X, y, sampling="window", verbose=0)
    with pytest.raises(og.OptionError, match="shuffle is false"):
        make_trainer().fit(X, y, sampling="windows", shuffle=False, verbose=0)
    with pytest.raises(og.DataError, match="windows and weighted or balanced rows need arrays"):
        make_trainer().fit(in_batches(X, y, 10), sampling="windows", verbose=0)


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "steps"), [(10, False, 11), (10, True, 10), (None, True, 10)]
)
def test_last_partial_batch(batch_size, drop_last, steps, rows):
    X, y = rows
    for data in ((X, y), (in_batches(X, y, 10), None)):
        trainer = make_trainer()
        size = 10 if data[1] is not None else batch_size
        trainer.fit(*data, epochs=1, batch_size=size, drop_last=drop_last, verbose=0)
        assert trainer.session.steps == steps


def test_generator_gives_one_epoch(rows):
    X, y = rows
    trainer = make_trainer()
    trainer.fit((batch for batch in in_batches(X, y, 10)), epochs=1, verbose=0)
    assert trainer.session.steps == 11
    with pytest.raises(og.DataError, match="epoch 2 has no rows"):
        trainer.fit((batch for batch in in_batches(X, y, 10)), epochs=2, verbose=0)
    assert trainer.session.steps == 22


def test_sequences_of_several_lengths():
    model = """
    <ir_version: 8, opset_import: ["" : 17]>
    seq (float[N, T, 2] X) => (float[N, 1] Y) <float[2, 1] w = {0.5, 0.25}>
    { h = MatMul(X, w)  Y = ReduceMean<axes = [1], keepdims = 0>(h) }
    """
    import onnx.parser

    rng = np.random.default_rng(0)
    batches = []
    for length in (3, 5, 3, 8):
        X = rng.normal(size=(4, length, 2)).astype(np.float32)
        batches.append((X, X.mean(axis=1) @ np.array([[1.0], [-1.0]], np.float32)))
    trainer = og.Trainer(onnx.parser.parse_model(model), "squared_error", "adam", lr=0.1)
    trainer.fit(batches, epochs=100, verbose=0)
    np.testing.assert_allclose(weights_after(trainer)["w"].ravel(), [1, -1], atol=1e-2)
    with pytest.raises(og.DataError, match="different shapes"):
        trainer.fit(batches, epochs=1, batch_size=8, verbose=0)


BAD = {
    "no tuple": ([np.zeros((2, 4))], "batch 0 is a ndarray"),
    "four": ([(1, 2, 3, 4)], "batch 0 is a tuple of length 4"),
    "no target": ([{"X": np.zeros((2, 4))}], "without the target 'label'"),
    "columns": ([(np.zeros((2, 5), np.float32), np.zeros((2, 3)))], "has 5 columns"),
    "nan": (
        [
            (np.zeros((8, 4), np.float32), np.zeros((8, 3))),
            (np.full((8, 4), np.nan, np.float32), np.zeros((8, 3))),
        ],
        "'X' has NaN in row 8, column 0",
    ),
    "rows": ([(np.zeros((2, 4), np.float32), np.zeros((3, 3)))], "has 2 rows"),
    "empty": ([], "epoch 1 has no rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_batches(case):
    batches, message = BAD[case]
    with pytest.raises(og.DataError, match=message):
        make_trainer().fit(batches, epochs=1, verbose=0)


def test_exception_of_a_generator_comes_out_and_weights_stay_usable(rows):
    X, y = rows

    def broken():
        yield X[:10], y[:10]
        raise KeyError("the user's own")

    threads = threading.active_count()
    trainer = make_trainer()
    with pytest.raises(KeyError, match="the user's own"):
        trainer.fit(broken, verbose=0)
    assert trainer.session.steps <= 1
    trainer.fit(X, y, epochs=1, verbose=0)
    assert threading.active_count() == threads


def test_sample_weights_in_batches(rows):
    X, y = rows
    weight = np.random.default_rng(2).uniform(0, 2, len(X))
    expected = make_trainer().fit(X, y, weight, epochs=2, batch_size=10, shuffle=False, verbose=0)
    source = og.data.Batches(in_batches(X, y, 10, weight), sample_weight=True)
    found = make_trainer().fit(source, epochs=2, verbose=0)
    assert found.history["train_loss"] == pytest.approx(expected.history["train_loss"], rel=1e-6)
    for name, value in weights_after(expected).items():
        np.testing.assert_allclose(weights_after(found)[name], value, rtol=1e-6)


def test_validation_share_of_batches(rows):
    X, y = rows
    trainer = make_trainer().fit(in_batches(X, y, 10), validation=0.3, epochs=2, verbose=0)
    assert len(trainer.history["val_loss"]) == 2
    # Validation rows are equal in each epoch: with a rate of 0 nothing changes.
    trainer.session.lr = 0.0
    trainer.fit(in_batches(X, y, 10), validation=0.3, epochs=3, verbose=0)
    assert len(set(trainer.history["val_loss"])) == 1
    # Training and validation rows together are all rows.
    share = trainer.history["val_loss"][0]
    rest = trainer.history["train_loss"][0]
    whole = trainer.evaluate(X, y).loss
    count = np.round((whole - rest) / (share - rest) * len(X), 3)
    assert count == pytest.approx(round(count), abs=0.05)
    assert 15 < count < 47


def test_validation_and_evaluation_of_batches(rows):
    X, y = rows
    trainer = make_trainer()
    held_out = og.data.Batches(in_batches(X[80:], y[80:], 5))
    trainer.fit(X[:80], y[:80], validation=held_out, epochs=1, verbose=0)
    expected = trainer.evaluate(X[80:], y[80:])
    assert trainer.history["val_loss"][0] == pytest.approx(expected.loss, rel=1e-6)
    found = trainer.evaluate(in_batches(X[80:], y[80:], 7), metrics=["mae"])
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.rows == 23
    assert found.metrics["mae"] == pytest.approx(
        np.abs(trainer.predict(X[80:]) - y[80:]).mean(), rel=1e-5
    )


def test_validation_every(rows):
    X, y = rows
    trainer = make_trainer()
    seen = []
    trainer.fit(
        X,
        y,
        validation=0.2,
        validation_every=3,
        epochs=7,
        callbacks=[lambda _, logs: seen.append("val_loss" in logs)],
        verbose=0,
    )
    assert seen == [False, False, True, False, False, True, False]
    assert np.isnan(trainer.history["val_loss"]).tolist() == [not value for value in seen]
    assert {len(column) for column in trainer.history.values()} == {7}


def test_keep_best(rows):
    X, y = rows
    trainer = og.Trainer(mlp_proto([4, 8, 3], seed=1), "squared_error", "adam", lr=0.01)
    losses, states = [], []

    def spoil(trainer, logs):
        losses.append(logs["val_loss"])
        states.append(weights_after(trainer)["W0"].copy())
        trainer.session.lr = 0.01 if logs["epoch"] < 3 else 1.0

    held_out = (X[80:], y[80:])
    options = {"validation": held_out, "epochs": 6, "callbacks": [spoil], "verbose": 0}
    trainer.fit(X[:80], y[:80], keep_best=True, **options)
    best = int(np.argmin(losses))
    assert best < 5
    history = trainer.history
    assert history.kept_epoch == history.best_epoch == best + 1
    assert history.kept["val_loss"] == losses[best]
    assert trainer.evaluate(*held_out).loss == pytest.approx(losses[best], rel=1e-6)
    assert (
        history.kept_line == f"kept the weights of epoch {best + 1} (val_loss {losses[best]:.6g})"
    )
    assert f"weights of epoch {best + 1}" in repr(history)
    assert history.kept_line in history._repr_html_()
    np.testing.assert_array_equal(weights_after(trainer)["W0"], states[best])
    trainer.fit(X[:80], y[:80], **options)
    assert trainer.history.kept_epoch == 6
    assert not trainer.history.kept_line
    trainer.fit(X[:80], y[:80], batch_size=10, **{**options, "max_steps": 12})  # within an epoch
    assert trainer.history.kept_epoch is None
    assert trainer.history.kept == {}


@pytest.mark.parametrize("limit", [0.3, "0.3s", "0.005m"])
def test_max_time(limit, rows):
    X, y = rows
    start = time.monotonic()
    trainer = make_trainer().fit(X, y, epochs=10**7, max_time=limit, verbose=0)
    assert time.monotonic() - start < 20
    assert "time" in trainer.stop_reason
    assert trainer.session.steps > 0


@pytest.mark.parametrize("bad", ["soon", "30x", -1, 0, "m"])
def test_max_time_refused(bad, rows):
    with pytest.raises(og.OptionError, match="max_time"):
        make_trainer().fit(*rows, max_time=bad, verbose=0)


def test_ctrl_c_while_batches_are_awaited():
    code = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np
import onnxgrad as og
from support import mlp_proto
def slow():
    yield np.zeros((4, 4), np.float32), np.zeros((4, 3), np.float32)
    time.sleep(1.0)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        time.sleep(0.1)
        yield np.zeros((4, 4), np.float32), np.zeros((4, 3), np.float32)
trainer = og.Trainer(mlp_proto([4, 8, 3]), "squared_error", "sgd")
try:
    trainer.fit(slow, verbose=0)
except KeyboardInterrupt:
    print("interrupted after", trainer.session.steps > 0, trainer.stop_reason)
    trainer.fit([(np.zeros((4, 4), np.float32), np.zeros((4, 3), np.float32))], epochs=1, verbose=0)
    print("usable")
"""
    from pathlib import Path

    result = run_python(code, Path(__file__).parent)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:2] == ["interrupted after True interrupted", "usable"]


@pytest.fixture
def npz(rows, tmp_path):
    X, y = rows
    path = tmp_path / "rows.npz"
    np.savez(path, X=X, y=y)
    return path


def chunked(kind, rows, npz):
    """Return the rows as data in chunks, and the options of `fit` that go with it."""
    X, y = rows
    if kind == "file":
        return og.data.NpzFile(npz, chunk_bytes=500), {"batch_size": 10, "buffer_bytes": 1500}
    if kind == "as they come":
        return lambda: iter(in_batches(X, y, 10)), {}
    return in_batches(X, y, 7), {"batch_size": 10, "buffer_bytes": 1500}


class StopAt(og.callbacks.Callback):
    every_n_steps = 1

    def __init__(self, step):
        self.step = step

    def on_step_end(self, trainer, logs):
        return logs["step"] == self.step


@pytest.mark.parametrize("kind", ["file", "collected", "as they come"])
@pytest.mark.parametrize("stop", [3, 11, 17])
def test_resumed_is_uninterrupted(kind, stop, rows, npz, tmp_path):
    data, options = chunked(kind, rows, npz)
    options |= {"epochs": 3, "validation": 0.2, "verbose": 0}
    if kind != "file":
        data = og.data.Batches(data, rows=len(rows[0]))
    whole = make_trainer(schedule="linear").fit(data, **options)
    keeper = og.callbacks.Checkpoint(tmp_path / "run", every=2)
    stopped = make_trainer(schedule="linear")
    stopped.fit(data, callbacks=[keeper, StopAt(stop)], **options)
    assert stopped.session.steps == stop
    resumed = make_trainer(schedule="linear")
    resumed.fit(data, callbacks=[keeper], resume=True, **options)
    assert resumed.session.steps == whole.session.steps
    for column in ("train_loss", "val_loss", "lr"):
        assert resumed.history[column] == whole.history[column]
    for name, value in weights_after(whole).items():
        np.testing.assert_array_equal(weights_after(resumed)[name], value)


def test_what_cannot_be_resumed_says_why(rows, tmp_path):
    X, y = rows
    keeper = og.callbacks.Checkpoint(tmp_path / "run")
    batches = in_batches(X, y, 10)
    make_trainer().fit(batches, epochs=2, callbacks=[keeper, StopAt(5)], verbose=0)
    resume = {"epochs": 2, "callbacks": [keeper], "resume": True, "verbose": 0}
    used_up = (batch for batch in batches)
    list(used_up)
    with pytest.raises(og.CheckpointError, match="epoch 1 has 0 rows") as error:
        make_trainer().fit(used_up, **resume)
    assert "a function that returns a new iterator" in str(error.value)
    with pytest.raises(og.CheckpointError, match="different training or validation rows"):
        make_trainer().fit(in_batches(X + 1, y, 10), **resume)
    with pytest.raises(og.CheckpointError, match="data is chunks in the checkpoint, arrays now"):
        make_trainer().fit(X, y, **resume)
    with pytest.raises(og.CheckpointError, match="batch_size is as they come in"):
        make_trainer().fit(batches, batch_size=5, **resume)
    # An iterator that can be read once is enough for what is left of the epoch.
    trainer = make_trainer().fit((batch for batch in batches), **resume | {"epochs": 1})
    assert trainer.session.steps == 11


@pytest.mark.parametrize("kind", ["file", "collected", "as they come"])
def test_fault_names_step_rows_and_node(kind, rows, npz):
    X, y = rows[0].copy(), rows[1]
    X[64] = 1e30  # its square is not finite in float32
    np.savez(npz, X=X, y=y)
    data, options = chunked(kind, (X, y), npz)
    options |= {"epochs": 2, "shuffle": False, "verbose": 0}
    trainer = make_trainer()
    with pytest.raises(
        og.ConvergenceError, match=r"epoch 1, step 7 \(batch 7, rows 60, 61"
    ) as error:
        trainer.fit(data, **options)
    assert "the first value that is not finite is" in str(error.value)
    expected = make_trainer()
    expected.fit(X[:60], y[:60], epochs=1, batch_size=10, shuffle=False, verbose=0)
    assert trainer.session.steps == 6
    for name, value in weights_after(expected).items():
        np.testing.assert_array_equal(weights_after(trainer)[name], value)
    stopped = make_trainer().fit(data, non_finite="stop", **options)
    assert "rows 60, 61, 62, 63, ..." in stopped.stop_reason
    skipped = make_trainer().fit(data, non_finite="skip", **options)
    assert np.isfinite(weights_after(skipped)["W0"]).all()
    assert skipped.session.steps == 22


@pytest.fixture(scope="module")
def labelled():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(90, 4)).astype(np.float32)
    return X, np.repeat([0, 1, 2], [60, 20, 10])[rng.permutation(90)]


def make_classifier(**options):
    return og.Trainer(
        mlp_proto([4, 8, 3], seed=1), "softmax_cross_entropy", "sgd", lr=0.05, **options
    )


@pytest.mark.parametrize("class_weight", [{0: 0.5, 2: 3.0}, "balanced"])
@pytest.mark.parametrize("kind", ["as they come", "collected", "file", "with sample weights"])
def test_class_weights_of_data_in_chunks(kind, class_weight, labelled, tmp_path):
    X, y = labelled
    weight = None
    if kind == "file":
        np.savez(tmp_path / "rows.npz", X=X, y=y)
        data, options = og.data.NpzFile(tmp_path / "rows.npz"), {"batch_size": 10}
    elif kind == "with sample weights":
        weight = np.random.default_rng(1).uniform(0, 2, len(X))
        data = og.data.Batches(in_batches(X, y, 10, weight), sample_weight=True)
        options = {}
    else:
        data, options = in_batches(X, y, 10 if kind == "as they come" else 7), {}
        if kind == "collected":
            options["batch_size"] = 10
    options |= {"class_weight": class_weight, "epochs": 2, "shuffle": False, "verbose": 0}
    expected = make_classifier().fit(X, y, weight, **options | {"batch_size": 10})
    found = make_classifier().fit(data, **options)
    assert found.history["train_loss"] == pytest.approx(expected.history["train_loss"], rel=1e-6)
    for name, value in weights_after(expected).items():
        np.testing.assert_allclose(weights_after(found)[name], value, rtol=1e-5, atol=1e-7)
    plain = make_classifier().fit(
        X, y, weight, **options | {"class_weight": None, "batch_size": 10}
    )
    assert plain.history["train_loss"] != pytest.approx(expected.history["train_loss"], rel=1e-3)


def test_class_weights_that_cannot_be(labelled, rows):
    X, y = labelled
    batches = in_batches(X, y, 10)
    once = (batch for batch in batches)
    with pytest.raises(og.DataError, match="can be read only once") as error:
        make_classifier().fit(once, class_weight="balanced", epochs=1, verbose=0)
    assert "as numbers by label" in str(error.value)
    assert next(once) is batches[0]
    trainer = make_classifier().fit(once, class_weight={1: 2.0}, epochs=1, verbose=0)
    assert trainer.session.steps == 8
    for bad in ({7: 1.0}, {0.5: 1.0}):
        with pytest.raises(og.DataError, match=r"label|class"):
            make_classifier().fit(batches, class_weight=bad, epochs=1, verbose=0)
    for bad in ({0: -1.0}, "even", {}):
        with pytest.raises(og.OptionError, match="class_weight"):
            make_classifier().fit(batches, class_weight=bad, epochs=1, verbose=0)


SCHEDULES = {
    "linear": og.schedules.Linear(),
    "share": og.schedules.Cosine(length=0.5),
    "warm-up": "warmup_linear",
    "epochs in a chain": og.schedules.Chain([og.schedules.Linear(3), og.schedules.Step(1)]),
    "steps": og.schedules.Exponential(0.9, unit="step"),
    "by epoch": og.schedules.Step(2, 0.5),
    "plateau": og.schedules.Plateau(patience=0, threshold=0.9),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size", [None, 16])
def test_schedules_without_a_number_of_rows(name, size, rows):
    X, y = rows
    passes = []

    def batches():
        passes.append(1)
        return iter(in_batches(X, y, 10))

    rates = {}
    for data in ((X, y), (batches, None)):
        trainer = make_trainer(schedule=SCHEDULES[name])
        options = {"batch_size": size or 10} if data[1] is not None else {"batch_size": size}
        trainer.fit(*data, epochs=4, shuffle=False, verbose=0, **options)
        rates[data[1] is None] = trainer.history["lr"]
    assert rates[True] == rates[False]
    needs_rows = name in ("linear", "share", "warm-up", "epochs in a chain")
    assert len(passes) == 4 + needs_rows


def test_schedule_of_batches_that_can_be_read_once(rows):
    X, y = rows

    def once():
        return (batch for batch in in_batches(X, y, 10))

    with pytest.raises(og.DataError, match="how many rows there are") as error:
        make_trainer(schedule="linear").fit(once(), epochs=1, verbose=0)
    assert "rows=1000" in str(error.value)
    trainer = make_trainer(schedule="linear")
    trainer.fit(og.data.Batches(once(), rows=len(X)), epochs=1, verbose=0)
    expected = make_trainer(schedule="linear")
    expected.fit(X, y, epochs=1, batch_size=10, shuffle=False, verbose=0)
    assert trainer.history["lr"] == expected.history["lr"]
    make_trainer(schedule=og.schedules.Step(2)).fit(once(), epochs=1, verbose=0)


@pytest.mark.parametrize("every", [1, 4])
def test_snapshots_can_be_taken_more_often(every, rows):
    X, y = rows[0].copy(), rows[1]
    X[64] = 1e30
    expected = make_trainer()
    expected.fit(X[:60], y[:60], epochs=1, batch_size=10, shuffle=False, verbose=0)
    for data in ((X, y), (in_batches(X, y, 10), None)):
        trainer = make_trainer()
        options = {"batch_size": 10, "shuffle": False, "verbose": 0, "epochs": 1}
        with pytest.raises(og.ConvergenceError, match=r"step 7 \(batch 7, rows 60, 61"):
            trainer.fit(*data, snapshot_every=every, **options)
        assert trainer.session.steps == 6
        for name, value in weights_after(expected).items():
            np.testing.assert_array_equal(weights_after(trainer)[name], value)
    with pytest.raises(og.OptionError, match="snapshot_every"):
        make_trainer().fit(X, y, snapshot_every=0, verbose=0)
