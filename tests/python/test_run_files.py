"""The files of a training: CSV log, event file, run folder; and the learning-rate finder."""

import csv
import io
import math
import re
import sys
import tomllib
import types

import numpy as np
import onnx
import onnx.parser
import pytest
from typer.testing import CliRunner

import onnxgrad as og
from onnxgrad import cli
from support import initializers, mlp_proto


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(200, 4)).astype(np.float32)
    return X, np.tanh(X @ rng.normal(size=(4, 1))).astype(np.float32)


def make_trainer(**options):
    return og.Trainer(mlp_proto([4, 8, 1]), "squared_error", **options)


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_csv_logger(rows, tmp_path):
    path = tmp_path / "log.csv"
    seen = []

    def look(trainer, logs):
        seen.append(len(path.read_text().splitlines()))

    trainer = make_trainer().fit(
        *rows,
        validation=0.2,
        validation_every=2,
        metrics="mae",
        epochs=4,
        callbacks=[og.callbacks.CSVLogger(path), look],
        verbose=0,
    )
    assert seen == [2, 3, 4, 5]  # flushed each epoch
    lines = read_csv(path)
    assert set(lines[0]) == set(trainer.history)
    for name, column in trainer.history.items():
        for line, value in zip(lines, column, strict=True):
            assert line[name] == "" if math.isnan(value) else float(line[name]) == value
    trainer.fit(
        *rows,
        validation=0.2,
        metrics="mae",
        epochs=1,
        callbacks=[og.callbacks.CSVLogger(path, append=True)],
        verbose=0,
    )
    assert len(read_csv(path)) == 5
    assert float(read_csv(path)[4]["val_mae"]) == trainer.history["val_mae"][0]


def test_csv_logger_cannot_write(rows, tmp_path):
    with pytest.raises(og.CheckpointError, match="cannot write"):
        make_trainer().fit(
            *rows, callbacks=[og.callbacks.CSVLogger(tmp_path / "no" / "x.csv")], verbose=0
        )


