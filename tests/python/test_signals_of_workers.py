"""Signals to a training of several ranks: a checkpoint, status 75, and the same bits later."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser, save

MODEL = """
<ir_version: 10, opset_import: ["": 21]>
mlp (float[N, 3] x) => (float[N, 1] out)
<float[3, 8] w1, float[8] b1, float[8, 1] w2>
{
  h = Gemm(x, w1, b1)
  d = Dropout(h)
  t = Tanh(d)
  out = MatMul(t, w2)
}
"""
ROWS, BATCH, EXIT_REQUEUE = 64, 8, 75


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    model = parser.parse_model(MODEL)
    for name, shape in (("w1", (3, 8)), ("b1", (8,)), ("w2", (8, 1))):
        values = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    save(model, tmp_path / "model.onnx")
    X = rng.normal(size=(ROWS, 3)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=X, y=np.tanh(X[:, :1]))
    return tmp_path


def train(folder: Path, run: str, epochs: int) -> list[str]:
    arguments = ["train", str(folder / "model.onnx"), "--data", str(folder / "rows.npz")]
    arguments += ["--target", "y", "--batch-size", str(BATCH), "--epochs", str(epochs)]
    arguments += ["--zero", "1", "--threads", "1", "--checkpoint-every", "1000000"]
    return [*arguments, "--run-dir", str(folder / run), "--resume", "auto"]


def launch(transport: str) -> list[str]:
    if transport == "mpirun":
        found = shutil.which("mpirun")
        if found is None or "Open MPI" not in version_of(found):
            pytest.skip("there is no mpirun of Open MPI")
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        return [found, *options, "--mca", "mpi_yield_when_idle", "1", "-n", "2", *program()]
    return [*program(), "launch", "-n", "2", "--transport", transport]


def version_of(mpirun: str) -> str:
    done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return done.stdout


def program() -> list[str]:
    return [sys.executable, "-m", "onnxgrad"]


def rank_of(job: int, rank: int) -> int:
    """Return the process of this rank below the process `job`."""
    below, found = {job}, []
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    for process in below:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        names = (f"RANK={rank}".encode(), f"OMPI_COMM_WORLD_RANK={rank}".encode())
        if any(name in variables for name in names):
            found.append(process)
    return max(found)  # mpirun may start a shell


def wait_for(condition, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("transport", "number", "to"),
    [
        ("tcp", signal.SIGTERM, "job"),
        ("tcp", signal.SIGUSR1, 1),
        ("mpirun", signal.SIGUSR1, "job"),
        ("mpirun", signal.SIGTERM, 1),
    ],
)
def test_a_signal_writes_a_checkpoint_that_continues_with_the_same_bits(
    folder, transport, number, to
):
    command = [*launch(transport), *train(folder, "stopped", 10**6)]
    metrics = folder / "stopped" / "metrics.csv"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:
        try:
            wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, job)
            os.kill(job.pid if to == "job" else rank_of(job.pid, to), number)
            errors = job.communicate(timeout=60)[1]
        except BaseException:
            job.terminate()
            raise
    assert job.returncode == EXIT_REQUEUE, errors
    checkpoints = folder / "stopped" / "checkpoints"
    newest = max(path.name for path in checkpoints.glob("ck-*") if ".worker" not in path.name)
    step = int(re.findall(r"\d+", newest)[0])
    epochs = step // (ROWS // BATCH) + 2
    models = []
    for run in ("stopped", "whole"):
        subprocess.run(
            [*program(), "launch", "-n", "2", "--transport", "tcp", *train(folder, run, epochs)],
            capture_output=True,
            check=True,
            timeout=120,
        )
        models.append((folder / run / "last.onnx").read_bytes())
    assert models[0] == models[1]
