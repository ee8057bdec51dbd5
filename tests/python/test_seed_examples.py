"""The examples of examples/seeds: each runs to its end; they check their own numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import onnxgrad

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "seeds"
PICTURES = {
    "forward_backward": ["losses"],
    "full_training": ["loss", "losses"],
    "linear_regression": ["losses", "models"],
    "stochastic_gradient_descent": [
        "function", "gradient", "loss", "losses_function", "losses_network", "update",
    ],
    "training_tutorial": [
        "graph_loss_and_its_gradient", "graph_model_and_gradient", "graph_penalty",
        "graph_update", "losses",
    ],
}  # fmt: skip
NEEDS = {"stochastic_gradient_descent": "ndonnx", "linear_regression": "tqdm"}


def test_every_example_is_run():
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == sorted(
        [*PICTURES, "common", "make_page"]
    )


@pytest.mark.parametrize("name", PICTURES)
def test_example(name, tmp_path):
    pytest.importorskip(NEEDS.get(name, "skl2onnx"))
    package = str(Path(onnxgrad.__file__).resolve().parents[1])
    paths = [package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == PICTURES[name]
    for path in tmp_path.glob("*.png"):
        assert path.stat().st_size > 2000


def test_the_notebook_is_executed_and_its_code_runs(tmp_path, monkeypatch):
    """The code of its cells, without IPython's commands, runs and gives the stored loss."""
    pytest.importorskip("ndonnx")
    pandas = pytest.importorskip("pandas")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    path = FOLDER / "stochastic_gradient_descent.ipynb"
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/svg+xml" in output.get("data", {}) for output in outputs) == 2
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert "532.5546" in json.dumps(outputs)

    monkeypatch.chdir(tmp_path)
    names = {}
    last = next(i for i, cell in enumerate(cells) if "MLPRegressor" in "".join(cell["source"]))
    for cell in cells[:last]:
        source = "".join(line for line in cell["source"] if not line.startswith("%"))
        exec(compile(source, path.name, "exec"), names)
    np.testing.assert_allclose(names["result"]["loss"], [[532.5546]], rtol=1e-6)
    assert names["train_session"].train_losses_[-1] < 2e-3
    assert pandas is names["pandas"]
    matplotlib.pyplot.close("all")
