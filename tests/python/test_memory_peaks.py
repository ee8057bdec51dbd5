"""How much memory loading, training and saving a big model takes, in multiples of its weights.

Each job runs in a process of its own, which reads the peak of its resident memory (VmHWM of
/proc/self/status, reset between the steps) and subtracts what was there before the model.
docs/sessions.md has the table that these bounds keep true.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

# The simulated device has a copy of the weights, in memory of the process.
pytestmark = pytest.mark.host_only("measures the memory of the host")

WIDTH = 1024
LAYERS = 50  # 4 MiB each: 200 MiB

JOB = """
import json, os, sys

def peak():
    with open("/proc/self/status") as status:
        found = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    return found * 1024

import numpy as np
import onnxgrad as og
from onnxgrad import _core

source, target, rank = sys.argv[1:]
rows = np.zeros((4, 1024), np.float32)
before = peak()
before = peak()  # what is resident now, the first one having been reset
found = {}
def note(name):
    found[name] = peak() - before

model = _core.Model.load(source)
note("load")
model.weights
note("working copy")
trainer = og.Trainer(source, optimizer="sgd", threads=1, lora=int(rank) or None)
trainer.fit(rows, rows, epochs=1, batch_size=4, verbose=0)
del model
peak()
note("trained")
trainer.save(target)
note("save")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def big_model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(LAYERS):
        numbers = (rng.standard_normal((WIDTH, WIDTH)) / 32).astype(np.float32)
        weights.append(numpy_helper.from_array(numbers, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", WIDTH])
        for name in ("x0", f"x{LAYERS}")
    ]
    graph = helper.make_graph(nodes, "big", ends[:1], ends[1:], weights)
    opset = helper.make_opsetid("", 21)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    folder = tmp_path_factory.mktemp("big")
    paths = {"inside": folder / "inside.onnx", "external": folder / "external.onnx"}
    onnx.save(model, paths["inside"])
    onnx.save(model, paths["external"], save_as_external_data=True, location="external.data")
    return paths


# The file's bytes are kept, because they are returned; its tensors are views into them. To save,
# they are put together once more.
BOUNDS = {
    "inside": {"load": 1.1, "working copy": 1.1, "trained": 2.1, "save": 4.2},
    "external": {"load": 1.1, "working copy": 1.1, "trained": 2.1, "save": 3.1},
}


def peaks_of(source: Path, target: Path, rank: int = 0) -> dict[str, float]:
    """Return the peaks in multiples of the float weights."""
    job = [sys.executable, "-c", JOB, str(source), str(target), str(rank)]
    done = subprocess.run(job, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    weight_bytes = 4 * LAYERS * WIDTH**2
    found = {name: size / weight_bytes for name, size in json.loads(done.stdout).items()}
    print(source.stem, {name: round(size, 2) for name, size in found.items()})
    return found


def test_an_adapter_on_packed_weights_takes_less_than_float_weights(
    big_model: dict[str, Path], tmp_path: Path
) -> None:
    packed = tmp_path / "packed.onnx"
    og.quantize_weights(big_model["inside"], "int4", path=packed)
    found = peaks_of(packed, tmp_path / "trained.onnx", rank=8)
    assert 0.14 < found["load"] < found["trained"] < 0.45
    assert found["save"] < 0.8


@pytest.mark.parametrize("kind", ["inside", "external"])
def test_peaks(big_model: dict[str, Path], kind: str, tmp_path: Path) -> None:
    found = peaks_of(big_model[kind], tmp_path / "trained.onnx")
    assert {name: size for name, size in found.items() if size > BOUNDS[kind][name]} == {}
    # The measurement is real: the weights are in memory, and more once they are trained.
    assert 0.99 < found["load"] < found["trained"] < found["save"]
