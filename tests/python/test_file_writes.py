"""Small files that Python writes are there in full, or as they were before."""

import errno
import os
import stat
import subprocess
import sys

import pytest

import onnxgrad as og
from onnxgrad._files import write_file
from onnxgrad.history import History
from onnxgrad.profiles import Profile
from onnxgrad.run_folder import RunFolder


@pytest.fixture
def failing_flush(monkeypatch):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)


def test_new_and_replaced(tmp_path):
    path = tmp_path / "a.txt"
    write_file(path, "één\n")
    assert path.read_bytes() == "één\n".encode()
    path.chmod(0o640)
    write_file(str(path), b"\r\n\0")
    assert path.read_bytes() == b"\r\n\0"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_without_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_file("a.txt", "x")
    assert (tmp_path / "a.txt").read_text() == "x"


def test_links_stay(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "real")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "real").read_text() == "new"


def test_to_a_pipe():
    code = "from onnxgrad._files import write_file; write_file('/dev/stdout', 'seen')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "seen"


def test_a_full_disk_leaves_what_was_there(tmp_path, failing_flush):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(OSError, match="space"):
        write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_killed_while_writing(tmp_path, call):
    path = tmp_path / "a.txt"
    path.write_text("old")
    code = (
        "import os, sys; from onnxgrad._files import write_file\n"
        f"os.{call} = lambda *arguments: os._exit(9)\n"
        "write_file(sys.argv[1], 'new')"
    )
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 9
    assert path.read_text() == "old"
    write_file(path, "new")
    assert path.read_text() == "new"


def test_histories(tmp_path, failing_flush):
    path = tmp_path / "h.csv"
    path.write_text("old")
    history = History.from_logs([{"epoch": 1.0, "train_loss": 2.0}])
    with pytest.raises(og.CheckpointError, match="space"):
        history.to_csv(path)
    assert path.read_text() == "old"


def test_run_folders(tmp_path, failing_flush):
    with pytest.raises(og.CheckpointError, match="space"):
        RunFolder(tmp_path / "b", {"epochs": 3}).on_train_begin(None)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_traces(tmp_path, failing_flush):
    with pytest.raises(OSError, match="space"):
        Profile().save(tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())
