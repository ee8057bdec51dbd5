"""The check of a card (scripts/cuda_check), on stand-ins of NVIDIA's libraries."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import parser

from support import BUILD, ROOT, mlp_proto

STANDINS = BUILD / "tests/cuda"
pytestmark = pytest.mark.skipif(
    not (STANDINS / "libcuda.so.1").exists(),
    reason="the stand-ins are built with the C++ tests, which this build lacks",
)
SCRIPTS = ROOT / "scripts/cuda_check"
MODEL = '<ir_version: 8, opset_import: ["" : 17]> net (float[3] a) => (float[3] y) { y = Neg (a) }'


def write_cases(root, *names, result=(-1.0, -2.0, -3.0)):
    """Write cases of one model, as pack_cases.py does."""
    model = parser.parse_model(MODEL).SerializeToString()
    inputs = np.float32([1, 2, 3]).tobytes()
    data = model + inputs + np.float64(result).tobytes()
    at = len(model)
    entries = [
        {
            "name": name,
            "model": [0, at],
            "inputs": [{"dtype": "<f4", "dims": [3], "at": [at, 12]}],
            "tolerance": 3e-5,
            "float64": [{"dtype": "<f8", "dims": [3], "at": [at + 12, 24]}],
            "float32": [],
        }
        for name in names
    ]
    (root / "cases/cases.json").write_text(json.dumps(entries))
    (root / "cases/cases.bin").write_bytes(data)


@pytest.fixture
def check(tmp_path):
    """Run a part in an empty folder; return exit status, output and results by item."""
    root = tmp_path / "archive"
    for name in ("cases", "models", "data"):
        (root / name).mkdir(parents=True)
    shutil.copytree(SCRIPTS, root / "cuda_check")
    shutil.copytree(ROOT / "benchmarks/peers", root / "peers")
    onnx.save(mlp_proto((16, 32, 3)), root / "models/mlp.onnx")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(1000, 2)), random.normal(size=(1000, 1))
    np.savez(root / "data/w1_linreg2.npz", x=x.astype(np.float32), y=y.astype(np.float32))
    write_cases(root, "neg.one", "neg.two", "neg.three")

    def run(part, **variables):
        done = subprocess.run(
            [sys.executable, str(root / "cuda_check/main.py"), part, str(root), str(tmp_path)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "python"),
                "ONNXGRAD_CUDA_PATH": str(STANDINS),
                "ONNXGRAD_CUDA_CACHE": str(tmp_path / "images"),
                "ONNXGRAD_CHECK_SLOWER": "4",
                "ONNXGRAD_CHECK_SLICE_S": "0.01",
                "ONNXGRAD_CHECK_WORKLOADS": "w1_linreg2",
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        results = json.loads((tmp_path / "results.json").read_text())[part]
        return done, {result["item"]: result for result in results}

    run.root = root
    run.out = tmp_path
    return run


def test_finds_right_and_wrong_numbers_and_goes_on(check):
    done, results = check("correctness", ONNXGRAD_CHECK_SLOWER="0.01")
    assert done.returncode == 2, done.stdout + done.stderr
    assert all(result["passed"] is None for result in results.values())

    done, results = check("correctness")
    assert done.returncode == 0, done.stdout + done.stderr
    assert results["cases"]["values"] == {"cases": 3, "of": 3}
    assert "correctness: 6 passed, 0 failed" in done.stdout

    write_cases(check.root, "neg.one", "neg.four", result=(-1.0, -2.5, -3.0))
    (check.out / "correctness/cases.json").unlink()  # the others keep their results
    before = (check.out / "correctness/traces.json").stat().st_mtime_ns
    done, results = check("correctness")
    assert done.returncode == 1
    assert "neg.four: result 0 differs by 0.5" in results["cases"]["values"]
    assert "neg.one" not in results["cases"]["values"]
    assert (check.out / "correctness/traces.json").stat().st_mtime_ns == before


def test_measures_what_is_there(check):
    done, results = check("speed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert results["w1_linreg2"]["values"]["us a step"]["float32"] > 0
    assert results["torch"]["values"] == {"absent": "torch"}
    (line,) = (text for text in done.stdout.splitlines() if "w1_linreg2         float32" in text)
    assert " 0.3" in line  # the aim


def test_says_what_is_missing(check):
    done, results = check("speed", ONNXGRAD_CUDA_PATH="/nowhere")
    assert done.returncode == 1
    assert list(results) == ["libraries"]
    assert "libcuda" in results["libraries"]["values"]
