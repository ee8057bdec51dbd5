"""Checkpoints: resuming is exact, foreign files are refused, other programs can read them."""

import json
import signal
import subprocess
import sys
import time
import tomllib
import warnings

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import onnxgrad as og
from forking import run_module
from onnxgrad.run_folder.description import to_toml
from support import initializers, mlp_proto

safetensors_numpy = pytest.importorskip("safetensors.numpy")


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    return {
        "X": rng.normal(size=(8, 4)).astype(np.float32),
        "label": rng.normal(size=(8, 2)).astype(np.float32),
    }


def session_of(sizes=(4, 5, 2), optimizer="adam", dtype=np.float32):
    return og.TrainingSession(mlp_proto(sizes, dtype=dtype), "squared_error", optimizer)


def same_state(a, b):
    of_a, of_b = a.state(), b.state()
    assert list(of_a) == list(of_b)
    return all(np.array_equal(of_a[name], of_b[name]) for name in of_a)


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam"])
def test_session_continues_bit_for_bit(tmp_path, batch, optimizer):
    first, second = session_of(optimizer=optimizer), session_of(optimizer=optimizer)
    for _ in range(4):
        first.step(batch)
    first.lr = 0.003
    first.save(tmp_path / "state.safetensors")
    losses = [first.step(batch) for _ in range(4)]
    second.load(tmp_path / "state.safetensors")
    assert (second.steps, second.lr) == (4, 0.003)
    assert [second.step(batch) for _ in range(4)] == losses
    assert same_state(first, second)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_safetensors_package_reads_the_weights(tmp_path, batch, dtype):
    session = session_of(dtype=dtype)
    session.step({name: value.astype(dtype) for name, value in batch.items()})
    path = tmp_path / "state.safetensors"
    session.save(path)
    found = safetensors_numpy.load_file(path)
    trained = initializers(session.trained_model())
    weights = {name: value for name, value in found.items() if not name.startswith("onnxgrad:")}
    assert sorted(weights) == sorted(trained)
    for name, value in weights.items():
        np.testing.assert_array_equal(value, trained[name], strict=True)
    for name, value in session.state().items():
        stored = found[name if name in weights else f"onnxgrad:state/{name}"]
        np.testing.assert_array_equal(stored, value, strict=True)
    assert found["onnxgrad:session/steps"] == 1


def test_metadata_say_what_it_is(tmp_path):
    path = tmp_path / "state.safetensors"
    session_of().save(path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    assert metadata["format"] == "onnxgrad-checkpoint"
    assert metadata["version"] == metadata["min_reader"] == "1"
    assert {f"checksum:{name}" for name in header} <= set(metadata)
    assert length % 8 == 0


def test_weights_of_any_safetensors_file_go_into_a_model(tmp_path, batch):
    model = mlp_proto((4, 5, 2))
    rng = np.random.default_rng(3)
    weights = {
        name: rng.normal(size=value.shape).astype(np.float32)
        for name, value in initializers(model).items()
    }
    path = tmp_path / "weights.safetensors"
    safetensors_numpy.save_file(weights, path)
    changed = og.set_weights(model, path)
    for name, value in initializers(changed).items():
        np.testing.assert_array_equal(value, weights[name])
    onnx.checker.check_model(changed)

    session = session_of()
    session.step(batch)
    session.save(tmp_path / "state.safetensors")
    from_checkpoint = og.set_weights(model, str(tmp_path / "state.safetensors"))
    assert from_checkpoint == session.trained_model()

    safetensors_numpy.save_file({"W9": np.zeros(3, np.float32)}, path)
    with pytest.raises(og.ModelError, match="W9"):
        og.set_weights(model, path)
    path.write_bytes(b"no such format")
    with pytest.raises(og.CheckpointError, match="safetensors"):
        og.set_weights(model, path)


def test_checkpoint_of_another_model_is_refused(tmp_path, batch):
    path = tmp_path / "state.safetensors"
    session_of().save(path)
    with pytest.raises(og.CheckpointError, match=r"'W0' is float32\[4, 5\].*float32\[4, 6\]"):
        session_of((4, 6, 2)).load(path)
    with pytest.raises(og.CheckpointError, match="adam_m/W0"):
        session_of(optimizer="sgd").load(path)
    with pytest.raises(og.CheckpointError, match="momentum/W0"):
        session_of(optimizer="momentum").load(path)
    other = mlp_proto((4, 5, 2))
    other.graph.node[2].op_type = "Tanh"
    session = og.TrainingSession(other, "squared_error", "adam")
    before = session.state()
    with pytest.raises(og.CheckpointError, match="of another model") as caught:
        session.load(path)
    assert "Relu" in caught.value.detail
    assert "Tanh" in caught.value.detail
    assert caught.value.file == str(path)
    assert all(np.array_equal(before[name], value) for name, value in session.state().items())
    session.step(batch)


def test_trained_model_continues_from_its_checkpoint(tmp_path, batch):
    """The weights of the file do not count: the checkpoint brings its own."""
    session = session_of()
    session.step(batch)
    session.save(tmp_path / "state.safetensors")
    again = og.TrainingSession(session.trained_model(), "squared_error", "adam")
    again.load(tmp_path / "state.safetensors")
    assert same_state(session, again)


def test_frozen_weights_belong_to_the_model(tmp_path):
    proto = mlp_proto((4, 5, 2))
    path = tmp_path / "state.safetensors"
    og.TrainingSession(proto, "squared_error", "adam", frozen="W0").save(path)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4, 5), np.float32), "W0"))
    with pytest.raises(og.CheckpointError, match="of another model") as caught:
        og.TrainingSession(proto, "squared_error", "adam", frozen="W0").load(path)
    assert "constant W0" in caught.value.detail


