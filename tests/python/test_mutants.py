"""Changed model files through the Python package: only onnxgrad.Error may leave, no process dies.

The C++ harness (tests/fuzz) has 5,000 of them; here some of the same files go through what a user
of the package does with a model. They run in processes with limits on address space and time.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_tool import MODELS, ROOT

COUNT = 300
BATCH = 100
ADDRESS_BYTES = 3 << 30
PEAK_BYTES = 1 << 30
SECONDS = 10  # processor time of one mutant

JOB = """
import json, resource, signal, sys, traceback

folder, first, last, address_bytes, seconds = sys.argv[1], *map(int, sys.argv[2:])
import numpy as np
import onnxgrad as og

resource.setrlimit(resource.RLIMIT_AS, (address_bytes,) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

def feed(value):
    shape = [d if isinstance(d, int) and 0 <= d <= 64 else 2 for d in value.shape]
    while np.prod(shape, dtype=object) > 16384:
        shape[np.argmax(shape)] = 1
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    if kind == "string":
        return np.full(shape, "a", object)
    return np.ones(shape, {"float": "float32", "double": "float64"}.get(kind, kind))

def run(content):
    session = og.InferenceSession(content, threads=1)
    session.run(None, {i.name: feed(i) for i in session.get_inputs()})

def gradient(content):
    og.gradient(content, fill_grad=True)

def train(content):
    session = og.TrainingSession(content, threads=1)
    feeds = {i.name: feed(i) for i in session.get_inputs()}
    session.step(feeds)
    session.trained_model()

def fit(content):
    trainer = og.Trainer(content, loss="squared_error", threads=1)
    rows = np.ones((4, 3), np.float32)
    trainer.fit(rows, rows, epochs=1, verbose=0)

def look(content):
    str(og.report(content))
    og.initialize(content, scheme="auto", seed=0)

passed = dict.fromkeys(("run", "gradient", "train", "fit", "look"), 0)
foreign = []
for number in range(first, last):
    print(number, file=sys.stderr, flush=True)
    with open(f"{folder}/{number}.onnx", "rb") as file:
        content = file.read()
    for stage in (run, gradient, train, fit, look):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            stage(content)
            passed[stage.__name__] += 1
        except og.Error as error:
            if isinstance(error, og.InternalError):
                foreign.append(f"mutant {number}, {stage.__name__}: {error}")
        except BaseException:
            foreign.append(f"mutant {number}, {stage.__name__}: {traceback.format_exc(limit=-3)}")
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
print(json.dumps({"passed": passed, "foreign": foreign, "peak": peak}))
"""


@pytest.fixture(scope="module")
def mutants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 0.onnx, 1.onnx, ... as the C++ harness makes them."""
    build = Path(os.environ.get("ONNXGRAD_BUILD_DIR", ROOT / "build/release"))
    folder = tmp_path_factory.mktemp("mutants")
    tool = build / "tests/onnxgrad_mutants"
    subprocess.run([tool, MODELS, "--write", str(COUNT), folder], check=True, timeout=120)
    return folder


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_only_our_errors_leave(mutants: Path, first: int) -> None:
    numbers = (first, first + BATCH, ADDRESS_BYTES, SECONDS)
    done = subprocess.run(
        [sys.executable, "-c", JOB, mutants, *map(str, numbers)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    last = done.stderr.strip().splitlines()[-1:]
    assert done.returncode == 0, f"the process died with {done.returncode}: mutant {last}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["foreign"] == []
    assert found["peak"] < PEAK_BYTES, found["peak"]
    # Some get through, some do not: the mutants reach what they attack.
    for stage in ("run", "gradient", "look"):
        assert BATCH // 20 < found["passed"][stage] < BATCH, found["passed"]
