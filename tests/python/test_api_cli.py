"""The command line as users run it: what it prints and writes, and its exit status."""

import csv
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from forking import run_module
from onnxgrad import cli, errors
from onnxgrad.data import tables
from support import initializers


def start(*arguments, cwd=None, **options):
    command = [sys.executable, "-m", "onnxgrad.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def run(*arguments, cwd=None, status=0):
    done = run_module("onnxgrad.cli", *arguments, cwd=cwd)
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path, linear_model, linear_data):
    """model.onnx, train.csv with the columns a, b, y, and data.npz with X, y."""
    X, y = linear_data
    (tmp_path / "model.onnx").write_bytes(linear_model)
    table = np.column_stack([X, y])
    np.savetxt(tmp_path / "train.csv", table, delimiter=",", header="a,b,y", comments="")
    np.savez(tmp_path / "data.npz", X=X, y=y)
    return tmp_path


TRAIN = ["train", "model.onnx", "--data", "train.csv", "--target", "y", "-o", "out.onnx"]


def test_train_writes_the_trained_model(folder):
    out, err = run(*TRAIN, "--epochs", 60, "--lr", 0.05, "--validation", 0.2, cwd=folder)
    assert "loss: squared error on 'Y'" in err
    assert len([line for line in err.splitlines() if re.match(r" +\d+ ", line)]) == 60
    lines = out.splitlines()
    assert lines[0].startswith("all rows: loss ")
    assert lines[1].startswith("validation: loss ")
    assert lines[2] == "wrote out.onnx"
    found = initializers(folder / "out.onnx")
    np.testing.assert_allclose(found["coef"].ravel(), [1, -2], atol=2e-3)


@pytest.mark.parametrize("option", [["--keep-best"], ["--patience", 3]])
def test_the_summary_is_of_the_weights_that_are_written(folder, option):
    """The best epoch counts, not the last one, which is worse: a large rate makes the loss jump."""
    arguments = [
        "--optimizer",
        "adam",
        "--lr",
        1.3,
        "--epochs",
        30,
        "--validation",
        0.3,
        "--seed",
        4,
    ]
    out, err = run(*TRAIN, *arguments, *option, cwd=folder)
    table = [line.split() for line in err.splitlines() if re.match(r" +\d+ ", line)]
    losses = {int(row[0]): float(row[2]) for row in table}
    best = min(losses, key=lambda epoch: losses[epoch])
    assert best < max(losses)
    shown = re.search(r"^validation: loss (\S+)", out, re.MULTILINE)
    assert float(shown[1]) == pytest.approx(losses[best], rel=1e-4)
    assert f"weights of epoch {best}\n" in out
    assert f"kept the weights of epoch {best} (val_loss" in err