def test_files_that_cannot_be_written_or_read(tmp_path):
    session = session_of()
    with pytest.raises(og.CheckpointError, match="folder"):
        session.save(tmp_path / "none" / "state.safetensors")
    with pytest.raises(og.CheckpointError, match="open the file"):
        session.load(tmp_path / "none.safetensors")
    with pytest.raises(og.CheckpointError, match="this is a folder"):
        session.load(tmp_path)
    with pytest.raises(og.OptionError, match="is a model file"):
        session.save(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ Trainer


@pytest.fixture
def rows():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(50, 4)).astype(np.float32)
    return X, np.tanh(X[:, :2] * X[:, 2:]).astype(np.float32)


def trainer_of():
    return og.Trainer(mlp_proto((4, 5, 2)), "squared_error", "adam", lr=0.01)


def fit(trainer, rows, **options):
    options = {"epochs": 6, "batch_size": 8, "validation": 0.2, "verbose": 0, **options}
    return trainer.fit(*rows, **options)


def without_times(history):
    return {name: v for name, v in history.items() if name not in ("seconds", "rows_per_s")}


class StopAt(og.callbacks.Callback):
    every_n_steps = 1

    def __init__(self, step, error=None):
        self.step, self.error = step, error

    def on_step_end(self, trainer, logs):
        if logs["step"] == self.step:
            if self.error is not None:
                raise self.error
            return True
        return None


@pytest.mark.parametrize("every", ["epoch", 2])
@pytest.mark.parametrize("error", [None, RuntimeError("mine"), KeyboardInterrupt()])
def test_resumed_training_is_the_uninterrupted_one(tmp_path, rows, every, error):
    whole = fit(trainer_of(), rows)
    folder = tmp_path / "run"
    stopped = trainer_of()
    callbacks = [og.callbacks.Checkpoint(folder, every=every), StopAt(8, error)]
    if error is None:
        fit(stopped, rows, callbacks=callbacks)
    else:
        with pytest.raises(type(error)):
            fit(stopped, rows, callbacks=callbacks)
    assert stopped.session.steps == 8
    assert (folder / "ck-000000000008.safetensors").exists()

    resumed = trainer_of()
    epochs = []
    fit(
        resumed,
        rows,
        callbacks=[og.callbacks.Checkpoint(folder), lambda _, logs: epochs.append(logs["epoch"])],
        resume=True,
    )
    assert epochs == [2, 3, 4, 5, 6]
    assert same_state(whole.session, resumed.session)
    assert without_times(whole.history) == without_times(resumed.history)
    assert len(resumed.history["seconds"]) == 6
    assert resumed.checkpoint_problem == ""


