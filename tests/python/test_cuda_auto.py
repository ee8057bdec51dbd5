"""`device="auto"` takes a card that computes what the CPU does, and says why it leaves one out."""

import os
import subprocess
import sys

import pytest

from support import BUILD, ROOT

STANDINS = BUILD / "tests/cuda"
pytestmark = pytest.mark.skipif(
    not (STANDINS / "libcuda.so.1").exists(),
    reason="the stand-ins are built with the C++ tests, which this build lacks",
)
SCRIPT = """
import warnings
import onnxgrad as og
from support import mlp_proto

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    sessions = [
        og.TrainingSession(mlp_proto((3, 4, 2)), "squared_error", device=device)
        for device in ("auto", "auto", {named!r})
    ]
print(*(session.memory().device for session in sessions))
print(*(warning.message for warning in said), sep="\\n")
"""


@pytest.mark.parametrize(
    ("variables", "device", "reason"),
    [
        ({}, "cuda:0", None),
        ({"ONNXGRAD_CUDA_PATH": "/nowhere"}, "cpu", None),
        ({"ONNXGRAD_STANDIN_WRONG": "1"}, "cpu", "' differs by "),
        ({"ONNXGRAD_STANDIN_FAIL": "cuModuleLoadData:200"}, "cpu", "cuModuleLoadData"),
        ({"ONNXGRAD_STANDIN_CAPABILITY": "70"}, "cpu", "too old"),
    ],
    ids=["right", "absent", "wrong", "broken", "old"],
)
def test_auto(tmp_path, variables, device, reason):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(named="cpu" if reason else "auto")],
        env={
            **os.environ,
            "ONNXGRAD_CUDA_PATH": str(STANDINS),
            "ONNXGRAD_CUDA_CACHE": str(tmp_path),
            "ONNXGRAD_DEVICE_PLUGINS": "",  # no other device is there
            "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests/python")]),
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    devices, *said = done.stdout.strip().splitlines()
    assert devices.split() == [device, device, "cpu" if reason else device]
    text = "\n".join(said)
    if reason is None:
        assert not text
    else:  # once
        assert text.count("device='auto' leaves cuda:0 out, since it fails its check:") == 1
        assert reason in text
