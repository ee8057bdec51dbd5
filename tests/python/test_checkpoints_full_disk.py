"""Checkpoints without disk space: a limit of file sizes, and a small disk that is full."""

import contextlib
import resource
import signal
import subprocess

import numpy as np
import pytest

import onnxgrad as og
from support import mlp_proto, run_python

BATCH = {"X": np.ones((8, 64), np.float32), "label": np.zeros((8, 2), np.float32)}


def session():
    return og.TrainingSession(mlp_proto([64, 1000, 2]), "squared_error", "adam")  # 0.8 MB


def assert_old_state_is_whole(path, old):
    """Assert that the old files are there, byte by byte, can be loaded, and are the only ones."""
    assert path.read_bytes() == old
    assert [file.name for file in path.parent.iterdir() if file.name != "filler"] == [path.name]
    again = session()
    again.load(path)
    assert again.steps == 1


@contextlib.contextmanager
def largest_file(size):
    """No file can get larger than `size` bytes; Python ignores the signal of that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 1, 4096, 500_000])
def test_a_limit_of_file_sizes_leaves_the_old_checkpoint(size, tmp_path):
    path = tmp_path / "state.safetensors"
    trained = session()
    trained.step(BATCH)
    trained.save(path)
    old = path.read_bytes()
    trained.step(BATCH)
    with largest_file(size), pytest.raises(og.CheckpointError, match="too large"):
        trained.save(path)
    assert_old_state_is_whole(path, old)
    trained.save(path)  # with free space again
    assert path.read_bytes() != old


KILLED = """
import resource, signal, sys
sys.path.insert(0, sys.argv[1])
from test_checkpoints_full_disk import BATCH, session
trained = session()
trained.step(BATCH)
trained.step(BATCH)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
trained.save(sys.argv[2])
"""


def test_killed_by_the_limit_of_file_sizes(tmp_path):
    path = tmp_path / "state.safetensors"
    trained = session()
    trained.step(BATCH)
    trained.save(path)
    old = path.read_bytes()
    done = run_python(KILLED, __file__.rpartition("/")[0], path)
    assert done.returncode == -signal.SIGXFSZ, done.stderr
    assert path.read_bytes() == old
    trained.step(BATCH)
    trained.save(path)  # over whatever the killed process left
    assert path.read_bytes() != old


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "none", folder],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("there is no program mount")
    if done.returncode:
        pytest.skip(f"no file system can be mounted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full(small_disk):
    path = small_disk / "state.safetensors"
    trained = session()
    trained.step(BATCH)
    trained.save(path)
    old = path.read_bytes()
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    trained.step(BATCH)
    with pytest.raises(og.CheckpointError, match="bytes, but 0 are free"):
        trained.save(path)
    assert_old_state_is_whole(path, old)
    filler.unlink()
    trained.save(path)
    assert path.read_bytes() != old
