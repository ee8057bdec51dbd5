"""Scripts on stand-ins of NVIDIA's libraries, each in a process of its own."""

import os
import subprocess
import sys

from support import BUILD, ROOT

STANDINS = BUILD / "tests/cuda"
DRIVER = STANDINS / "libcuda.so.1"

# Names that every script has; `calls` counts calls of the driver, `fail` makes later ones fail.
PREPARED = f"""
import ctypes
import numpy as np
import onnxgrad as og
from support import mlp_proto

driver = ctypes.CDLL({str(DRIVER)!r})
driver.onnxgrad_standin_calls.restype = ctypes.c_int64
calls = lambda name: driver.onnxgrad_standin_calls(name.encode())
fail = lambda name, error, after=1: driver.onnxgrad_standin_fail(name.encode(), error, after)
random = np.random.default_rng(3)
X = random.normal(size=(256, 6)).astype(np.float32)
labels = random.integers(0, 3, 256)
T = np.eye(3, dtype=np.float32)[labels]

def trainer(device="cuda", optimizer="adam", sizes=(6, 16, 3), loss="mse", **options):
    return og.Trainer(
        mlp_proto(sizes), loss=loss, optimizer=optimizer, seed=5, device=device, **options
    )

def fit(one, epochs=3, **options):
    one.fit(X, T, epochs=epochs, batch_size=16, verbose=0, **options)
    return one

def raised(call):
    try:
        call()
    except og.DeviceError as error:
        return str(error)
    raise AssertionError("no error")
"""


def run_script(script, images, prepared=PREPARED, **variables):
    """Run a script in a process that finds the stand-ins, and return what it printed.

    `images` is the folder of compiled kernels.
    """
    environment = {
        **os.environ,
        "ONNXGRAD_CUDA_PATH": str(STANDINS),
        "ONNXGRAD_CUDA_CACHE": str(images),
        "ONNXGRAD_DEVICE": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests/python")]),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-c", prepared + script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
