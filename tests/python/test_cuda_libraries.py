"""Where NVIDIA's libraries are found, and what is said where one is missing or too old."""

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support import BUILD, LINEAR, ROOT

STANDINS = BUILD / "tests/cuda"
DRIVER = "libcuda.so.1"
NVRTC = "libnvrtc.so.13"
pytestmark = pytest.mark.skipif(
    not (STANDINS / DRIVER).exists(),
    reason="the stand-ins are built with the C++ tests, which this build lacks",
)

USE = f"""
import os
import sys
sys.path[:0] = sys.argv[1:]
import nanobind_backend
import numpy as np
import onnx.parser
if "VIRTUAL_ENV" in os.environ:  # this interpreter may have NVIDIA's wheels, too
    sys.path = [entry for entry in sys.path if "site-packages" not in entry]
import onnxgrad as og
model = onnx.parser.parse_model({LINEAR!r})
try:
    session = og.InferenceSession(model, device="cuda")
    print(session.run(None, {{"X": np.array([[2, 4]], np.float32)}})[0].item())
except og.DeviceError as error:
    print("DeviceError:", error)
"""


def has_driver():
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True


def use(tmp_path, *packages, **variables):
    """Print the result of a model, or the error, in a process with these variables."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests/python'}",
        "ONNXGRAD_CUDA_CACHE": str(tmp_path / "images"),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-c", USE, *map(str, packages)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        pytest.param(
            {"ONNXGRAD_CUDA_PATH": "/nowhere"},
            ["NVIDIA's driver was not found", "nvidia-smi", "device='cpu'"],
            marks=pytest.mark.skipif(has_driver(), reason="this machine has the driver"),
            id="no driver",
        ),
        pytest.param(
            {"ONNXGRAD_STANDIN_VERSION": "12020"},
            ["for CUDA 12.2, which is too old", "Install a driver for CUDA 12.4 or newer"],
            id="old driver",
        ),
        pytest.param(
            {"ONNXGRAD_STANDIN_CAPABILITY": "70"},
            ["has compute capability 7.0, which is too old", "7.5 or newer"],
            id="old card",
        ),
        pytest.param({"ONNXGRAD_STANDIN_CARDS": "0"}, ["no device 'cuda'"], id="no card"),
        pytest.param(
            {"ONNXGRAD_STANDIN_VERSION": "12040"},
            ["No libnvrtc.so.12 in", "pip install nvidia-cuda-nvrtc-cu12"],
            id="compiler newer than the driver",
        ),
        pytest.param(
            {"ONNXGRAD_STANDIN_ARCHITECTURES": "100 120"},
            ["compiler knows no cards of compute capability 9.0", "Install an older version"],
            id="compiler for newer cards",
        ),
    ],
)
def test_what_is_missing(tmp_path, variables, parts):
    said = use(tmp_path, **{"ONNXGRAD_CUDA_PATH": str(STANDINS), **variables})
    assert said.startswith("DeviceError"), said
    assert [part for part in parts if part not in said] == [], said


def test_a_card_that_is_newer_than_the_compiler(tmp_path):
    """Kernels are then PTX of the newest card that the compiler knows."""
    variables = {
        "ONNXGRAD_CUDA_PATH": str(STANDINS),
        "ONNXGRAD_STANDIN_ARCHITECTURES": "75 86 100",
        "ONNXGRAD_STANDIN_CAPABILITY": "90",
    }
    assert use(tmp_path, **variables) == "0.125"


def test_no_compiler_of_kernels(tmp_path):
    shutil.copy(STANDINS / DRIVER, tmp_path)
    said = use(tmp_path, ONNXGRAD_CUDA_PATH=str(tmp_path))
    assert "run-time compiler was not found" in said, said
    assert "pip install nvidia-cuda-nvrtc" in said, said


HEADERS = [
    folder
    for folder in [
        Path(sysconfig.get_path("purelib")) / "nvidia/cu13/include",
        Path("/usr/local/cuda/include"),
    ]
    if (folder / "cuda.h").exists() and (folder / "nvrtc.h").exists()
]


@pytest.mark.skipif(
    not HEADERS, reason="needs NVIDIA's headers (wheels nvidia-cuda-runtime and nvidia-cuda-nvrtc)"
)
def test_declarations():
    """The declarations of the library are those of NVIDIA's headers."""
    command = ["g++", "-std=c++20", "-fsyntax-only", "-I", "src", "-I", "include"]
    for folder in HEADERS:
        command += ["-isystem", str(folder)]
    subprocess.run([*command, "tests/cuda/declarations.cpp"], cwd=ROOT, check=True)


@pytest.mark.skipif(has_driver(), reason="the driver of this machine would be loaded")
@pytest.mark.parametrize("place", ["path", "environment"])
def test_wheels(tmp_path, place):
    """Libraries lie where NVIDIA's wheels put them, in an environment of Python."""
    site = tmp_path / "lib/python3/site-packages"
    library = site / "nvidia/cu13/lib"
    library.mkdir(parents=True)
    for name in (DRIVER, NVRTC):
        shutil.copy(STANDINS / name, library)
    if place == "path":
        assert use(tmp_path, site) == "0.125"
    else:
        assert use(tmp_path, VIRTUAL_ENV=str(tmp_path)) == "0.125"
