"""Files that Python writes are there in full, or as they were before."""

import ast
import contextlib
import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import onnxgrad as og
from onnxgrad.files import LineFile, write_file
from onnxgrad.history import History
from onnxgrad.profiles import Profile
from onnxgrad.run_folder import RunFolder

PACKAGE = Path(og.__file__).parent
# Calls that write a file under its own name; arrays and pictures go into memory first.
WRITERS = {"write_text", "write_bytes", "NamedTemporaryFile", "fsync", "save_as_external_data"}
INTO_MEMORY = {"np.save", "np.savez", "np.savetxt", "figure.savefig"}


@contextlib.contextmanager
def no_room():
    """No file can grow: what a full disk is like."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def writes_of(source):
    """Return the lines of `source` that write a file by themselves."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, (ast.FunctionDef, ast.Module)):
            continue
        memory = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func).rpartition(".")[2] in ("BytesIO", "StringIO")
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if last == "open" and name != "os.open":
                place = 0 if isinstance(node.func, ast.Attribute) else 1
                modes = node.args[place : place + 1]
                modes += [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
                writes = any(not set(ast.unparse(mode)) <= set("'rbt") for mode in modes)
            elif name in INTO_MEMORY or last == "savefig":
                writes = isinstance(function, ast.FunctionDef) and not (
                    isinstance(arguments[0], ast.Name) and arguments[0].id in memory
                )
            else:
                writes = last in WRITERS or name in ("onnx.save", "onnx.save_model")
                if name == "os.open":
                    flags = ast.unparse(arguments[1])
                    writes = "O_RDONLY" not in flags or "O_CREAT" in flags or "O_TRUNC" in flags
            if writes:
                found.append(node.lineno)
    return sorted(set(found))


@pytest.mark.parametrize(
    "source",
    [
        "path.open('w')",
        "open(path, 'ab')",
        "open(path, mode=mode)",
        "path.write_text('a')",
        "os.open(path, os.O_WRONLY)",
        "os.open(path, flags)",
        "os.open(path, os.O_RDONLY | os.O_CREAT)",
        "onnx.save(model, path)",
        "def f(path):\n    np.save(path, a)",
        "def f(path):\n    figure.savefig(path)",
    ],
)
def test_writes_are_found(source):
    assert writes_of(source)


def test_reads_and_memory_are_not_writes():
    assert not writes_of("os.open(path, os.O_RDONLY | os.O_CLOEXEC)")
    assert not writes_of("path.open('rb'), open(path), open(path, 'r'), path.open()")
    assert not writes_of("def f():\n    memory = io.BytesIO()\n    np.save(memory, a)")


def test_nothing_else_writes_files():
    """A file is whole or absent since all of them are written by onnxgrad.files."""
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "files.py" and (lines := writes_of(path.read_text()))
    }
    assert found == {}


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
    code = "from onnxgrad.files import write_file; write_file('/dev/stdout', 'seen')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "seen"


def test_a_full_disk_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with no_room(), pytest.raises(og.CheckpointError, match="too large"):
        write_file(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_killed_while_writing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    code = (
        "import resource, signal, sys; from onnxgrad.files import write_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2, 2))\n"
        "write_file(sys.argv[1], 'new')"
    )
    done = subprocess.run([sys.executable, "-B", "-c", code, path], check=False)
    assert done.returncode == -signal.SIGXFSZ
    assert path.read_text() == "old"
    write_file(path, "new")
    assert path.read_text() == "new"


def test_whole_lines_are_there_at_once(tmp_path):
    path = tmp_path / "log"
    file = LineFile(path)
    file.write("a")
    assert path.read_text() == ""
    print("b", file=file)
    assert path.read_text() == "ab\n"
    file.write("c\nd\ne")
    assert path.read_text() == "ab\nc\nd\n"
    file.close()
    file.close()
    assert path.read_text() == "ab\nc\nd\ne"
    again = LineFile(path, append=True)
    again.write("\n")
    again.close()
    assert path.read_text() == "ab\nc\nd\ne\n"


def test_lines_reach_the_disk(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.fstat(number).st_size))
    file = LineFile(tmp_path / "log")
    file.write("a\n")
    assert flushed == []  # in the same second
    monkeypatch.setattr("onnxgrad.files._SECONDS_BETWEEN_FLUSHES", 0.0)
    file.write("b\n")
    assert flushed == [4]
    file.close()
    assert flushed == [4, 4]


