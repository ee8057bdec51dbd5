"""Trainer: history, validation, callbacks, Ctrl-C, files."""

import signal
import threading
import time

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from support import initializers, mlp_proto, run_python

NAMES = {"epoch", "train_loss", "val_loss", "val_accuracy", "lr", "seconds", "rows_per_s"}


@pytest.fixture(scope="module")
def blobs():
    """Three well separated classes in four dimensions; X [300, 4], y [300]."""
    rng = np.random.default_rng(3)
    y = np.repeat([0, 1, 2], 100)
    X = (rng.normal(size=(300, 4)) + 4 * np.eye(3, 4)[y]).astype(np.float32)
    order = rng.permutation(300)
    return X[order], y[order]


@pytest.fixture
def classifier():
    return og.Trainer(mlp_proto([4, 8, 3], head="Softmax"), lr=0.01)


def test_one_callback_need_not_be_in_a_list(linear_proto, linear_data):
    seen = []
    trainer = og.Trainer(linear_proto)
    trainer.fit(*linear_data, epochs=2, verbose=0, callbacks=lambda _, logs: seen.append(logs))
    assert len(seen) == 2
    stopping = og.callbacks.EarlyStopping(patience=1, min_delta=1e9)
    trainer.fit(*linear_data, epochs=9, verbose=0, callbacks=stopping)
    assert trainer.stop_reason
    with pytest.raises(og.OptionError, match="early_stopping: 5") as caught:
        trainer.fit(*linear_data, early_stopping=5)
    assert "EarlyStopping(patience=5)" in str(caught.value)


def test_early_stopping_as_in_other_packages():
    stopping = og.callbacks.EarlyStopping("val_loss", 5, 0.1, "min", False)
    expected = ("val_loss", 5, 0.1, "min", False)
    names = ("monitor", "patience", "min_delta", "mode", "restore_best")
    assert tuple(getattr(stopping, name) for name in names) == expected
    with pytest.raises(og.OptionError, match="EarlyStopping\\(patience=5\\)"):
        og.callbacks.EarlyStopping(5)


def test_early_stopping_is_given_once(linear_proto, linear_data):
    trainer = og.Trainer(linear_proto)
    one, other = og.callbacks.EarlyStopping(), og.callbacks.EarlyStopping(patience=1)
    for options in (
        {"callbacks": [one, other]},
        {"callbacks": one, "early_stopping": True},
        {"callbacks": one, "early_stopping": other},
    ):
        with pytest.raises(og.OptionError, match="given 2 times"):
            trainer.fit(*linear_data, verbose=0, **options)
    assert trainer.session.steps == 0


def test_what_to_do_about_a_bad_loss(linear_proto, linear_data):
    X, y = linear_data
    trainer = og.Trainer(linear_proto, optimizer="sgd", lr=0.5)
    with pytest.raises(og.ConvergenceError, match=r"the training loss is (inf|nan) at") as caught:
        trainer.fit(X, y * np.float32(1e30), epochs=3, verbose=0)
    assert "Try lr=0.05, a (smaller) clip_norm" in str(caught.value)
    assert "-nan" not in str(caught.value)


def test_on_nan_is_non_finite(linear_proto, linear_data):
    X, y = linear_data
    y = y * np.float32(1e30)
    trainer = og.Trainer(linear_proto, optimizer="sgd", lr=0.5)
    trainer.fit(X, y, epochs=3, on_nan="stop", verbose=0)
    assert "the training loss is" in trainer.stop_reason
    with pytest.raises(og.OptionError, match="two names of the same option"):
        trainer.fit(X, y, on_nan="stop", non_finite="ignore", verbose=0)
    with pytest.raises(og.OptionError, match="maybe"):
        trainer.fit(X, y, on_nan="maybe", verbose=0)


def test_three_lines(linear_file, linear_data, tmp_path):
    X, y = linear_data
    trainer = og.Trainer(str(linear_file), loss="auto", optimizer="adam", lr=0.05)
    trainer.fit(X, y, validation=0.1, epochs=60, batch_size=32, verbose=0)
    trainer.save(tmp_path / "out.onnx")
    found = initializers(tmp_path / "out.onnx")
    np.testing.assert_allclose(found["coef"].ravel(), [1, -2], atol=1e-3)
    np.testing.assert_allclose(found["intercept"], [0.5], atol=1e-3)


