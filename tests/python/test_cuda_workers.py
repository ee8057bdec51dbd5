"""Several cards: processes whose gradients go by NCCL, on stand-ins of NVIDIA's libraries."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import onnx
import pytest

from support import BUILD, ROOT, mlp_proto

STANDINS = BUILD / "tests/cuda"
pytestmark = pytest.mark.skipif(
    not (STANDINS / "libnccl.so.2").exists(),
    reason="the stand-ins are built with the C++ tests, which this build lacks",
)

# Trains, and writes what each worker has; the arguments are folder and case.
SCRIPT = f"""
import ctypes, json, os, sys
from pathlib import Path
import numpy as np
import onnxgrad as og

folder, case = Path(sys.argv[1]), json.loads(sys.argv[2])
rank = int(os.environ.get("RANK", 0))
driver = ctypes.CDLL({str(STANDINS / "libcuda.so.1")!r})
def fail(name, error, after=1):
    driver.onnxgrad_standin_fail(name.encode(), error, after)
random = np.random.default_rng(3)
X = random.normal(size=(45, 6)).astype(np.float32)
y = random.integers(0, 3, 45)
workers = og.distributed.connect(timeout=case.get("timeout", 60))
parallel = og.distributed.DataParallel(workers, **case.get("parallel", {{}}))
fit = {{"epochs": 3, "batch_size": 16, "verbose": 0, **case.get("fit", {{}})}}
def trainer(**options):
    options = {{**case.get("trainer", {{}}), **options}}
    return og.Trainer(
        str(folder / "net.onnx"), "softmax_cross_entropy", "adam", lr=0.05, seed=3, threads=1,
        dist=parallel, **options,
    )
exec(case.get("before", ""))
one = trainer()
exec(case.get("then", "one.fit(X, y, **fit)"))
state = {{name: value.tolist() for name, value in one.session.weights.items()}}
losses = list(one.history["train_loss"]) if one.history else []
found = {{"losses": losses, "state": state}}
(folder / f"rank-{{rank}}.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Where compiled kernels are kept for all jobs of this file."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture
def job(tmp_path, images):
    """Start a job, and return what its processes wrote and said."""
    onnx.save(mlp_proto((6, 24, 3)), tmp_path / "net.onnx")
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(size, *launch, device="cuda", status=0, variables=None, **case):
        program = [str(tmp_path / "script.py"), str(tmp_path), json.dumps(case)]
        how = ["-m", "onnxgrad", "launch", "-n", str(size), "--transport", "tcp"]
        how += ["--device", device, *launch] if size > 1 else []
        done = subprocess.run(
            [sys.executable, *(how if size > 1 else []), *program],
            env={
                **os.environ,
                "ONNXGRAD_CUDA_PATH": str(STANDINS),
                "ONNXGRAD_CUDA_CACHE": str(images),
                "ONNXGRAD_STANDIN_CARDS": str(size),
                "ONNXGRAD_DEVICE": device,
                "TMPDIR": str(tmp_path),
                "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests/python")]),
                **(variables or {}),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        said = done.stdout + done.stderr
        assert (done.returncode == 0) == (status == 0), said
        if status != 0:
            return said
        files = sorted(tmp_path.glob("rank-*.json"))
        assert len(files) == size, said
        found = [json.loads(file.read_text()) for file in files]
        for file in files:
            file.unlink()
        for other in found[1:]:
            assert other == found[0]
        assert not list(tmp_path.glob("onnxgrad-nccl-*"))  # the connection was closed
        return found[0]

    return start


