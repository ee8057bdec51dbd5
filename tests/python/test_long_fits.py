"""Bounds of a long fit: its history, its checkpoints; files have every epoch."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import onnxgrad as og
from onnxgrad.history import History
from onnxgrad.run_folder.epoch_table import EpochTable
from support import LINEAR

X = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)
Y = np.array([[1.0], [0.0]], np.float32)


def trainer(**options):
    return og.Trainer(onnx.parser.parse_model(LINEAR), optimizer="sgd", lr=0.01, **options)


def nothing(trainer, logs):
    """Be called after each epoch, so that the history follows."""


@pytest.mark.parametrize("callbacks", [[], [nothing]])
def test_every_second_fourth_eighth_epoch(callbacks):
    whole = trainer().fit(X, Y, epochs=203, max_history=None, callbacks=callbacks, verbose=0)
    assert whole.history["epoch"] == list(range(1, 204))
    few = trainer().fit(X, Y, epochs=203, max_history=32, callbacks=callbacks, verbose=0)
    epochs = few.history["epoch"]
    assert epochs == [1, *range(8, 203, 8), 203]
    # The loss falls, so that the best epoch is the last one; numbers are those of all epochs.
    expected = [whole.history["train_loss"][int(epoch) - 1] for epoch in epochs]
    assert few.history["train_loss"] == expected


def test_callbacks_see_what_fit_leaves():
    seen = []

    def look(trainer, logs):
        assert trainer.history["epoch"][-1] == logs["epoch"]
        seen.append((len(trainer.history["epoch"]), {*map(len, trainer.history.values())}))

    fitted = trainer().fit(X, Y, epochs=100, max_history=8, callbacks=[look], verbose=0)
    assert max(number for number, _ in seen) <= 8
    assert all(lengths == {number} for number, lengths in seen)
    again = trainer().fit(X, Y, epochs=100, max_history=8, verbose=0)
    assert again.history["train_loss"] == fitted.history["train_loss"]


@pytest.mark.parametrize("most", [0, 7, -1, 2.5, "all"])
def test_limits_without_meaning(most):
    with pytest.raises(og.OptionError, match="max_history"):
        trainer().fit(X, Y, max_history=most, verbose=0)


def test_sixty_thousand_epochs_are_all_there():
    fitted = trainer().fit(X, Y, epochs=65536, verbose=0)
    assert len(fitted.history["epoch"]) == 65536
    fitted.fit(X, Y, epochs=65537, verbose=0)
    assert len(fitted.history["epoch"]) in (32770, 32771)  # the best one may be another


def test_checkpoints_do_not_grow(tmp_path):
    def size(epochs):
        folder = tmp_path / str(epochs)
        keeper = og.callbacks.Checkpoint(folder, keep=1, best=False, min_seconds=1000)
        trainer().fit(X, Y, epochs=epochs, max_history=16, callbacks=[keeper], verbose=0)
        return max(path.stat().st_size for path in folder.glob("ck-*"))

    assert size(5000) <= size(16) + 64


def test_a_run_folder_has_all_epochs(tmp_path):
    options = {"max_history": 8, "run_dir": tmp_path / "run", "verbose": 0}
    trainer().fit(X, Y, epochs=50, **options)
    with (tmp_path / "run" / "metrics.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["epoch"]) for line in lines] == list(range(1, 51))
    fitted = trainer().fit(X, Y, epochs=80, resume=True, **options)
    assert len(fitted.history["epoch"]) <= 8
    with (tmp_path / "run" / "metrics.csv").open() as file:
        again = list(csv.DictReader(file))
    assert again[:50] == lines
    assert [int(line["epoch"]) for line in again] == list(range(1, 81))
    whole = trainer().fit(X, Y, epochs=80, verbose=0)
    assert [float(line["train_loss"]) for line in again] == whole.history["train_loss"]


def log(epoch, **numbers):
    return {"epoch": float(epoch), "train_loss": 1 / epoch, **numbers}


def history_of(*logs):
    return History.from_logs(logs)


def test_tables_with_columns_that_come_later(tmp_path):
    table = EpochTable(tmp_path / "t.csv", append=False)
    first, second = log(1), log(2, val_loss=0.5)
    table.add(history_of(first), first)
    table.add(history_of(first, second), second)
    table.add(history_of(second), log(3))
    table.close(history_of(second))
    text = (tmp_path / "t.csv").read_text()
    third = repr(1 / 3)
    assert text == f"epoch,train_loss,val_loss\n1,1,nan\n2,0.5,0.5\n3,{third},\n"


def test_tables_continue_after_truncated_lines(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("epoch,train_loss\n1,1\n2,0.5\n3")
    table = EpochTable(path, append=True)
    table.add(history_of(log(4)), log(4))
    table.close(history_of(log(4)))
    assert path.read_text() == "epoch,train_loss\n1,1\n2,0.5\n4,0.25\n"
    table = EpochTable(path, append=False)
    table.add(history_of(log(1)), log(1))
    assert path.read_text() == "epoch,train_loss\n1,1\n"


def test_tables_write_missing_lines_later(tmp_path):
    path = tmp_path / "folder" / "t.csv"
    table = EpochTable(path, append=False)
    with pytest.raises(og.CheckpointError, match="no folder"):
        table.add(history_of(log(1)), log(1))
    path.parent.mkdir()
    table.add(history_of(log(1), log(2)), log(2))
    assert path.read_text() == "epoch,train_loss\n1,1\n2,0.5\n"


GROWTH = """
import sys, numpy as np, onnxgrad as og
X, y = np.ones((2, 2), np.float32), np.ones((2, 1), np.float32)
trainer = og.Trainer(sys.argv[1], optimizer="sgd", lr=0.01, threads=1)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
trainer.fit(X, y, epochs=1000, max_history=64, verbose=0)
before = resident()
trainer.fit(X, y, epochs=200_000, max_history=64, verbose=0)
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux counts it")
def test_memory_of_many_epochs(tmp_path):
    onnx.save(onnx.parser.parse_model(LINEAR), tmp_path / "m.onnx")
    command = [sys.executable, "-c", GROWTH, tmp_path / "m.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < 8 << 20  # all epochs would take 80 MB