def test_history_of_a_classifier(classifier, blobs):
    X, y = blobs
    trainer = classifier.fit(X, y, validation=0.2, epochs=12, verbose=0)
    assert trainer is classifier
    assert set(trainer.history) == NAMES
    assert all(len(column) == 12 for column in trainer.history.values())
    assert trainer.history["epoch"] == list(range(1, 13))
    assert trainer.history["train_loss"][-1] < 0.5 * trainer.history["train_loss"][0]
    assert trainer.history["val_accuracy"][-1] > 0.9
    assert trainer.history["lr"] == [0.01] * 12
    assert all(value > 0 for value in trainer.history["seconds"])
    assert trainer.stop_reason == ""


def test_history_without_validation(classifier, blobs):
    X, y = blobs
    classifier.fit(X, y, epochs=2, verbose=0)
    assert set(classifier.history) == NAMES - {"val_loss", "val_accuracy"}


def test_separate_validation_rows(classifier, blobs):
    X, y = blobs
    classifier.fit(X[:200], y[:200], validation=(X[200:], y[200:]), epochs=3, verbose=0)
    held_out = classifier.evaluate(X[200:], y[200:])
    assert classifier.history["val_loss"][-1] == pytest.approx(held_out.loss, rel=1e-5)
    assert classifier.history["val_accuracy"][-1] == pytest.approx(held_out.accuracy)
    session = onnxruntime.InferenceSession(classifier.trained_model().SerializeToString())
    probabilities = session.run(None, {"X": X[200:]})[0]
    expected = -np.mean(np.log(probabilities[np.arange(100), y[200:]]))
    assert held_out.loss == pytest.approx(expected, rel=1e-4)
    assert held_out.accuracy == pytest.approx(np.mean(probabilities.argmax(axis=1) == y[200:]))


def test_same_seed_same_bytes(blobs):
    X, y = blobs

    def train(seed):
        trainer = og.Trainer(mlp_proto([4, 8, 3]), "softmax_cross_entropy", seed=seed, threads=1)
        return trainer.fit(X, y, epochs=3, verbose=0).trained_model()

    assert train(1).SerializeToString() == train(1).SerializeToString()
    assert train(1) != train(2)


def test_fit_continues_and_reset_restores(blobs):
    X, y = blobs
    model = mlp_proto([4, 8, 3])
    trainer = og.Trainer(model, "softmax_cross_entropy", "sgd", lr=0.05)
    trainer.fit(X, y, epochs=2, shuffle=False, verbose=0)
    first = trainer.history["train_loss"]
    trainer.fit(X, y, epochs=2, shuffle=False, verbose=0)
    assert trainer.history["train_loss"][0] < first[-1]
    trainer.reset()
    assert trainer.history == {}
    found = initializers(trainer.trained_model())
    for name, value in initializers(model).items():
        np.testing.assert_array_equal(found[name], value)
    trainer.fit(X, y, epochs=2, shuffle=False, verbose=0)
    assert trainer.history["train_loss"] == first


def test_trainer_of_a_session(linear_proto, linear_data):
    X, y = linear_data
    session = og.TrainingSession(linear_proto, "squared_error", og.optimizers.SGD(lr=0.1))
    trainer = og.Trainer(session).fit(X, y, epochs=2, verbose=0)
    assert trainer.session is session
    assert session.steps == 2 * 7
    np.testing.assert_array_equal(
        session.state()["coef"], initializers(trainer.trained_model())["coef"]
    )
    with pytest.raises(og.OptionError, match="optimizer"):
        og.Trainer(og.TrainingSession(linear_proto), optimizer="sgd")


@pytest.mark.filterwarnings("ignore:some weights have not changed")
def test_a_session_is_shared(linear_proto):
    session = og.TrainingSession(linear_proto, "squared_error", og.optimizers.SGD(lr=0.25))
    session.load_state({name: 0 * value for name, value in session.state().items()})
    trainers = [og.Trainer(session), og.Trainer(session)]
    X, y = np.zeros((2, 2), np.float32), np.array([1, 3], np.float32)
    trainers[0].fit(X, y, epochs=1, shuffle=False, verbose=0)
    # (b - 1)^2 + (b - 3)^2 over two rows has the gradient -4 at 0, (b - 3)^2 alone -4 at 1.
    assert session.state()["intercept"].item() == 1
    native = session._core
    trainers[1].fit(X, y, sample_weight=[0, 1], epochs=1, shuffle=False, verbose=0)
    assert session.state()["intercept"].item() == 2
    assert session._core is native
    assert all(trainer.session is session for trainer in trainers)
    feeds = {"X": X, "label": y[:, None], "sample_weight": np.array([1, 0], np.float32)}
    assert session.step(feeds) == 1  # (2 - 1)^2


