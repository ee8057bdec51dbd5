"""What `import onnxgrad` brings in, and how long a process takes until it trains."""

import resource
import sys

import numpy as np
import pytest

from support import mlp_proto, run_python

HEAVY = ["matplotlib", "onnx", "onnxruntime", "pandas", "rich", "sklearn", "typer", "google"]


def test_import_brings_no_heavy_module():
    done = run_python("import sys, onnxgrad; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "numpy" in loaded
    assert not loaded & set(HEAVY)


TRAIN = """
import sys
import numpy as np
import onnxgrad as og
trainer = og.Trainer(sys.argv[1], "squared_error", "sgd", lr=1e-5)
data = np.load(sys.argv[2])
trainer.fit(data["X"], data["y"], epochs=1, batch_size=15, verbose=0)
trainer.save(sys.argv[3])
print(*sys.modules)
"""


@pytest.fixture
def w2(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(750, 100)).astype(np.float32)
    np.savez(tmp_path / "data.npz", X=X, y=X[:, :1])
    model = mlp_proto([100, 50, 10, 1])
    (tmp_path / "w2.onnx").write_bytes(model.SerializeToString())
    return tmp_path


def test_training_from_a_path_brings_no_heavy_module(w2):
    done = run_python(TRAIN, w2 / "w2.onnx", w2 / "data.npz", w2 / "out.onnx")
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & set(HEAVY)


def cpu_seconds(code, *arguments):
    """Processor time of a process, the least of several: a busy machine matters little."""
    seconds = []
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run_python(code, *arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(seconds)


def test_import_takes_little_more_than_numpy():
    assert cpu_seconds("import onnxgrad") < cpu_seconds("import numpy") + 0.06


def test_first_step_comes_soon(w2):
    # Aim: 0.15 s from the start of the process on an idle machine, half of which is NumPy's.
    ours_s = cpu_seconds(TRAIN, w2 / "w2.onnx", w2 / "data.npz", w2 / "out.onnx")
    assert ours_s < cpu_seconds("import numpy") + 0.12


def test_public_names_exist():
    import onnxgrad

    for name in onnxgrad.__all__:
        assert getattr(onnxgrad, name) is not None
    assert sys.modules["onnxgrad"] is onnxgrad
