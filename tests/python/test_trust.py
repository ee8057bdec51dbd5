"""Files of somebody else: what they may not run or write, and what their names may not do."""

import os
import shutil
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad as og
from command_line import run
from support import mlp_proto

DATA = ("--data", "rows.csv", "--target", "y", "-q")
PRECIOUS = b"precious\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    before = Path.cwd()
    os.chdir(folder)
    onnx.save(mlp_proto([2, 1]), "model.onnx")
    rows = np.random.default_rng(0).normal(size=(20, 3))
    np.savetxt("rows.csv", rows, "%.6f", ",", header="a,b,y", comments="")
    run("train", "model.onnx", *DATA, "--epochs", 1, "--run-dir", "run")
    Path("victim").write_bytes(PRECIOUS)
    Path("code.py").write_text("open('code_ran', 'w')\n")
    os.chdir(before)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A folder with a model, rows, and the run folder of somebody else."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_to_config(*lines):
    config = Path("run/config.toml")
    names = {line.split(" = ")[0] for line in lines}
    kept = [line for line in config.read_text().splitlines() if line.split(" = ")[0] not in names]
    config.write_text("".join(f"{line}\n" for line in [*lines, *kept]))


# ------------------------------------------------------------- what a file of options may not do

WAYS = {
    "resume": ("--resume", "run", "--epochs", 2, "-q"),
    "auto": ("model.onnx", *DATA, "--run-dir", "run", "--resume", "auto", "--epochs", 2),
    "config": ("model.onnx", *DATA, "--config", "run/config.toml", "--epochs", 2),
    "copied": ("--config", "copy.toml", "--epochs", 2, "-q", "-o", "o.onnx"),
}


@pytest.mark.parametrize("way", WAYS)
def test_files_run_no_code(folder, monkeypatch, way):
    monkeypatch.syspath_prepend(str(folder))
    config = Path("run/config.toml").read_text()
    for operators in ('["code.py"]', '"code.py"', '["code"]', '["victim", "code.py"]'):
        Path("run/config.toml").write_text(f"operators = {operators}\n{config}")
        shutil.copy("run/config.toml", "copy.toml")
        _, err = run("train", *WAYS[way], status=2)
        assert "operators names" in err
        assert "run as code" in err
        assert "--trust" in err
        assert not Path("code_ran").exists()


def test_code_that_the_user_names_or_trusts_runs(folder):
    add_to_config('operators = ["code.py"]')
    run("train", *WAYS["resume"], "--trust")
    assert Path("code_ran").exists()
    Path("code_ran").unlink()
    run("train", "--resume", "run", "--epochs", 3, "-q", "--operators", "code.py")
    assert Path("code_ran").exists()


@pytest.mark.parametrize("key", ["output", "history"])
def test_a_run_folder_writes_only_within_itself(folder, key):
    add_to_config(f'{key} = "{folder}/victim"', "overwrite = true")
    _, err = run("train", *WAYS["resume"])
    assert f"'{folder}/victim', the {key} in run/config.toml, is not written" in err
    assert Path("victim").read_bytes() == PRECIOUS
    onnx.checker.check_model("run/last.onnx")
    assert f"{folder}/victim" in Path("run/config.toml").read_text()  # for a run that is trusted
    run("train", "--resume", "run", "--epochs", 3, "-q", "--trust")
    assert Path("victim").read_bytes() != PRECIOUS


@pytest.mark.parametrize("key", ["output", "history"])
def test_a_configuration_file_writes_nowhere(folder, key):
    add_to_config(f'{key} = "{folder}/victim"')
    other = {"output": ("-o", "o.onnx"), "history": ("--history", "h.csv")}[key]
    _, err = run("train", *WAYS["config"], status=2)
    assert f"{key} names '{folder}/victim', to be written" in err
    assert f"{other[0]} {folder}/victim; or give --trust" in err
    run("train", *WAYS["config"], *other)
    assert Path("victim").read_bytes() == PRECIOUS
    assert Path(other[1]).exists()
    run("train", *WAYS["config"], "--trust")
    assert Path("victim").read_bytes() != PRECIOUS


# ---------------------------------------------------------------- what stands in a file's place

OWN_FILES = ("config.toml", "environment.txt", "metrics.csv", "train.log", "last.onnx", "best.onnx")


def place_link(path):
    path.symlink_to("../victim")