def test_a_resumed_fit_without_a_step_keeps_its_time(tmp_path, rows):
    for resume in (False, True):
        trainer = og.Trainer(mlp_proto((4, 5, 2)), "squared_error")
        keeper = og.callbacks.Checkpoint(tmp_path / "run")
        fit(trainer, rows, callbacks=[keeper], resume=resume, max_steps=3)
        assert trainer.history["seconds"][-1] < 60


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw", "schedule": "cosine"},
        {"optimizer": "lion", "accumulate": 3, "clip_norm": 0.5},
        {"optimizer": "rmsprop", "schedule": "plateau", "frozen": "W0"},
        {"optimizer": og.optimizers.SGD(lr=0.1, momentum=0.9), "accumulate": 2},
    ],
    ids=lambda options: str(options["optimizer"])[:8],
)
def test_resumed_with_optimizers_and_schedules(tmp_path, rows, options):
    def make():
        return og.Trainer(mlp_proto((4, 5, 2)), "squared_error", **options)

    whole = fit(make(), rows)
    stopped = make()
    keeper = og.callbacks.Checkpoint(tmp_path / "run", every=2)
    fit(stopped, rows, callbacks=[keeper, StopAt(13)])
    resumed = fit(make(), rows, callbacks=[keeper], resume=True)
    assert same_state(whole.session, resumed.session)
    assert without_times(whole.history) == without_times(resumed.history)
    assert whole.session.lr == resumed.session.lr


def test_resumed_with_another_learning_rate(tmp_path):
    """Gradient descent on mean (x w - y)^2: two steps with one rate, then two with another."""
    x, y = np.float32([[1.0], [2.0], [-1.5]]), np.float32([[0.5], [3.0], [1.0]])
    options = {"batch_size": 3, "verbose": 0}

    def trainer_with(lr, schedule=None):
        model = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 21]> m (float[N, 1] x) => (float[N, 1] y) '
            "<float[1, 1] w = {0.25}> { y = MatMul(x, w) }"
        )
        return og.Trainer(model, "squared_error", og.optimizers.SGD(lr), schedule=schedule)

    def expected(rates):
        w = 0.25
        for rate in rates:
            w -= rate * float(np.mean(2 * x * (x * w - y)))
        return w

    keeper = og.callbacks.Checkpoint(tmp_path / "run")
    trainer_with(0.1).fit(x, y, epochs=2, callbacks=[keeper], **options)
    resumed = trainer_with(0.04)
    with pytest.warns(og.data.DataWarning, match=r"is 0.04 from .* the first run had 0.1"):
        resumed.fit(x, y, epochs=4, callbacks=[keeper], resume=True, **options)
    assert resumed.session.lr == 0.04
    found = initializers(resumed.trained_model())["w"].item()
    assert found == pytest.approx(expected([0.1, 0.1, 0.04, 0.04]), rel=1e-5)

    halved = og.callbacks.Checkpoint(tmp_path / "halved")

    def halve(trainer, logs):
        trainer.session.lr = 0.05

    first = trainer_with(0.1).fit(x, y, epochs=2, callbacks=[halved, halve], **options)
    for one in (trainer_with(0.1), first):  # what a callback has set is kept
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            one.fit(x, y, epochs=3, resume=tmp_path / "halved", **options)
        found = initializers(one.trained_model())["w"].item()
        assert found == pytest.approx(expected([0.1, 0.05, 0.05]), rel=1e-5)

    steps = og.callbacks.Checkpoint(tmp_path / "steps")
    schedule = "step:every=1,factor=0.5"
    trainer_with(0.1, schedule).fit(x, y, epochs=2, callbacks=[steps], **options)
    resumed = trainer_with(0.05, schedule)
    with pytest.warns(og.data.DataWarning, match="learning rate is 0.05"):
        resumed.fit(x, y, epochs=3, resume=tmp_path / "steps", **options)
    found = initializers(resumed.trained_model())["w"].item()
    assert found == pytest.approx(expected([0.1, 0.05, 0.0125]), rel=1e-5)