def test_train_on_npz_quietly_with_history(folder):
    arguments = ["--data", "data.npz", "--target", "y", "-o", "out.onnx", "--epochs", 3]
    out, err = run("train", "model.onnx", *arguments, "-q", "--history", "h.csv", cwd=folder)
    assert err == ""
    assert "wrote out.onnx" in out
    with (folder / "h.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    assert set(rows[0]) == {"epoch", "train_loss", "lr", "seconds", "rows_per_s"}


def test_validation_file_and_verbose(folder):
    options = ["--epochs", 2, "--validation", "train.csv", "-v"]
    out, err = run(*TRAIN, *options, cwd=folder)
    train, validation = (line.split(": ")[1] for line in out.splitlines()[:2])
    assert train == validation
    assert "trained: coef [2, 1]" in err


def test_init_and_seed(folder):
    options = ["--lr", 0, "--epochs", 1, "-q", "--init", "auto"]
    run(*TRAIN, *options, "--seed", 1, cwd=folder)
    first = initializers(folder / "out.onnx")["coef"]
    run(*TRAIN, *options, "--seed", 1, cwd=folder)
    np.testing.assert_array_equal(initializers(folder / "out.onnx")["coef"], first)
    run(*TRAIN, *options, "--seed", 2, cwd=folder)
    assert not np.array_equal(initializers(folder / "out.onnx")["coef"], first)


def test_weight_column(folder):
    table = np.loadtxt(folder / "train.csv", delimiter=",", skiprows=1)
    table[::2, 2] = 100
    weight = (np.arange(len(table)) % 2)[:, None]
    np.savetxt(
        folder / "weighted.csv",
        np.column_stack([weight, table]),
        delimiter=",",
        header="w,a,b,y",
        comments="",
    )
    options = ["--weight-column", "w", "--epochs", 100, "--lr", 0.05, "-q"]
    arguments = ["train", "model.onnx", "--data", "weighted.csv", "--target", "y", "-o", "out.onnx"]
    run(*arguments, *options, cwd=folder)
    found = initializers(folder / "out.onnx")
    np.testing.assert_allclose(found["coef"].ravel(), [1, -2], atol=2e-2)


def test_gradient(folder, linear_data):
    out, _ = run("gradient", "model.onnx", "-o", "grad.onnx", "--fill-grad", cwd=folder)
    assert "coef_grad, intercept_grad" in out
    onnx.checker.check_model(folder / "grad.onnx", full_check=True)
    X, _ = linear_data
    session = onnxruntime.InferenceSession(folder / "grad.onnx")
    weights = initializers(folder / "model.onnx")
    known = {i.name for i in session.get_inputs()}
    feeds = {name: value for name, value in {"X": X, **weights}.items() if name in known}
    found = session.run(["coef_grad", "intercept_grad"], feeds)
    np.testing.assert_allclose(found[0].ravel(), X.sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(found[1], [len(X)])


def test_gradient_options(folder):
    options = ["--wrt", "coef", "--of", "Y", "--keep-outputs", "--target-opset", 18, "--inline"]
    run("gradient", "model.onnx", "-o", "grad.onnx", *options, cwd=folder)
    model = onnx.load(folder / "grad.onnx")
    assert [o.name for o in model.graph.output] == ["coef_grad", "Y"]
    assert model.opset_import[0].version == 18
    assert "Y_grad" in [i.name for i in model.graph.input]


def test_report(folder):
    out, _ = run("report", "model.onnx", cwd=folder)
    assert "coef" in out
    out, _ = run("report", "model.onnx", "--json", cwd=folder)
    found = json.loads(out)
    assert found["num_trainable"] == 3
    assert found["weights"][0]["name"] == "coef"


def test_report_of_changed_weights(folder):
    model = onnx.load(folder / "model.onnx")
    after = og.set_weights(model, {"coef": np.array([[0.5], [0.0]], np.float32)})
    onnx.save(after, folder / "after.onnx")
    out, _ = run("report", "after.onnx", "--before", "model.onnx", cwd=folder)
    last = [line.split() for line in out.splitlines()[-2:]]
    # coef is (0.5, -0.25) in the first file.
    assert last[0] == ["coef", "[2,", "1]", "0.559017", "0.5", "44.72%"]
    assert last[1] == ["intercept", "[1]", "0.125", "0.125", "0.00%"]
    out, _ = run("report", "after.onnx", "--before", "model.onnx", "--json", cwd=folder)
    changes = json.loads(out)["weight_changes"]
    assert changes[0]["relative"] == pytest.approx(0.25 / np.hypot(0.5, 0.25))


def test_versions():
    out, _ = run("versions")
    assert re.search(r"version +\d+\.\d+\.\d+", out)
    assert "numpy" in out
    assert sys.executable not in out
    assert run("--version")[0] == f"onnxgrad {importlib.metadata.version('onnxgrad')}\n"
    out, _ = run("versions", "--full")
    assert sys.executable in out


# -------------------------------------------------------------------------------------- exit status


def test_status_2_usage(folder):
    _, err = run("train", "model.onnx", cwd=folder, status=2)
    assert "--data" in err or "Missing option" in err
    _, err = run("trian", status=2)
    assert "train" in err
    _, err = run(*TRAIN, "--optimizer", "adamm", cwd=folder, status=2)
    assert "Did you mean 'adam'?" in err
    run(*TRAIN, "--epochs", "many", cwd=folder, status=2)
    run(*TRAIN, "--batch-size", "0", cwd=folder, status=2)


def test_status_3_model(folder):
    (folder / "broken.onnx").write_bytes(b"no model at all")
    for name in ("missing.onnx", "broken.onnx"):
        _, err = run("report", name, cwd=folder, status=3)
        assert name in err
        assert err.startswith("ModelError: ")
        assert len(err.splitlines()) <= 6
    _, err = run("gradient", "model.onnx", "-o", "g.onnx", "--wrt", "coeff", cwd=folder, status=3)
    assert "'coef'" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,y\n1,2,3\n1,,3\n", "nan"),
        ("a,b,y\n1,2,3\n1,x,3\n", "x"),
        ("a,b,y\n1,2,3\n1,2\n", "line 3"),
        ("a,b,c,y\n1,2,3,4\n", "3"),
        ("a,b,z\n1,2,3\n", "'y'"),
        ("1,2,3\n4,5,6\n", "first line"),
        ("a,a,y\n1,2,3\n", "twice"),
        ("a,b,y\n", "no rows"),
        ("", "empty"),
    ],
)
def test_status_4_data(folder, text, message):
    (folder / "train.csv").write_text(text)
    _, err = run(*TRAIN, cwd=folder, status=4)
    assert message in err.lower()
    assert len(err.splitlines()) <= 8  # the lines about loss and seed may come first
    assert not (folder / "out.onnx").exists()