def test_sample_weight_leaves_rows_out(linear_proto, linear_data):
    X, y = linear_data
    spoiled = y.copy()
    spoiled[::2] = 1e3
    weight = np.ones(len(X))
    weight[::2] = 0
    options = {"epochs": 3, "batch_size": 50, "shuffle": False, "verbose": 0}
    weighted = og.Trainer(linear_proto, "squared_error", "sgd", lr=0.1)
    weighted.fit(X, spoiled, sample_weight=weight, **options)
    half = og.Trainer(linear_proto, "squared_error", "sgd", lr=0.1)
    half.fit(X[1::2], y[1::2], **{**options, "batch_size": 25})
    ours, theirs = (initializers(t.trained_model()) for t in (weighted, half))
    np.testing.assert_allclose(ours["coef"], theirs["coef"], rtol=1e-4)
    np.testing.assert_allclose(ours["intercept"], theirs["intercept"], rtol=1e-4)


def test_labels_determine_the_loss_of_columns_without_a_head(blobs, capsys):
    # A file whose output is several bare columns does not say whether they are scores.
    X, y = blobs
    trainer = og.Trainer(mlp_proto([4, 8, 3]), lr=0.01)
    trainer.fit(X, y, epochs=10)
    assert capsys.readouterr().err.startswith("loss: softmax cross-entropy on 'Y'")
    assert trainer.session.is_classifier
    assert trainer.evaluate(X, y).accuracy > 0.9
    values = og.Trainer(mlp_proto([4, 8, 3]), lr=0.01)
    values.fit(X, X[:, :3], epochs=1, verbose=0)
    assert not values.session.is_classifier


def test_sample_weights_come_later(blobs):
    X, y = blobs
    trainer = og.Trainer(mlp_proto([4, 8, 3]), lr=0.01)
    trainer.fit(X, y, epochs=5, verbose=0)
    before = trainer.session.state()
    loss = trainer.evaluate(X, y).loss
    weighted = trainer.evaluate(X, y, sample_weight=np.full(len(y), 2.0))
    assert weighted.loss == pytest.approx(loss, rel=1e-5)
    after = trainer.session.state()
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    trainer.fit(X, y, sample_weight=np.ones(len(y)), epochs=5, verbose=0)
    assert trainer.evaluate(X, y).loss < loss


def test_predict_and_types(classifier, blobs):
    X, y = blobs
    classifier.fit(X.astype(np.float64), y.astype(np.int32), epochs=5, verbose=0)
    found = classifier.predict(X.astype(np.float64))
    assert found.shape == (300, 3)
    np.testing.assert_allclose(found, classifier.predict({"X": X}), rtol=1e-6)
    with pytest.raises(og.OptionError, match="Did you mean 'Y'"):
        classifier.predict(X, "y")


class Recorder(og.callbacks.Callback):
    every_n_steps = 2

    def __init__(self):
        self.calls = []

    def on_train_begin(self, trainer):
        self.calls.append("train_begin")

    def on_epoch_begin(self, trainer):
        self.calls.append("epoch_begin")

    def on_step_end(self, trainer, logs):
        assert logs["step"] % 2 == 0
        assert np.isfinite(logs["train_loss"])
        self.calls.append("step_end")

    def on_validation_end(self, trainer, logs):
        assert logs["val_loss"] > 0
        self.calls.append("validation_end")

    def on_epoch_end(self, trainer, logs):
        assert trainer.history["train_loss"][-1] == logs["train_loss"]
        self.calls.append("epoch_end")

    def on_checkpoint(self, trainer, path):
        self.calls.append(f"checkpoint {path}")

    def on_exception(self, trainer, error):
        self.calls.append(f"exception {type(error).__name__}")

    def on_train_end(self, trainer):
        self.calls.append("train_end")


def test_order_of_hooks(classifier, blobs, tmp_path):
    X, y = blobs
    recorder = Recorder()
    options = {"validation": 0.2, "batch_size": 60, "verbose": 0, "callbacks": [recorder]}
    classifier.fit(X, y, epochs=2, **options)
    epoch = ["epoch_begin", "step_end", "step_end", "validation_end", "epoch_end"]
    assert recorder.calls == ["train_begin", *epoch, *epoch, "train_end"]
    classifier.save(tmp_path / "m.onnx")
    assert recorder.calls[-1] == f"checkpoint {tmp_path / 'm.onnx'}"


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end", "on_step_end"])
def test_callback_stops(classifier, blobs, hook):
    X, y = blobs
    stopper = type("Stopper", (Recorder,), {hook: lambda self, *arguments: True})()
    classifier.fit(X, y, epochs=50, verbose=0, callbacks=[stopper])
    assert len(classifier.history.get("epoch", [])) <= 1
    assert hook in classifier.stop_reason