def test_resumed_history_has_its_metrics(tmp_path, rows):
    whole = fit(trainer_of(), rows, metrics=["mae", "r2"])
    keeper = og.callbacks.Checkpoint(tmp_path / "run")
    fit(trainer_of(), rows, metrics=["mae", "r2"], callbacks=[keeper, StopAt(13)])
    resumed = fit(trainer_of(), rows, metrics=["mae", "r2"], callbacks=[keeper], resume=True)
    assert "val_mae" in resumed.history
    assert without_times(whole.history) == without_times(resumed.history)
    with pytest.raises(
        og.CheckpointError, match="metrics is mae, r2 in the checkpoint, max_error now"
    ):
        fit(trainer_of(), rows, metrics="max_error", callbacks=[keeper], resume=True)


def test_session_of_lbfgs_continues_bit_for_bit(tmp_path, batch):
    first, second = session_of(optimizer="lbfgs"), session_of(optimizer="lbfgs")
    first.step(batch)
    first.save(tmp_path / "state.safetensors")
    losses = [first.step(batch) for _ in range(2)]
    second.load(tmp_path / "state.safetensors")
    assert [second.step(batch) for _ in range(2)] == losses
    assert same_state(first, second)


def test_resume_takes_true_files_and_folders(tmp_path, rows):
    whole = fit(trainer_of(), rows)
    keeper = og.callbacks.Checkpoint(tmp_path / "run", keep=2)
    # True without any checkpoint starts over.
    fit(trainer_of(), rows, epochs=3, callbacks=[keeper], resume=True)
    file = tmp_path / "run" / "ck-000000000010.safetensors"
    for resume in (tmp_path / "run", str(file), file):
        resumed = fit(trainer_of(), rows, resume=resume)
        assert same_state(whole.session, resumed.session)
    with pytest.raises(og.OptionError, match=r"callbacks\.Checkpoint"):
        fit(trainer_of(), rows, resume=True)
    with pytest.raises(og.CheckpointError, match="none"):
        fit(trainer_of(), rows, resume=tmp_path / "none")


def test_callbacks_are_called_for_checkpoints(tmp_path, rows):
    class Listener(og.callbacks.Callback):
        def __init__(self):
            self.paths = []

        def on_checkpoint(self, trainer, path):
            og.TrainingSession(mlp_proto((4, 5, 2)), "squared_error", "adam").load(path)
            self.paths.append(path)

    listener = Listener()
    keeper = og.callbacks.Checkpoint(tmp_path / "run", keep=2)
    fit(trainer_of(), rows, callbacks=[keeper, listener])
    assert [path[-14:-12] for path in listener.paths] == ["05", "10", "15", "20", "25", "30"]
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    best = (tmp_path / "run" / "best").read_text().strip()
    kept = {"ck-000000000025.safetensors", "ck-000000000030.safetensors", best}
    assert names == sorted([*kept, "best", "lock"])


def test_other_options_or_data_are_named(tmp_path, rows):
    keeper = og.callbacks.Checkpoint(tmp_path / "run")
    fit(trainer_of(), rows, callbacks=[keeper])
    with pytest.raises(og.CheckpointError, match="batch_size is 8 in the checkpoint, 4 now"):
        fit(trainer_of(), rows, batch_size=4, resume=tmp_path / "run")
    other = (rows[0] + 1, rows[1])
    with pytest.raises(og.CheckpointError, match="different training or validation rows"):
        fit(trainer_of(), other, resume=tmp_path / "run")
    with pytest.raises(og.CheckpointError, match="of another training, up to step 30"):
        fit(trainer_of(), rows, callbacks=[keeper])


def test_a_damaged_checkpoint_is_left_out_with_a_warning(tmp_path, rows):
    whole = fit(trainer_of(), rows)
    keeper = og.callbacks.Checkpoint(tmp_path / "run")
    fit(trainer_of(), rows, epochs=3, callbacks=[keeper])
    damaged = tmp_path / "run" / "ck-000000000015.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    with pytest.warns(og.callbacks.CheckpointWarning, match="ck-000000000015"):
        resumed = fit(trainer_of(), rows, callbacks=[keeper], resume=True)
    assert same_state(whole.session, resumed.session)
    assert damaged.with_name(damaged.name + ".bad").exists()


