"""Outputs of the command line are checked first, whole, and not lost, wherever they go."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import pytest

import onnxgrad as og
from onnxgrad.cli import outputs
from support import LINEAR, initializers
from test_train_command import train

EPOCHS = 4
TRAIN = "train model.onnx --data rows.csv --target y -o o.onnx --threads 1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(LINEAR), "model.onnx")
    X = np.random.default_rng(1).normal(size=(40, 2))
    table = np.column_stack([X, X @ [1.0, -2.0] + 0.5])
    np.savetxt("rows.csv", table, "%.9g", ",", header="a,b,y", comments="")
    return tmp_path


@pytest.fixture
def expected(folder):
    X, y = np.split(np.loadtxt("rows.csv", delimiter=",", skiprows=1), [2], axis=1)
    trainer = og.Trainer("model.onnx", threads=1).fit(X, y, epochs=EPOCHS, verbose=0)
    return initializers(trainer.trained_model())


def shell(command, folder):
    """Run a line of bash with this interpreter's `onnxgrad`."""
    own = f"{shlex.quote(sys.executable)} -m onnxgrad.cli"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'onnxgrad() {{ {own} "$@"; }}; {command}'],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_trained(path, expected):
    for name, value in initializers(str(path)).items():
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize(
    ("ends", "status", "message"),
    [
        ("2>&1 | head -3", 0, ""),
        ("-v 2>&1 | head -0", 0, ""),
        ("| head -0", 0, ""),
        ("2> /dev/full", 0, ""),
        ("2>&-", 0, ""),
        ("> /dev/full", 6, "cannot write to standard output: No space left"),
        (">&-", 6, "cannot write to standard output"),
        ("> /dev/full 2>&1", 6, ""),
        (">&- 2>&- <&-", 6, ""),
    ],
)
def test_a_training_is_not_lost_with_its_output(folder, expected, ends, status, message):
    done = shell(f"onnxgrad {TRAIN} --epochs {EPOCHS} {ends}", folder)
    assert done.returncode == status, done.stderr
    assert "bug in onnxgrad" not in done.stderr
    assert "Traceback" not in done.stderr
    assert message in done.stderr
    assert_trained(folder / "o.onnx", expected)


OTHERS = (
    "report model.onnx",
    "report model.onnx --json",
    "evaluate model.onnx --data rows.csv --target y",
    "predict model.onnx --data rows.csv --ignored y",
    "versions",
    "train --help",
    f"{TRAIN} --print-config",
    f"{TRAIN} --dry-run",
)


@pytest.mark.parametrize("command", OTHERS)
def test_results_that_nobody_reads_or_that_do_not_fit(folder, command):
    # The two that fail with 6 differ in a function that all commands write through.
    refused = "> /dev/full" if OTHERS.index(command) % 2 else ">&-"
    for ends, status in (("| head -0", 141), (refused, 6)):
        done = shell(f"onnxgrad {command} {ends}", folder)
        assert done.returncode == status, (ends, done.stderr)
        assert "bug in onnxgrad" not in done.stderr
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        assert ("cannot write to standard output" in done.stderr) == (status == 6)


def test_files_are_written_even_if_standard_output_is_closed(folder):
    done = shell("onnxgrad gradient model.onnx -o g.onnx | head -0", folder)
    assert done.returncode == 0, done.stderr
    onnx.checker.check_model(str(folder / "g.onnx"))
    command = "predict model.onnx --data rows.csv --ignored y -o p.csv"
    assert shell(f"onnxgrad {command} | head -0", folder).returncode == 0
    assert len((folder / "p.csv").read_text().splitlines()) == 41


def test_names_that_standard_output_cannot_show(folder):
    shutil.copy("model.onnx", "modèle-模型.onnx")
    done = shell("PYTHONIOENCODING=ascii onnxgrad report modèle-模型.onnx", folder)
    assert done.returncode == 0, done.stderr


# ----------------------------------------------------------------------------- places that fail


@pytest.fixture
def vanishing(folder, monkeypatch):
    """The folder of -o, out, is there when the training begins and not when it ends."""
    (folder / "out").mkdir()
    (folder / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))

    def close(self, trainer):
        shutil.rmtree(folder / "out")

    monkeypatch.setattr(outputs.HistoryFile, "on_train_end", close)
    return folder


ROWS = ("model.onnx", "--data", "rows.csv", "--target", "y", "--threads", 1, "-q")


