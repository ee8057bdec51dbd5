"""The examples of examples/seeds: each runs to its end; they check their own numbers."""

import os
import subprocess
import sys
from pathlib import Path

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