@pytest.fixture
def second_of_two(tmp_path, images):
    """Start two processes without a launcher; return what the second one says, which fails."""
    onnx.save(mlp_proto((6, 24, 3)), tmp_path / "net.onnx")
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(**case):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        common = {
            **os.environ,
            "ONNXGRAD_CUDA_PATH": str(STANDINS),
            "ONNXGRAD_CUDA_CACHE": str(images),
            "ONNXGRAD_STANDIN_CARDS": "2",
            "ONNXGRAD_DEVICE": "cuda",
            "ONNXGRAD_JOB_TOKEN": "secret",
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": str(ROOT / "python"),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        program = [sys.executable, str(tmp_path / "script.py"), str(tmp_path), json.dumps(case)]
        processes = [
            subprocess.Popen(
                program,
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            said = processes[1].communicate(timeout=200)[0]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        assert processes[1].returncode == 1, said
        return said

    return start


def close(one, other):
    np.testing.assert_allclose(one["losses"], other["losses"], rtol=1e-5)
    for name, value in one["state"].items():
        np.testing.assert_allclose(value, other["state"][name], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("size", "parallel", "fit"),
    [
        (2, {}, {}),
        (3, {}, {"epochs": 2}),
        (2, {"zero": 1}, {}),
        (3, {"zero": 1, "exchange": "ordered"}, {"epochs": 2}),
    ],
)
def test_cards_train_as_the_cpu(job, size, parallel, fit):
    """By TCP on the CPU and by NCCL on cards: the numbers of the same training."""
    expected = job(size, device="cpu", parallel=parallel, fit=fit)
    close(job(size, parallel=parallel, fit=fit), expected)


@pytest.mark.parametrize("parallel", [{}, {"bfloat16": True}, {"zero": 1}], ids=str)
def test_ordered_sums_have_the_bits_of_the_hosts(job, parallel):
    expected = job(3, parallel={**parallel, "exchange": "host"})
    assert job(3, parallel={**parallel, "exchange": "ordered"}) == expected
    if not parallel:  # another order, other bits
        assert job(3, parallel=parallel) != expected


def test_accumulated_updates_exchange_once(job):
    options = {"trainer": {"accumulate": 2}}
    close(job(2, **options), job(2, device="cpu", **options))


def test_an_error_of_the_library_is_a_device_error(job):
    said = job(2, before="fail('ncclAllReduce', 3, 4)", status=1)
    assert "ncclAllReduce on rank" in said
    assert "unhandled system error" in said
    said = job(2, before="fail('ncclCommGetAsyncError', 6, 40)", status=1)
    assert "connection closed by a peer" in said


# Its steps end, but the next one never begins.
LEAVES = """
class Leaves(og.callbacks.Callback):
    every_n_steps = 1
    def on_step_end(self, trainer, logs):
        if rank == 0 and trainer.session.steps > 5:
            {how}

one.fit(X, y, callbacks=[Leaves()], **fit)
"""


def test_a_lost_rank_is_named(second_of_two):
    said = second_of_two(then=LEAVES.format(how="os._exit(9)"))
    assert "rank 0 on host" in said
    assert "connection is lost" in said


def test_a_rank_that_hangs_is_reported_after_the_timeout(second_of_two):
    said = second_of_two(timeout=3, then=LEAVES.format(how="__import__('time').sleep(100)"))
    assert "did not end within 3 s" in said


def test_each_process_needs_a_card(job):
    said = job(3, status=1, variables={"ONNXGRAD_STANDIN_CARDS": "2"})
    assert "3 processes, but this host has 2 cards" in said
    # Without the launcher's look at this host, as on others.
    said = job(
        3, status=1, device="cuda:0", variables={"ONNXGRAD_STANDIN_CARDS": "2"},
    )  # fmt: skip
    assert "have the same card" in said


def test_a_missing_library_is_named(job, tmp_path):
    for file in STANDINS.glob("lib*.so*"):
        if "nccl" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    variables = {"ONNXGRAD_CUDA_PATH": str(tmp_path)}
    said = job(2, status=1, variables=variables)
    assert "NCCL was not found" in said
    assert "pip install nvidia-nccl-cu13" in said
    job(2, parallel={"exchange": "host"}, variables=variables)
