"""The demo's claims, on scikit-learn's digits: what `make demo` prints is checked here too."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og

ROOT = Path(__file__).parents[2]
TRAINED = 6  # weights and biases of three layers


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """(folder, what the demo printed): run once, as `make demo` does, with fewer seeds."""
    folder = tmp_path_factory.mktemp("digits")
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/demo.sh"), str(folder), "2"],
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": "Agg"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


def test_prints_what_it_should(demo):
    folder, printed = demo
    rows = re.findall(r"^(\d|mean) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$", printed, re.M)
    assert [row[0] for row in rows] == ["0", "1", "mean"]
    _, train, held_out, _, reference = rows[-1]
    assert float(train) > 0.98
    assert float(held_out) >= 0.96
    assert float(held_out) >= float(reference) - 0.01
    assert all(0.95 < float(row[4]) <= 1 for row in rows)
    untrained = float(re.search(r"learning rate 0, held out: ([\d.]+)", printed)[1])
    assert untrained < 0.2
    assert "loss: softmax cross-entropy on" in printed
    assert "10 classes" in printed
    assert (folder / "loss_curves.png").read_bytes().startswith(b"\x89PNG")


def weights_in(data):
    """The bytes of the trained weights of a file, as they stand in it."""
    found = [onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(data).graph.initializer]
    return [array.tobytes() for array in found if array.dtype == np.float32 and array.size > 1]


def test_only_the_weights_have_changed(demo):
    folder, _ = demo
    before = (folder / "pipeline.onnx").read_bytes()
    after = (folder / "trained.onnx").read_bytes()
    assert before != after
    blanked = []
    for data in (before, after):
        weights = weights_in(data)
        assert len(weights) == TRAINED
        for weight in weights:
            assert data.count(weight) == 1
            data = data.replace(weight, bytes(len(weight)))
        blanked.append(data)
    assert blanked[0] == blanked[1]


def test_outputs_are_those_of_the_export(demo):
    folder, _ = demo
    table = np.loadtxt(folder / "held_out.csv", delimiter=",", skiprows=1, dtype=np.float32)
    session = onnxruntime.InferenceSession(folder / "trained.onnx")
    labels, probabilities = session.run(None, {"X": table[:, :-1]})
    assert isinstance(probabilities[0], dict)  # the ZipMap
    best = [max(row, key=row.get) for row in probabilities]
    np.testing.assert_array_equal(labels, best)
    ours = og.InferenceSession(folder / "trained.onnx").run(None, {"X": table[:, :-1]})
    np.testing.assert_array_equal(ours[0], labels)
    stacked = np.array([[row[k] for k in sorted(row)] for row in probabilities])
    own = np.array([[row[k] for k in sorted(row)] for row in ours[1]])
    np.testing.assert_allclose(own, stacked, rtol=1e-3, atol=1e-5)