def place_pipe(path):
    os.mkfifo(path)


def place_hard_link(path):
    os.link("victim", path)


@pytest.mark.parametrize("place", [place_link, place_pipe, place_hard_link])
@pytest.mark.parametrize("name", [*OWN_FILES, "checkpoints/lock", "checkpoints/best"])
def test_what_stands_in_place_of_a_file_of_the_run(folder, name, place):
    path = Path("run", name)
    path.unlink()
    place(path)
    kept = path.lstat()
    try:
        run("train", *WAYS["resume"])
    except AssertionError:  # refused
        assert path.lstat().st_ino == kept.st_ino
    else:
        assert stat.S_ISREG(path.lstat().st_mode)
    assert Path("victim").read_bytes() == PRECIOUS


def test_a_link_in_place_of_the_checkpoints(folder):
    shutil.move("run/checkpoints", "others")
    Path("run/checkpoints").symlink_to("../others")
    before = sorted(Path("others").iterdir())
    _, err = run("train", *WAYS["resume"], status=6)
    assert "run/checkpoints' is a symbolic link" in err
    assert sorted(Path("others").iterdir()) == before


def test_a_link_with_the_name_of_a_checkpoint(folder):
    for path in Path("run/checkpoints").glob("ck-*"):
        path.unlink()
        path.symlink_to("../../victim")
    try:
        run("train", *WAYS["resume"])
    except AssertionError:  # refused: there is nothing to resume from
        assert path.is_symlink()
    assert Path("victim").read_bytes() == PRECIOUS


@pytest.mark.parametrize("suffix", ["csv", "npz", "npy", "jsonl", "parquet", "tsv"])
def test_pipes_and_devices_are_not_waited_for(folder, suffix):
    os.mkfifo(f"pipe.{suffix}")
    Path(f"device.{suffix}").symlink_to("/dev/zero")
    for name in (f"pipe.{suffix}", f"device.{suffix}"):
        target = name if suffix == "npy" else "y"
        for command in ("predict", "evaluate"):
            options = ("-o", "out.npz") if command == "predict" else ("--target", target)
            _, err = run(command, "model.onnx", "--data", name, *options, status=4)
            assert "not a regular file" in err
        _, err = run("train", "--config", name, status=2)
        assert "not a regular file" in err


# ------------------------------------------------------------------------------------- names

NAME = "evil\n\x1b[2Jname\x9b"
SHOWN = r"evil\n\x1b[2Jname\x9b"


def test_names_of_files_do_not_control_the_terminal(folder):
    Path("rows.csv").rename(f"{NAME}.csv")
    _, err = run(
        "train", "model.onnx", "--data", f"{NAME}.csv", "--target", "z", "-o", "o", status=4
    )
    assert f"{SHOWN}.csv: there is no column 'z'" in err.splitlines()[0]
    out, _ = run(
        "predict", "model.onnx", "--data", f"{NAME}.csv", "--ignored", "y", "-o", f"{NAME}.npy"
    )
    assert out.startswith(f"wrote {SHOWN}.npy")
    assert not set(out + err) & {"\x1b", "\x9b"}


def test_names_in_models_do_not_control_the_terminal(folder):
    text = Path("model.onnx").read_bytes()
    model = onnx.load_from_string(text)
    names = {value.name: NAME + value.name for value in model.graph.initializer}
    names |= {value.name: NAME + value.name for value in model.graph.input}
    names |= {value.name: NAME + value.name for value in model.graph.output}
    for value in [*model.graph.initializer, *model.graph.input, *model.graph.output]:
        value.name = names[value.name]
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    onnx.save(model, "evil.onnx")
    first = next(iter(names.values()))
    shown = og.errors.printable(first)
    for arguments in (
        ("report", "evil.onnx"),
        ("train", "evil.onnx", *DATA[:-1], "--epochs", 1, "-v", "-o", "o.onnx"),
        ("evaluate", "evil.onnx", "--data", "rows.csv", "--target", "y"),
    ):
        out, err = run(*arguments)
        assert not set(out + err) & {"\x1b", "\x9b"}, arguments
    out, _ = run("report", "evil.onnx")
    assert any(line.startswith(shown) for line in out.splitlines())
    with pytest.raises(og.ModelError, match="zz") as caught:
        og.set_weights(model, {"zz": np.ones(1)})
    assert "\x1b" not in str(caught.value)
