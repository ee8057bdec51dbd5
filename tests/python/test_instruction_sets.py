"""`ONNXGRAD_MAX_ISA`: the best instruction set that kernels may use."""

import os
import platform
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from product_network import network, rows

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="names sets of x86-64"),
    pytest.mark.host_only("instruction sets are those of the CPU"),
]

# Results of inference, and the kernels of a step in bfloat16, of which processors have more kinds.
SCRIPT = """
import sys
import numpy as np, onnxgrad as og
model, x, y, result = sys.argv[1:]
x, y = np.load(x), np.load(y)
np.save(result, og.InferenceSession(model).run(None, {"x": x})[0])
for precision in ("float32", "bfloat16"):
    session = og.TrainingSession(model, "mse", precision=precision)
    with session.profiling() as profile:
        session.step({"x": x, "label": y})
    print(*(kernel.kernel for kernel in profile.kernels), sep="\\n")
"""


@pytest.fixture
def run(tmp_path):
    onnx.save(network(), tmp_path / "model.onnx")
    for name, values in zip("xy", rows(count=300), strict=True):
        np.save(tmp_path / f"{name}.npy", values)

    def run(isa):
        files = [tmp_path / name for name in ("model.onnx", "x.npy", "y.npy", "result.npy")]
        return subprocess.run(
            [sys.executable, "-c", SCRIPT, *files],
            env={**os.environ, "ONNXGRAD_MAX_ISA": isa},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("isa", "better"), [("AVX2", ["AVX3", "AVX512", "AMX"]), ("SSE4", ["AVX", "AMX"])]
)
def test_kernels_use_no_better_set(isa, better, run, tmp_path):
    done = run(isa)
    assert done.returncode == 0, done.stderr
    assert isa in done.stdout
    assert not [name for name in better if name in done.stdout], done.stdout
    stock = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    expected = stock.run(None, {"x": np.load(tmp_path / "x.npy")})[0]
    np.testing.assert_allclose(np.load(tmp_path / "result.npy"), expected, rtol=1e-4, atol=1e-5)


def test_an_unknown_set_is_an_error(run):
    done = run("AVX9")
    assert done.returncode != 0
    assert "ONNXGRAD_MAX_ISA='AVX9' names no instruction set" in done.stderr
    assert "one of AVX3, AVX2, SSE4" in done.stderr