def test_a_failed_flush_is_reported(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    file = LineFile(tmp_path / "log")
    with pytest.raises(og.CheckpointError, match="space"):
        file.close()


def test_lines_without_room(tmp_path):
    file = LineFile(tmp_path / "log")
    with no_room(), pytest.raises(og.CheckpointError, match="too large"):
        file.write("a\n")
    with pytest.raises(og.CheckpointError, match="No such file"):
        LineFile(tmp_path / "none" / "log")


def test_histories(tmp_path):
    path = tmp_path / "h.csv"
    path.write_text("old")
    history = History.from_logs([{"epoch": 1.0, "train_loss": 2.0}])
    with no_room(), pytest.raises(og.CheckpointError, match="too large"):
        history.to_csv(path)
    assert path.read_text() == "old"


def test_run_folders(tmp_path):
    with no_room(), pytest.raises(og.CheckpointError, match="too large"):
        RunFolder(tmp_path / "b", {"epochs": 3}).on_train_begin(None)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_traces(tmp_path):
    profile = Profile()
    profile.trace_json = "[]"
    with no_room(), pytest.raises(og.CheckpointError, match="too large"):
        profile.save(tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())


WRITER = """
import sys, onnxgrad as og
from onnxgrad.files import write_file
data = b"x" * (8 << 20)
print("ready", flush=True)
while True:
    write_file(sys.argv[1], data)
"""


def temporaries(folder):
    return sorted(path.name for path in folder.iterdir() if "onnxgrad-tmp" in path.name)


def test_files_of_killed_processes_are_removed(tmp_path):
    """The file of a process that is alive stays, and its write succeeds."""
    for name in ("a.bin", "b.bin") * 4:
        command = [sys.executable, "-c", WRITER, tmp_path / name]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            for _ in range(200):  # until it is inside of a write
                if any(str(process.pid) in left for left in temporaries(tmp_path)):
                    break
                time.sleep(0.002)
            process.kill()
    (tmp_path / ".a.bin.onnxgrad-tmp-1-2").write_text("of a process that has ended")
    (tmp_path / ".a.bin.tmp-1-2").write_text("not ours")
    (tmp_path / ".onnxgrad-tmp-notes").write_text("not ours")
    (tmp_path / ".c.bin.onnxgrad-tmp-1-3").symlink_to(tmp_path / "target")
    (tmp_path / "target").write_text("mine")
    command = [sys.executable, "-c", WRITER, tmp_path / "c.bin"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        for _ in range(50):
            write_file(tmp_path / "d.bin", b"d")
        assert process.poll() is None  # its files were not taken away
        process.kill()
    write_file(tmp_path / "d.bin", b"d")
    names = {path.name for path in tmp_path.iterdir()}
    assert {".a.bin.tmp-1-2", ".onnxgrad-tmp-notes", "target", "d.bin"} <= names
    assert temporaries(tmp_path) == [".c.bin.onnxgrad-tmp-1-3", ".onnxgrad-tmp-notes"]
    assert (tmp_path / "target").read_text() == "mine"


MANY_WRITES = """
import sys
from onnxgrad.files import write_file
print("ready", flush=True)
for _ in range(300):
    write_file(sys.argv[1], b"x")
"""


def test_writers_in_a_folder_do_not_interfere(tmp_path):
    """A file that is written has its lock until it has its name: nobody takes it for a left one."""
    command = [sys.executable, "-c", MANY_WRITES, tmp_path / "a.bin"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        while process.poll() is None:
            write_file(tmp_path / "b.bin", b"y")
    assert process.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "b.bin"]