def test_status_4_files(folder):
    (folder / "bad.npz").write_bytes(b"no archive")
    for name in ("missing.csv", "bad.npz", "model.onnx"):
        arguments = ["--data", name, "--target", "y", "-o", "out.onnx"]
        _, err = run("train", "model.onnx", *arguments, cwd=folder, status=4)
        assert name in err


def test_status_5_diverged(folder):
    options = ["--optimizer", "sgd", "--lr", "1e30", "--epochs", 20]
    _, err = run(*TRAIN, *options, cwd=folder, status=5)
    assert "ConvergenceError" in err
    assert not (folder / "out.onnx").exists()


def test_status_6_output(folder):
    _, err = run(*TRAIN[:-1], "no/out.onnx", cwd=folder, status=6)
    assert "no/out.onnx" in err
    run("gradient", "model.onnx", "-o", "/", cwd=folder, status=6)


def test_status_130_interrupted(folder):
    process = start(*TRAIN, "--epochs", 10**8, "--lr", "1e-9", cwd=folder)
    deadline = time.monotonic() + 60
    for line in process.stderr:
        if re.match(r" +\d+ ", line) or time.monotonic() > deadline:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "wrote out.onnx as it was when interrupted" in err
    onnx.checker.check_model(folder / "out.onnx")


def test_status_1_bug(monkeypatch, capsys, folder):
    def broken(*arguments, **options):
        raise errors.InternalError("the reason")

    monkeypatch.setattr("onnxgrad.cli.program.make_report", broken)
    monkeypatch.setattr(sys, "argv", ["onnxgrad", "report", str(folder / "model.onnx")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    err = capsys.readouterr().err
    assert "the reason" in err
    assert "please report" in err
    assert "numpy" in err


def test_status_7_device():
    assert cli.EXIT_STATUS[errors.DeviceError] == 7


def test_every_class_of_errors_has_a_status():
    classes = {getattr(errors, name) for name in errors.__all__} - {errors.Error}
    assert classes | {KeyboardInterrupt} == set(cli.EXIT_STATUS)
    assert set(cli.EXIT_STATUS.values()) == {1, 2, 3, 4, 5, 6, 7, 130}


# ------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("command", ["train", "gradient", "report", "versions", None])
def test_help_ends_with_an_example_that_runs(folder, command):
    out, _ = run(*([command] if command else []), "--help", cwd=folder)
    example = out.rstrip().splitlines()[-1].strip()
    assert example.startswith("onnxgrad ")
    assert "Example:" in out
    run(*example.split()[1:], cwd=folder)


def test_help_lists_the_commands_and_statuses():
    out, _ = run("--help")
    for command in ("train", "gradient", "report", "versions"):
        assert command in out
    assert "130 interrupted" in " ".join(out.split())


def on_terminal(arguments, cwd, environment):
    """Run on a pseudo terminal; return what it shows."""
    command = [sys.executable, "-m", "onnxgrad.cli", *map(str, arguments)]
    code = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        cwd=cwd,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_bar_on_a_terminal(folder):
    shown = on_terminal([*TRAIN, "--epochs", 5], folder, {})
    assert "5/5" in shown
    assert "loss " in shown
    assert "\x1b[" in shown
    assert "wrote out.onnx" in shown
    plain = on_terminal([*TRAIN, "--epochs", 5], folder, {"NO_COLOR": "1"})
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", plain)


# ------------------------------------------------------------------------------------------ tables


def test_csv_columns(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('n,x,name,"with, comma"\n1,0.5,ab,7\n2,,"c,d",8\n')
    columns = tables.read_table(str(path)).columns
    assert columns["n"].dtype == np.int64
    np.testing.assert_array_equal(columns["x"], [0.5, np.nan])
    assert columns["name"].tolist() == ["ab", "c,d"]
    np.testing.assert_array_equal(columns["with, comma"], [7, 8])


def test_inputs_by_name_and_by_order(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,c,y\n1,2,3,0\n4,5,6,1\n")
    table = tables.read_table(str(path))
    np.testing.assert_array_equal(table.inputs(["X"], ["y"])["X"], [[1, 2, 3], [4, 5, 6]])
    named = table.inputs(["c", "a"], ["y"])
    np.testing.assert_array_equal(named["c"], [[3], [6]])
    mixed = table.inputs(["b", "rest"], ["y"])
    np.testing.assert_array_equal(mixed["rest"], [[1, 3], [4, 6]])
    with pytest.raises(errors.DataError, match="'q'"):
        table.inputs(["q", "a", "r"], ["y"])