def test_function_as_callback_and_stop_with_a_reason(classifier, blobs):
    X, y = blobs
    seen = []

    def watch(trainer, logs):
        seen.append(logs["epoch"])
        if logs["epoch"] == 3:
            trainer.stop("three is enough")

    classifier.fit(X, y, epochs=50, verbose=0, callbacks=[watch])
    assert seen == [1, 2, 3]
    assert classifier.stop_reason == "three is enough"
    classifier.fit(X, y, epochs=1, verbose=0)
    assert classifier.stop_reason == ""


def test_early_stopping_keeps_the_best_weights(blobs):
    X, y = blobs
    noise = np.random.default_rng(0).integers(0, 3, 60)
    trainer = og.Trainer(mlp_proto([4, 64, 3]), "cross_entropy", lr=0.01)
    stopping = og.callbacks.EarlyStopping(patience=3)
    held_out = (X[60:], y[60:])
    trainer.fit(X[:60], noise, validation=held_out, epochs=500, verbose=0, callbacks=[stopping])
    losses = trainer.history["val_loss"]
    assert len(losses) < 500
    assert len(losses) - 1 - int(np.argmin(losses)) >= 3
    assert "no improvement for 3 epochs" in trainer.stop_reason
    assert trainer.evaluate(*held_out).loss == pytest.approx(min(losses), rel=1e-3)


def test_allow_nan(linear_proto, linear_data):
    X, y = linear_data
    X = X.copy()
    X[5, 0] = np.inf
    trainer = og.Trainer(linear_proto)
    with pytest.raises(og.DataError, match="row 5, column 0"):
        trainer.fit(X, y, verbose=0)
    with pytest.raises(og.ConvergenceError):
        trainer.fit(X, y, verbose=0, allow_nan=True)


def test_exception_of_a_callback_leaves_the_session_usable(classifier, blobs):
    X, y = blobs
    recorder = Recorder()

    def fail(trainer, logs):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        classifier.fit(X, y, epochs=5, verbose=0, callbacks=[recorder, fail])
    assert recorder.calls[-2:] == ["exception KeyError", "train_end"]
    classifier.fit(X, y, epochs=2, verbose=0)
    assert len(classifier.history["epoch"]) == 2


LONG = 10_000_000


def test_ctrl_c(linear_proto, linear_data):
    X, y = linear_data
    trainer = og.Trainer(linear_proto, lr=1e-6)
    recorder = type("Quiet", (Recorder,), {"every_n_steps": None})()
    recorder.on_epoch_end = lambda *arguments: None
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(X, y, epochs=LONG, verbose=0)
    assert time.monotonic() - start < 5
    steps = trainer.session.steps
    assert steps > 0
    assert trainer.stop_reason == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    trainer.fit(X, y, epochs=1, verbose=0)
    assert trainer.session.steps == steps + 7


ONE_EPOCH = """
import os, signal, sys, threading, time
import numpy as np
import onnxgrad as og
X = np.zeros((1 << 22, 2), np.float32)
trainer = og.Trainer(sys.argv[1], "squared_error", "sgd", threads=1)
def interrupt():
    time.sleep(0.3)
    while not trainer.session.steps: time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
start = time.monotonic()
try:
    trainer.fit(X, X[:, :1], epochs=1, batch_size=1, verbose=0)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted after", time.monotonic() - start, trainer.session.steps)
trainer.save(sys.argv[2])
"""


def test_ctrl_c_within_an_epoch(linear_file, tmp_path):
    done = run_python(ONE_EPOCH, linear_file, tmp_path / "out.onnx")
    assert done.stdout.startswith("interrupted after"), done.stdout + done.stderr
    assert 0 < int(done.stdout.split()[-1]) < 1 << 22
    assert (tmp_path / "out.onnx").exists()


def test_other_threads_run_meanwhile(linear_proto, linear_data):
    X, y = linear_data
    trainer = og.Trainer(linear_proto, lr=1e-6)
    ticks = 0

    def tick():
        nonlocal ticks
        for _ in range(20):
            time.sleep(0.005)
            ticks += 1
        trainer.stop("enough")

    thread = threading.Thread(target=tick)
    thread.start()
    trainer.fit(X, y, epochs=LONG, verbose=0)
    thread.join()
    assert ticks == 20
    assert trainer.stop_reason == "enough"


