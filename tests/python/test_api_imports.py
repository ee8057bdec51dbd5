"""Modules that `import onnxgrad` and training bring in.

benchmarks/startup.py measures how long they take.
"""

import sys

import numpy as np
import pytest

from support import mlp_proto, run_python

HEAVY = ["matplotlib", "onnx", "onnxruntime", "pandas", "rich", "sklearn", "typer", "google"]


def test_import_brings_no_heavy_module():
    done = run_python("import sys, onnxgrad; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "onnxgrad" in loaded
    assert not loaded & {*HEAVY, "numpy", "typing"}


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


PEAK = """
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0])
"""


def test_training_takes_little_memory(w2):
    """The goal is 60 MB at most, most of which is Python with NumPy."""
    done = run_python(TRAIN + PEAK, w2 / "w2.onnx", w2 / "data.npz", w2 / "out.onnx")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) * 1024 < 60e6


FIRST_USE = """
import pickle, pydoc, sys
import onnxgrad as og
assert {*og.__all__, "__version__", "plotting", "trainer"} <= {*dir(og)}
assert "numpy" not in sys.modules
weight = og.WeightInfo("w", "float32", (2,), True, "Add", "n", "constant", "", ())
assert pickle.loads(pickle.dumps(weight)) == weight
assert og.History is vars(og)["History"], "kept after the first use"
assert og.sessions.TrainingSession is og.TrainingSession
assert "class Trainer" in pydoc.plain(pydoc.render_doc(og))
names = {}
exec("from onnxgrad import *", names)
assert {*og.__all__} <= {*names}
assert all(getattr(og, name) is names[name] for name in og.__all__)
assert not hasattr(og, "Session")
"""


def test_names_are_imported_at_their_first_use():
    done = run_python(FIRST_USE)
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # the extension reports objects that live too long


def test_public_names_exist():
    import onnxgrad

    for name in dir(onnxgrad):
        assert getattr(onnxgrad, name) is not None
    assert sys.modules["onnxgrad"] is onnxgrad