def test_a_model_that_cannot_be_written_is_saved_elsewhere(vanishing, expected):
    arguments = (*ROWS, "--epochs", EPOCHS, "--history", "h.csv")
    out, err = train(*arguments, "-o", "out/o.onnx", status=6)
    (place,) = (vanishing / "tmp").glob("o.rescued-*.onnx")
    assert place.stat().st_mode & 0o077 == 0  # in a folder of everybody
    assert "cannot write 'out/o.onnx': there is no folder 'out'" in err
    assert f"The trained model is in '{place}'." in err
    assert f"mv '{place}' 'out/o.onnx'" in err
    assert "wrote" not in out
    assert_trained(place, expected)
    (vanishing / "out").mkdir()
    _, err = train(*arguments, "-o", "out/o.onnx", status=6)
    assert len([*(vanishing / "tmp").glob("o.rescued-*.onnx")]) == 2  # the first one stays


def test_the_model_of_a_run_is_saved_elsewhere_too(vanishing, expected):
    arguments = (*ROWS, "--epochs", EPOCHS, "--history", "h.csv", "--run-dir", "run")
    train(*arguments, "-o", "out/o.onnx", status=6)
    (vanishing / "out").mkdir()
    train("--resume", "run", "-o", "o.onnx", "-q")  # nothing is left to do but to write it
    assert_trained("o.onnx", expected)


def test_an_error_in_the_middle_leaves_the_model_as_it_was(folder):
    rows = np.random.default_rng(2).normal(size=(80000, 3))
    np.savetxt("rows.csv", rows, "%.6f", ",", header="a,b,y", comments="", footer="1,x,2")
    options = ("--stream", "--no-shuffle", "--buffer-bytes", 1 << 16)
    _, err = train(*ROWS, *options, "-o", "o.onnx", status=4)
    assert "the model as it was after step" in err
    (unfinished,) = folder.glob("o.unfinished-*.onnx")
    assert f"is in {unfinished}" in err
    assert not (folder / "o.onnx").exists()
    before, after = initializers("model.onnx"), initializers(unfinished)
    assert any((before[name] != after[name]).any() for name in before)
    train(*ROWS, *options, status=4)
    onnx.checker.check_model("runs/model/last.onnx")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_signals_end_a_training_with_its_model(folder, number):
    command = [sys.executable, "-m", "onnxgrad.cli", *TRAIN.split(), "--epochs", "100000000"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        # Under nohup SIGHUP is ignored, and a child would inherit that.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        for line in process.stderr:
            if line.lstrip().startswith("1 "):  # the first epoch is over
                break
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, err
    assert "wrote o.onnx as it was when interrupted" in err
    onnx.checker.check_model(str(folder / "o.onnx"))


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("-o", "no/o.onnx"), 6, "cannot write 'no/o.onnx': there is no folder 'no'"),
        (("-o", "."), 6, "folder"),
        (("-o", "model.onnx/o"), 6, "cannot write"),
        (("-o", "x" * 300), 6, "File name too long"),
        (("-o", ""), 6, "this is not a path"),
        (("-o", "o.onnx", "--history", "no/h.csv"), 6, "with --history"),
        (("-o", "o.onnx", "--history", "o.onnx"), 2, "-o and --history are the same file"),
        (("-o", "o.onnx", "--history", "./o.onnx"), 2, "-o and --history are the same file"),
        (("-o", "o.onnx", "--run-dir", "model.onnx/run"), 6, "with --run-dir"),
        (("-o", "o.onnx", "--history", "model.onnx"), 2, "is the input MODEL"),
        (("-o", "model.onnx"), 2, "replace it with --overwrite"),
        (("-o", "link.onnx"), 2, "-o 'link.onnx' is the input MODEL"),
        (("-o", "new.csv", "--overwrite", "--validation", "new.csv"), 4, "absent.csv"),
        (
            ("-o", "model.csv", "--overwrite", "--validation", "model.csv"),
            2,
            "is the input --validation",
        ),
    ],
)
def test_paths_are_checked_before_anything_is_read(folder, arguments, status, message):
    (folder / "link.onnx").symlink_to("model.onnx")
    (folder / "model.csv").write_text("a,b,y\n1,2,3\n")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    data = ("model.onnx", "--data", "absent.csv", "--target", "y")
    _, err = train(*data, *arguments, status=status)
    assert message in err
    assert len(err.splitlines()) <= 6
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_full_disk_is_detected_before_training(folder, monkeypatch):
    with pytest.raises(og.CheckpointError, match="are free on the disk"):
        og._core.check_writable("o.onnx", 1 << 62)
    og._core.check_writable("o.onnx", 1)
    assert not (folder / "o.onnx").exists()