def test_fit_in_another_thread(linear_proto, linear_data):
    X, y = linear_data
    trainer = og.Trainer(linear_proto)
    thread = threading.Thread(target=trainer.fit, args=(X, y), kwargs={"verbose": 0})
    thread.start()
    thread.join()
    assert len(trainer.history["epoch"]) == 10


def test_second_fit_at_the_same_time_is_refused(linear_proto, linear_data):
    X, y = linear_data
    trainer = og.Trainer(linear_proto)
    refused = []

    def again(_trainer, logs):
        try:
            trainer.session.evaluate({"X": X, "label": y})
        except og.Error as error:
            refused.append(error)
        return True

    trainer.fit(X, y, epochs=2, verbose=0, callbacks=[again])
    assert len(trainer.history["epoch"]) == 1
    assert all("thread" in str(e) or "call" in str(e) for e in refused)


def test_saved_file_differs_only_in_the_weights(linear_file, linear_data, tmp_path):
    X, y = linear_data
    og.Trainer(linear_file).fit(X, y, verbose=0).save(tmp_path / "out.onnx")
    before, after = linear_file.read_bytes(), (tmp_path / "out.onnx").read_bytes()
    assert before != after
    old, new = onnx.load_from_string(before), onnx.load_from_string(after)
    for model in (old, new):
        for tensor in model.graph.initializer:
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    assert old == new
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


def test_lines_when_piped(classifier, blobs, capsys):
    X, y = blobs
    classifier.fit(X, y, validation=0.2, epochs=3)
    found = capsys.readouterr()
    assert found.out == ""
    lines = found.err.splitlines()
    assert lines[0].startswith("loss: softmax cross-entropy on 'scores'")
    titles = ["epoch", "train_loss", "val_loss", "val_accuracy", "lr", "rows/s", "time"]
    assert lines[1].startswith("trains ")
    assert lines[2] == "seed: 0"
    assert lines[3].split() == titles
    assert [int(line.split()[0]) for line in lines[4:]] == [1, 2, 3]
    assert "\x1b" not in found.err
    classifier.fit(X, y, epochs=3, verbose=0)
    assert capsys.readouterr() == ("", "")
    classifier.fit(X, y, epochs=1000, batch_size=len(X), verbose=1)
    assert 100 <= len(capsys.readouterr().err.splitlines()) <= 110


def test_bar_on_a_terminal(classifier, blobs):
    import io

    X, y = blobs
    stream = io.StringIO()
    progress = og.callbacks.Progress(bar=True, stream=stream)
    classifier.fit(X, y, epochs=5, verbose=0, callbacks=[progress])
    text = stream.getvalue()
    assert "\x1b[" in text
    assert "/5" in text
    assert text.count("train_loss") == 1


def test_history_as_csv(classifier, blobs, tmp_path):
    X, y = blobs
    classifier.fit(X, y, epochs=3, verbose=0)
    classifier.history.to_csv(tmp_path / "h.csv")
    table = np.genfromtxt(tmp_path / "h.csv", delimiter=",", names=True)
    np.testing.assert_array_equal(table["train_loss"], classifier.history["train_loss"])
    assert "<table>" in classifier.history._repr_html_()
    with pytest.raises(og.CheckpointError):
        classifier.history.to_csv(tmp_path / "no" / "h.csv")


def test_loss_curves(classifier, blobs, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    X, y = blobs
    classifier.fit(X, y, validation=0.2, epochs=3, verbose=0)
    ax = classifier.history.plot()
    assert [line.get_label() for line in ax.lines] == ["training loss", "validation loss"]
    ax.figure.savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_several_inputs(linear_data):
    X, y = linear_data
    text = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[N, 1] left, float[N, 1] right) => (float[N, 1] Y)
    <float[2, 1] coef = {0, 0}, float[1] bias = {0}>
    { both = Concat<axis = 1>(left, right) m = MatMul(both, coef) Y = Add(m, bias) }"""
    trainer = og.Trainer(onnx.parser.parse_model(text), lr=0.1)
    columns = {"right": X[:, 1:], "left": X[:, :1]}
    trainer.fit(columns, y, epochs=60, verbose=0)
    np.testing.assert_allclose(trainer.session.state()["coef"].ravel(), [1, -2], atol=1e-2)
    with pytest.raises(og.DataError, match="2 inputs"):
        trainer.fit(X, y, verbose=0)