def test_short_epochs_do_not_wait_for_the_disk(tmp_path, rows):
    """The first epoch is written and the end; what comes soon after a checkpoint is left out."""
    keeper = og.callbacks.Checkpoint(tmp_path / "run", keep=9, min_seconds=3600)
    whole = fit(trainer_of(), rows, callbacks=[keeper])
    steps = sorted(int(path.name[3:15]) for path in (tmp_path / "run").glob("ck-*"))
    assert steps == [5, 30]
    resumed = trainer_of()
    fit(resumed, rows, epochs=9, callbacks=[keeper], resume=True)
    assert same_state(fit(trainer_of(), rows, epochs=9).session, resumed.session)
    assert len(whole.history["epoch"]) == 6


def test_one_folder_for_a_training(tmp_path, rows):
    own = og.callbacks.Checkpoint(tmp_path / "own")
    other = og.callbacks.Checkpoint(tmp_path / "other")
    for options in ({"callbacks": [own, other]}, {"callbacks": own, "run_dir": tmp_path / "run"}):
        trainer = trainer_of()
        with pytest.raises(og.OptionError, match="One training writes to one folder"):
            fit(trainer, rows, **options)
        assert trainer.session.steps == 0
    assert list(tmp_path.iterdir()) == []


def test_options_of_the_callback_are_checked(tmp_path):
    for options in ({"every": 0}, {"every": "step"}, {"keep": 0}, {"min_seconds": -1}):
        with pytest.raises(og.OptionError):
            og.callbacks.Checkpoint(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------- command line


def onnxgrad_train(*arguments, kill_after=None):
    if kill_after is None:
        done = run_module("onnxgrad.cli", "train", *arguments)
        return done.returncode, done.stdout, done.stderr
    command = [sys.executable, "-m", "onnxgrad.cli", "train", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    return process.returncode, output, errors


@pytest.fixture
def files(tmp_path, rows):
    onnx.save(mlp_proto((4, 5, 2)), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", X=rows[0], label=rows[1])
    return (
        tmp_path / "model.onnx",
        *("--data", tmp_path / "data.npz", "--target", "label", "--validation", "0.2", "-q"),
        *("--loss", "squared_error", "--batch-size", "8", "--lr", "0.01"),
    )


def test_command_line_resumes_without_other_options(tmp_path, files):
    whole, resumed, run = tmp_path / "whole.onnx", tmp_path / "resumed.onnx", tmp_path / "run"
    status, first_output, errors = onnxgrad_train(*files, "--epochs", 8, "-o", whole)
    assert status == 0, errors
    status, _, errors = onnxgrad_train(*files, "--epochs", 3, "-o", resumed, "--run-dir", run)
    assert status == 0, errors
    assert {path.name for path in run.iterdir()} - {"curves.svg"} == {
        "config.toml",
        "environment.txt",
        "metrics.csv",
        "train.log",
        "checkpoints",
        "best.onnx",
        "last.onnx",
    }
    assert (run / "last.onnx").read_bytes() == resumed.read_bytes()
    status, output, errors = onnxgrad_train("--resume", run, "--epochs", 8, "-q", "--trust")
    assert status == 0, errors
    assert whole.read_bytes() == resumed.read_bytes()
    assert output.replace("resumed", "whole") == first_output
    metrics = (run / "metrics.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in metrics] == ["epoch", *"12345678"]
    assert (run / "last.onnx").read_bytes() == whole.read_bytes()
    log = (run / "train.log").read_text().splitlines()
    assert [line.split()[0] for line in log if line[:6].strip().isdigit()] == [*"12345678"]
    assert tomllib.loads((run / "config.toml").read_text())["epochs"] == 8


def test_command_line_survives_kills(tmp_path, files):
    """Killed at three moments and resumed, the file that comes out is the uninterrupted one's."""
    whole, killed, run = tmp_path / "whole.onnx", tmp_path / "killed.onnx", tmp_path / "run"
    more = ("--epochs", 150, "--checkpoint-every", 7)
    start = time.monotonic()
    assert onnxgrad_train(*files, *more, "-o", whole, "--run-dir", tmp_path / "other")[0] == 0
    seconds = time.monotonic() - start
    status = 1
    for share in (0.5, 0.7, 0.9, None):
        arguments = (*files, *more, "-o", killed, "--run-dir", run)
        if (run / "config.toml").exists():
            arguments = ("--resume", run, "-q", "-o", killed)
        status, _, errors = onnxgrad_train(
            *arguments, kill_after=None if share is None else share * seconds
        )
        if status == 0:
            break
    assert status == 0, errors
    assert whole.read_bytes() == killed.read_bytes()


@pytest.mark.parametrize(
    ("signal_number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 75)]
)
def test_signals_leave_a_checkpoint_of_the_last_step(tmp_path, files, signal_number, status):
    run, output = tmp_path / "run", tmp_path / "out.onnx"
    command = [sys.executable, "-m", "onnxgrad.cli", "train", *map(str, files), "-o", str(output)]
    command += ["--run-dir", str(run), "--epochs", "1000000", "--checkpoint-every", "1000000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (run / "metrics.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal_number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status, errors
    assert f"continue with: onnxgrad train --resume {run} -o {output}" in errors
    newest = max((run / "checkpoints").glob("ck-*.safetensors"))
    assert og.set_weights(tmp_path / "model.onnx", newest) == onnx.load(output)


def test_resume_auto_begins_the_run_or_continues_it(tmp_path, files):
    run, output = tmp_path / "run", tmp_path / "o.onnx"
    same = (*files, "-o", output, "--run-dir", run, "--resume", "auto")
    assert onnxgrad_train(*same, "--epochs", 2)[0] == 0
    status, _, errors = onnxgrad_train(*same, "--epochs", 4)
    assert status == 0, errors
    epochs = [line.split(",")[0] for line in (run / "metrics.csv").read_text().splitlines()]
    assert epochs == ["epoch", "1", "2", "3", "4"]
    whole = tmp_path / "whole.onnx"
    assert onnxgrad_train(*files, "-o", whole, "--epochs", 4)[0] == 0
    assert whole.read_bytes() == output.read_bytes()
    status, _, errors = onnxgrad_train("--resume", "auto")
    assert (status, "neither MODEL nor --run-dir" in errors) == (2, True)


def test_command_line_refuses_invalid_combinations(tmp_path, files):
    run = tmp_path / "run"
    status, _, errors = onnxgrad_train("--resume", run)
    assert (status, "is not a run folder" in errors) == (2, True)
    status, _, errors = onnxgrad_train(*files, "-o", tmp_path / "o.onnx", "--run-dir", run)
    assert status == 0, errors
    status, _, errors = onnxgrad_train(*files, "-o", tmp_path / "o.onnx", "--run-dir", run)
    assert (status, (tmp_path / "run-2" / "last.onnx").exists()) == (0, True)
    status, _, errors = onnxgrad_train("--resume", run, "--run-dir", run)
    assert (status, "both" in errors) == (2, True)
    status, _, errors = onnxgrad_train("--resume", run, "--batch-size", 4)
    assert (status, "batch-size is 8 in the checkpoint, 4 now" in errors) == (6, True), errors
    status, _, errors = onnxgrad_train(tmp_path / "model.onnx")
    assert (status, "--data is missing" in errors) == (2, True)


def test_options_are_written_as_toml():
    options = {"a": 'x"\\\n\x7f\u00e9', "b": 1, "c": 0.1, "d": True, "e": ["p*", "q"], "f": 1e-30}
    assert tomllib.loads(to_toml(options)) == options


def test_the_folder_of_a_run_is_one_to_resume_from(linear_model, linear_data, tmp_path):
    X, y = linear_data

    def trainer():
        return og.Trainer(linear_model, "squared_error", "adam", threads=1)

    whole = trainer().fit(X, y, epochs=4, verbose=False)
    folder = og.run_folder.RunFolder(tmp_path / "run", every=1)
    trainer().fit(X, y, epochs=2, verbose=False, run_dir=folder)
    resumed = trainer().fit(X, y, epochs=4, verbose=False, resume=tmp_path / "run")
    assert len(resumed.history["train_loss"]) == 4
    for name, value in whole.session.state().items():
        np.testing.assert_array_equal(resumed.session.state()[name], value, err_msg=name)