def test_a_model_is_trained_in_place_if_requested(folder, expected):
    train(*ROWS, "--epochs", EPOCHS, "-o", "model.onnx", "--overwrite")
    assert_trained("model.onnx", expected)


def test_other_commands_do_not_overwrite_their_inputs(folder):
    command = "onnxgrad gradient model.onnx -o model.onnx"
    done = shell(command, folder)
    assert done.returncode == 2
    assert "--overwrite" in done.stderr
    assert shell(f"{command} --overwrite", folder).returncode == 0
    assert "coef_grad" in [value.name for value in onnx.load("model.onnx").graph.output]
    done = shell("onnxgrad predict model.onnx --data rows.csv -o rows.csv", folder)
    assert done.returncode == 2
    assert "--overwrite" not in done.stderr


def test_devices_and_pipes_are_written_to(folder, expected):
    train(*ROWS, "--epochs", EPOCHS, "-o", os.devnull)
    os.mkfifo("pipe")
    with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE) as reader:
        train(*ROWS, "--epochs", EPOCHS, "-o", "pipe")
        (folder / "o.onnx").write_bytes(reader.communicate(timeout=60)[0])
    assert_trained("o.onnx", expected)
    assert (folder / "pipe").is_fifo()


# ------------------------------------------------------------------------------------- histories


def epochs_of(path):
    lines = path.read_text().splitlines()
    return [int(line.split(",")[0]) for line in lines[1:]]


def test_a_history_file_has_each_epoch_of_all_that_were_done(folder):
    train(*ROWS, "--epochs", 3, "--run-dir", "run", "--history", "h.csv")
    assert epochs_of(folder / "h.csv") == [1, 2, 3]
    train("--resume", "run", "--epochs", 5, "-q", "--trust")
    assert epochs_of(folder / "h.csv") == [1, 2, 3, 4, 5]
    train("--resume", "run", "--epochs", 5, "-q", "--history", "again.csv")  # nothing to do
    assert (folder / "again.csv").read_text() == (folder / "h.csv").read_text()
    train(*ROWS, "--epochs", 1, "-o", "o.onnx", "--history", "h.csv")
    assert epochs_of(folder / "h.csv") == [1]


def test_a_history_file_that_fails_does_not_end_the_training(folder, expected):
    arguments = (*ROWS, "--epochs", EPOCHS, "-o", "o.onnx", "--history", "/dev/full")
    _, err = train(*arguments, status=6)
    assert err.count("warning: '/dev/full'") == 1
    assert "No space left" in err
    assert "cannot write '/dev/full'" in err
    assert "the trained model itself has been written" in err
    assert_trained("o.onnx", expected)


class Broken:
    """A stream whose reader has gone."""

    def write(self, text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError

    def isatty(self):
        return self.is_terminal


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_fit_continues_without_a_stream_for_its_progress(folder, monkeypatch, is_terminal):
    stream = Broken()
    stream.is_terminal = is_terminal
    X, y = np.ones((4, 2), np.float32), np.zeros(4, np.float32)
    trainer = og.Trainer("model.onnx")
    with contextlib.redirect_stderr(stream):
        trainer.fit(X, y, epochs=3)
        trainer.fit(X, y, epochs=3, verbose=2)
    assert trainer.history["epoch"] == [1, 2, 3]
    with contextlib.redirect_stderr(None):
        trainer.fit(X, y, epochs=3)


@pytest.fixture
def small_disk(folder):
    """A file system of 300 kB."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no program mount")
    if done.returncode:
        pytest.skip(f"no file system can be mounted: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    "how", [["-o", "disk/o.onnx"], ["--run-dir", "disk/run"]], ids=["o", "run"]
)
def test_a_disk_that_fills_up_while_the_training_runs(
    small_disk, folder, monkeypatch, how, expected
):
    """There is room at the start; at the end there is none, and the model is on another disk."""
    (folder / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))

    def fill(self, trainer):
        with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    monkeypatch.setattr(outputs.HistoryFile, "on_train_begin", fill)
    arguments = (*ROWS, "--epochs", EPOCHS, "--history", "h.csv", *how)
    _, err = train(*arguments, status=6)
    wanted = "disk/o.onnx" if how[0] == "-o" else "disk/run/last.onnx"
    (place,) = (folder / "tmp").iterdir()
    assert f"The trained model is in '{place}'." in err
    assert f"mv '{place}' '{wanted}'" in err
    assert "onnxgrad-tmp" not in err
    assert_trained(place, expected)
    assert not (folder / wanted).exists()
    assert [one.name for one in small_disk.rglob(".*")] == []