def test_tensorboard(rows, tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import RecordWriter  # noqa: F401 (the format's own module)

    trainer = make_trainer().fit(
        *rows,
        validation=0.2,
        metrics="r2",
        epochs=2,
        batch_size=16,
        callbacks=[og.callbacks.TensorBoard(tmp_path / "tb", every_n_steps=5)],
        verbose=0,
    )
    (path,) = (tmp_path / "tb").iterdir()
    data, scalars = path.read_bytes(), {}
    while data:  # TFRecord: length, its checksum, the event, its checksum
        length = int.from_bytes(data[:8], "little")
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        for value in event.summary.value:
            scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
        data = data[16 + length :]
    tags = {"loss/train": "train_loss", "loss/val": "val_loss", "metric/r2": "val_r2", "lr": "lr"}
    for tag, name in tags.items():
        expected = list(enumerate(trainer.history[name], start=1))
        assert [step for step, _ in scalars[tag]] == [1, 2]
        np.testing.assert_allclose(scalars[tag], expected, rtol=1e-6)
    assert [step for step, _ in scalars["loss/step"]] == [5, 10, 15, 20]


class TrialPruned(Exception):  # noqa: N818 (as Optuna names it)
    """Exception that Optuna raises to end a trial."""


class Trial:
    """A trial of Optuna that is pruned at the third epoch that is reported."""

    def __init__(self):
        self.seen = {}

    def report(self, value, step):
        self.seen[step] = value

    def should_prune(self):
        return len(self.seen) == 3


def test_optuna_prunes(rows, monkeypatch):
    optuna = types.ModuleType("optuna")
    optuna.TrialPruned = TrialPruned
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    trial, trainer = Trial(), make_trainer()
    options = {"validation": 0.2, "validation_every": 2, "epochs": 9, "verbose": 0}
    with pytest.raises(TrialPruned, match="epoch 6"):
        trainer.fit(*rows, callbacks=og.callbacks.OptunaPruning(trial), **options)
    assert trial.seen == {epoch: trainer.history["val_loss"][epoch - 1] for epoch in (2, 4, 6)}
    with pytest.raises(og.OptionError, match="val_los"):
        trainer.fit(*rows, callbacks=og.callbacks.OptunaPruning(Trial(), "val_los"), **options)


def test_step_callbacks_of_different_steps(rows):
    seen = {4: [], 6: []}

    class Steps(og.callbacks.Callback):
        def __init__(self, every):
            self.every_n_steps = every

        def on_step_end(self, trainer, logs):
            seen[self.every_n_steps].append(int(logs["step"]))

    make_trainer().fit(*rows, epochs=1, batch_size=10, callbacks=[Steps(4), Steps(6)], verbose=0)
    assert seen == {4: [4, 8, 12, 16, 20], 6: [6, 12, 18]}


def test_logs_of_steps(rows):
    seen = []

    class Steps(og.callbacks.Callback):
        every_n_steps = 1

        def on_step_end(self, trainer, logs):
            assert set(logs) == {"epoch", "step", "total_steps", "train_loss"}
            seen.append((logs["epoch"], logs["step"], logs["train_loss"]))

    trainer = make_trainer()
    trainer.fit(*rows, epochs=2, batch_size=100, callbacks=[Steps()], verbose=0)
    assert [entry[:2] for entry in seen] == [(1, 1), (1, 2), (2, 3), (2, 4)]
    for epoch, loss in enumerate(trainer.history["train_loss"]):
        steps = [entry[2] for entry in seen if entry[0] == epoch + 1]
        assert np.mean(steps) == pytest.approx(loss, rel=1e-5)
    doc = og.callbacks.Callback.on_step_end.__doc__
    assert all(f"``{name}``" in doc for name in ("epoch", "step", "train_loss"))


def test_run_folder(rows, tmp_path):
    run = tmp_path / "runs" / "digits"
    trainer = make_trainer(lr=0.01, seed=3)
    trainer.fit(*rows, validation=0.2, epochs=3, batch_size=20, run_dir=run, verbose=0)
    assert trainer.run_dir == run
    names = {"config.toml", "environment.txt", "metrics.csv", "train.log", "best.onnx", "last.onnx"}
    assert names <= {path.name for path in run.iterdir()}
    config = tomllib.loads((run / "config.toml").read_text())
    assert config["epochs"] == 3
    assert config["batch_size"] == 20
    assert config["seed"] == 3
    assert config["lr"] == 0.01
    assert "onnxgrad" in (run / "environment.txt").read_text()
    assert len(read_csv(run / "metrics.csv")) == 3
    log = (run / "train.log").read_text().splitlines()
    assert len(log) >= 5
    assert log[1] == "seed: 3"
    last = initializers(run / "last.onnx")
    for name, value in initializers(trainer.trained_model()).items():
        np.testing.assert_array_equal(last[name], value)
    onnx.checker.check_model(onnx.load(run / "best.onnx"))
    assert "<svg" in (run / "curves.svg").read_text()


RUNS = {
    "plain": ({}, {}),
    "optimizer": (
        {"optimizer": og.optimizers.SGD(0.02, 0.9, nesterov=True), "schedule": "cosine"},
        {
            "batch_size": 10,
            "shuffle": False,
            "early_stopping": og.callbacks.EarlyStopping(patience=2),
        },
    ),
    "loss": (
        {
            "loss": og.losses.Huber(delta=0.5),
            "penalty": {"W*": {"l2": 0.01}, "b0": {"l1": 0.1}},
            "clip_norm": 0.5,
            "frozen": "b1",
            "accumulate": 2,
            "seed": 5,
        },
        {"validation": 0.2, "metrics": ["mae", "r2"], "keep_best": True, "max_time": "1h"},
    ),
    "more": (
        {
            "optimizer": "lion",
            "lr": 0.003,
            "schedule": og.schedules.Step(3, 0.5),
            "loss": "poisson",
        },
        {"drop_last": True, "sampling": "windows", "non_finite": "stop"},
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_command_line_repeats_a_run_of_python(rows, tmp_path, name):
    X, y = rows[0], np.abs(rows[1])
    onnx.save(mlp_proto([4, 8, 1]), tmp_path / "model.onnx")
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    of_trainer, of_fit = RUNS[name]
    trainer = og.Trainer(tmp_path / "model.onnx", **of_trainer)
    trainer.fit(X, y, epochs=4, run_dir=tmp_path / "run", verbose=0, **of_fit)
    command = ["train", "--config", tmp_path / "run" / "config.toml", "--data"]
    command += [tmp_path / "rows.npz", "--target", "y", "-o", tmp_path / "out.onnx", "-q"]
    done = CliRunner().invoke(cli.app, [str(part) for part in command])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "run" / "last.onnx").read_bytes()


def test_the_command_line_repeats_a_run_on_files(rows, tmp_path):
    onnx.save(mlp_proto([4, 8, 1]), tmp_path / "model.onnx")
    np.savez(tmp_path / "rows.npz", X=rows[0], kind=rows[1])
    trainer = og.Trainer(tmp_path / "model.onnx")
    paths = {"run_dir": tmp_path / "run", "validation": tmp_path / "rows.npz"}
    trainer.fit(tmp_path / "rows.npz", "kind", epochs=2, verbose=0, **paths)
    command = ["train", "--config", tmp_path / "run" / "config.toml", "-o", tmp_path / "o.onnx"]
    done = CliRunner().invoke(cli.app, [str(part) for part in command])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "o.onnx").read_bytes() == (tmp_path / "run" / "last.onnx").read_bytes()


def test_run_folder_is_resumed(rows, tmp_path):
    run = tmp_path / "run"
    options = {"batch_size": 20, "verbose": 0, "validation": 0.2}
    whole = make_trainer().fit(*rows, epochs=6, **options)
    make_trainer().fit(*rows, epochs=2, run_dir=run, **options)
    trainer = make_trainer().fit(*rows, epochs=6, run_dir=run, resume=True, **options)
    assert trainer.run_dir == run
    assert trainer.history["train_loss"] == whole.history["train_loss"]
    assert [line["epoch"] for line in read_csv(run / "metrics.csv")] == [*"123456"]
    last = initializers(run / "last.onnx")
    for name, value in initializers(whole.trained_model()).items():
        np.testing.assert_array_equal(last[name], value)
    # A folder that is not there is a new beginning.
    trainer = make_trainer()
    trainer.fit(*rows, epochs=1, run_dir=tmp_path / "new", resume=True, **options)
    assert trainer.run_dir == tmp_path / "new"


def test_metrics_of_a_run_with_validation_every_second_epoch(rows, tmp_path):
    trainer = make_trainer()
    trainer.fit(
        *rows, validation=0.2, validation_every=2, epochs=4, run_dir=tmp_path / "run", verbose=0
    )
    lines = read_csv(tmp_path / "run" / "metrics.csv")
    assert set(lines[0]) == set(trainer.history)
    assert [line["val_loss"] == "" or line["val_loss"] == "nan" for line in lines] == [1, 0, 1, 0]


def test_a_run_continues_if_the_best_model_cannot_be_written(rows, tmp_path):
    def block(trainer, logs):
        if logs["epoch"] == 1:
            (tmp_path / "run" / "best.onnx").unlink()
            (tmp_path / "run" / "best.onnx").mkdir()

    with pytest.warns(og.callbacks.CheckpointWarning, match="best.onnx"):
        make_trainer().fit(*rows, epochs=3, run_dir=tmp_path / "run", callbacks=[block], verbose=0)
    assert len(read_csv(tmp_path / "run" / "metrics.csv")) == 3


def test_best_model_of_a_run(rows, tmp_path):
    """It is that of the best epoch, though short epochs do not all write it."""
    best = []

    def note(trainer, logs):
        if trainer.is_best:
            best.append(initializers(trainer.trained_model()))

    options = {"validation": 0.3, "epochs": 60, "batch_size": 10, "verbose": 0}
    trainer = make_trainer(lr=0.05)
    trainer.fit(*rows, run_dir=tmp_path / "run", callbacks=note, **options)
    losses = trainer.history["val_loss"]
    assert losses.index(min(losses)) + 1 < 60
    found = initializers(tmp_path / "run" / "best.onnx")
    for name, value in best[-1].items():
        np.testing.assert_array_equal(found[name], value)
    name = (tmp_path / "run" / "checkpoints" / "best").read_text().strip()
    assert (tmp_path / "run" / "checkpoints" / name).exists()


def test_table_of_several_targets_and_norms(rows, capsys):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, 4] X) => (float[N, 1] a, float[N, 1] b)
        <float[4, 1] u = {0.1, 0.2, 0.3, 0.4}, float[4, 1] v = {0.4, 0.3, 0.2, 0.1}>
        { a = MatMul(X, u)  b = MatMul(X, v) }"""
    )
    trainer = og.Trainer(model, loss={"a": "squared_error", "b": "absolute_error"})
    y = {"a": rows[1], "b": -rows[1]}
    trainer.fit(rows[0], y, epochs=2, grad_norm=True, metrics=(), verbose=1)
    head = capsys.readouterr().err.splitlines()[3].split()
    names = ["train_loss", "train_loss_a", "train_loss_b", "grad_norm", "lr", "rows/s", "time"]
    assert head == ["epoch", *names]


def test_run_folder_is_never_written_over(rows, tmp_path):
    run = tmp_path / "run"
    trainer = make_trainer()
    folders = []
    for _ in range(3):
        trainer.fit(*rows, epochs=1, run_dir=str(run), verbose=0)
        folders.append(trainer.run_dir.name)
    assert folders == ["run", "run-2", "run-3"]


def test_run_folder_after_an_exception(rows, tmp_path):
    def stop(trainer, logs):
        raise KeyboardInterrupt

    trainer = make_trainer()
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(*rows, epochs=5, run_dir=tmp_path / "run", callbacks=[stop], verbose=0)
    assert "KeyboardInterrupt" in (tmp_path / "run" / "train.log").read_text()
    saved = initializers(tmp_path / "run" / "last.onnx")
    for name, value in initializers(trainer.trained_model()).items():
        np.testing.assert_array_equal(saved[name], value)


def test_nothing_is_written_without_run_dir(rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_trainer().fit(*rows, epochs=1, verbose=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_lr_find_leaves_everything_as_it_was(optimizer, rows):
    def train(finds):
        trainer = make_trainer(optimizer=optimizer, lr=0.02)
        trainer.fit(*rows, epochs=1, verbose=0)
        if finds:
            history = trainer.history
            trainer.lr_find(*rows, steps=30)
            assert trainer.history is history
            assert trainer.session.lr == 0.02
        return trainer.fit(*rows, epochs=2, verbose=0)

    expected, found = train(False), train(True)
    assert found.history["train_loss"] == expected.history["train_loss"]
    assert found.session.steps == expected.session.steps


def test_lr_find_suggests_a_rate_that_trains(rows):
    trainer = make_trainer(optimizer="sgd")
    finder = trainer.lr_find(*rows, batch_size=20)
    assert finder.lrs[0] == pytest.approx(1e-7)
    assert np.all(np.diff(np.log(finder.lrs)) == pytest.approx(math.log(1e8) / 99))
    assert len(finder.lrs) == len(finder.losses) <= 100
    assert 1e-4 < finder.suggestion < 3
    trainer.session.lr = finder.suggestion
    losses = trainer.fit(*rows, epochs=20, batch_size=20, verbose=0).history["train_loss"]
    assert losses[-1] < 0.3 * losses[0]
    pytest.importorskip("matplotlib").use("Agg")
    assert finder.plot().get_xlabel() == "learning rate"


def test_lr_find_suggests_nothing_for_noise():
    """Labels that nothing can tell: batches differ, and no rate makes the loss fall."""
    rng = np.random.default_rng(0)
    X = np.zeros((2000, 4), np.float32)
    y = rng.normal(size=(2000, 1)).astype(np.float32)
    y -= y.mean()
    model = og.set_weights(mlp_proto([4, 1]), {"b0": np.zeros(1, np.float32)})
    trainer = og.Trainer(model, "squared_error", "sgd", frozen="W0")
    found = []
    for seed in range(20):
        trainer.seed = seed
        found.append(trainer.lr_find(X, y, batch_size=8).suggestion)
    assert found.count(None) >= 18


@pytest.mark.parametrize("batch_size", [8, 40, 200])
def test_lr_find_sees_what_can_be_learned(rows, batch_size):
    for seed in range(5):
        trainer = make_trainer(optimizer="sgd", seed=seed)
        assert 1e-4 < trainer.lr_find(*rows, batch_size=batch_size).suggestion < 3


def test_lr_find_of_a_flat_loss():
    X = np.zeros((50, 4), np.float32)
    y = np.zeros((50, 1), np.float32)
    trainer = og.Trainer(mlp_proto([4, 1]), "squared_error", "sgd", frozen="b0")
    assert trainer.lr_find(X, y, steps=10).suggestion is None


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_shows_steps_within_an_epoch(rows, monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("onnxgrad.callbacks.displays.MIN_UPDATE_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    seen = []

    class Steps(og.callbacks.Callback):
        every_n_steps = 30

        def on_step_end(self, trainer, logs):
            seen.append(int(logs["step"]))

    trainer = make_trainer()
    trainer.fit(*rows, epochs=2, batch_size=2, callbacks=[Steps()])
    assert seen == [30, 60, 90, 120, 150, 180]
    assert "step" not in stream.getvalue()  # a small model: each 1000th step, here 990th
    trainer = og.Trainer(mlp_proto([4, 400, 400, 1]), "squared_error")
    trainer.fit(*rows, epochs=2, batch_size=2)
    assert re.search(r"step 61/\d+, loss", stream.getvalue())
