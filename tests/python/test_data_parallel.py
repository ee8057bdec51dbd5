"""`Trainer(dist=...)`: processes that train together do what one does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from onnx import numpy_helper, parser, save

import onnxgrad as og
from onnxgrad.callbacks.displays import straggler

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[N, 3] x) => (float[N, 2] scores)
<float[3, 8] W1, float[8] b1, float[8, 2] W2, float[2] b2>
{
  h = MatMul(x, W1)
  g = Add(h, b1)
  t = Tanh(g)
  d = Dropout(t)
  s = MatMul(d, W2)
  scores = Add(s, b2)
}
"""

# Script of every worker; the first argument is the folder, the second what the case changes.
SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
import onnxgrad as og

folder, case = Path(sys.argv[1]), json.loads(sys.argv[2])
rng = np.random.default_rng(5)
X = rng.normal(size=(45, 3)).astype(np.float32)
y = (X[:, 0] + 0.3 * X[:, 1] > 0).astype(np.int64)
parallel = "auto"
if case.get("parallel"):
    parallel = og.distributed.DataParallel(**case["parallel"])
trainer = og.Trainer(
    str(folder / "net.onnx"), "cross_entropy", "adam", lr=0.05, seed=3, threads=1, dist=parallel,
    **case.get("trainer", {}),
)
fit = {"epochs": 3, "batch_size": 16, "validation": 0.2, "metrics": ["accuracy"], **case["fit"]}
if fit.pop("chunks", False):
    batches = [(X[i : i + 7], y[i : i + 7]) for i in range(0, 45, 7)]
    trainer.fit(lambda: iter(batches), **fit)
else:
    trainer.fit(X, y, **fit)
workers = trainer.session._data_parallel
rank = workers.workers.rank if workers else 0
result = {
    "history": {k: v for k, v in trainer.history.items() if "loss" in k or "accuracy" in k},
    "predicted": trainer.predict(X[:5], "scores").tolist(),
    "evaluated": list(trainer.evaluate(X, y))[:3],
    "run_dir": str(trainer.run_dir),
    "waits": [trainer.history.get(name) for name in
              ("network_wait_s", "slowest_rank", "slowest_lag_s")],
}
(folder / f"rank-{rank}.json").write_text(json.dumps(result))
"""


@pytest.fixture
def folder(tmp_path):
    model = parser.parse_model(MODEL)
    rng = np.random.default_rng(1)
    for name, shape in (("W1", (3, 8)), ("b1", (8,)), ("W2", (8, 2)), ("b2", (2,))):
        values = rng.normal(scale=0.5, size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    del model.graph.value_info[:]
    save(model, tmp_path / "net.onnx")
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def run(folder: Path, workers: int, **case: object) -> list[dict]:
    """Return what each worker found."""
    script = [str(folder / "script.py"), str(folder), json.dumps({"fit": {}, **case})]
    command = [sys.executable, *script]
    if workers > 1:
        launch = ["-m", "onnxgrad", "launch", "-n", str(workers), "--transport", "tcp"]
        command = [sys.executable, *launch, *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    results = []
    for rank in range(workers):
        path = folder / f"rank-{rank}.json"
        results.append({**json.loads(path.read_text()), "stderr": done.stderr})
        path.unlink()
    return results


def check_as_one(one: dict, several: list[dict], tolerance: float = 2e-5) -> None:
    for found in several:
        assert found["predicted"] == several[0]["predicted"]
        assert found["evaluated"] == several[0]["evaluated"]
        assert found["history"] == several[0]["history"]
    found = several[0]
    np.testing.assert_allclose(found["predicted"], one["predicted"], atol=tolerance)
    np.testing.assert_allclose(found["evaluated"], one["evaluated"], atol=tolerance)
    for name in ("train_loss", "val_loss", "val_accuracy"):
        np.testing.assert_allclose(found["history"][name], one["history"][name], atol=tolerance)


def test_workers_give_what_one_gives(folder):
    one = run(folder, 1)[0]
    several = run(folder, 2)
    check_as_one(one, several)
    assert several[0]["stderr"].count("epoch") <= one["stderr"].count("epoch")
    assert one["waits"] == [None] * 3
    waited, slowest, lag = several[0]["waits"]
    assert several[1]["waits"] == several[0]["waits"]
    assert min(waited) >= 0
    assert set(slowest) <= {0.0, 1.0}
    assert min(lag) >= 0
    assert "waiting" in several[0]["stderr"]


def test_progress_names_the_slowest_worker():
    class Two:
        worker_hosts: ClassVar = ["a", "node-2"]

    logs = {"seconds": 2.0, "slowest_rank": 1.0, "slowest_lag_s": 0.5}
    assert straggler(Two(), logs) == "rank 1 on host node-2 is 500.0ms slower than the others"
    assert straggler(Two(), {**logs, "slowest_lag_s": 0.1}) == ""  # too little to report
    assert straggler(Two(), {"seconds": 2.0}) == ""  # one worker


def test_options_and_sources(folder):
    case = {"fit": {"chunks": True, "early_stopping": True}, "trainer": {"clip_norm": 0.1}}
    one = run(folder, 1, **case)[0]
    check_as_one(one, run(folder, 3, parallel={"zero": 1}, **case))


def test_a_run_folder_is_that_of_the_first_worker(folder):
    case = {"fit": {"run_dir": str(folder / "run"), "epochs": 2}}
    several = run(folder, 2, parallel={"zero": 1}, **case)
    assert [found["run_dir"] for found in several] == [str(folder / "run")] * 2
    assert (folder / "run" / "last.onnx").is_file()
    assert not (folder / "run-2").exists()
    case["fit"]["epochs"] = 3
    resumed = run(folder, 3, fit={**case["fit"], "resume": True})
    straight = run(folder, 1)[0]
    check_as_one(straight, resumed)


def test_sync_every_and_bfloat16_learn(folder):
    for parallel in ({"sync_every": 2}, {"bfloat16": True}):
        several = run(folder, 2, parallel=parallel, fit={"epochs": 8})
        losses = several[0]["history"]["train_loss"]
        assert losses[-1] < losses[0]
        assert several[1]["history"] == several[0]["history"]


def test_options_are_checked():
    with pytest.raises(og.OptionError, match="zero is 2, expected 0 or 1"):
        og.distributed.DataParallel(zero=2)
    with pytest.raises(og.OptionError, match="workers: 'mpi', expected 'auto'"):
        og.distributed.DataParallel("mpi")
    assert "zero=1" in repr(og.distributed.DataParallel(zero=1))
