"""Muon against the formulas of its papers in NumPy.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; the factor of the
update: Liu et al., "Muon is scalable for LLM training", 2025, section 2.2; all that is no matrix:
AdamW, Loshchilov and Hutter, 2017, algorithm 2.
"""

import csv

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from onnxgrad import cli
from support import initializers, mlp_proto

RATE = 0.03
MATRICES = ("W0", "W1")  # [4, 6] is wide, [6, 3] is tall


class NumpyMuon:
    """Trains y = relu(X W0 + b0) W1 + b1 on the mean of the squared errors."""

    def __init__(self, weights, momentum=0.95, nesterov=True, decay=0.1, iterations=5):
        self.weights = {name: array.astype(np.float64) for name, array in weights.items()}
        self.average = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self.square = {name: np.zeros_like(array) for name, array in self.weights.items()}
        self.momentum, self.nesterov, self.decay = momentum, nesterov, decay
        self.iterations = iterations
        self.t = 0

    def gradients(self, x, y):
        w = self.weights
        hidden = np.maximum(x @ w["W0"] + w["b0"], 0)
        error = 2 * (hidden @ w["W1"] + w["b1"] - y) / y.size
        below = (error @ w["W1"].T) * (hidden > 0)
        return {"W1": hidden.T @ error, "b1": error.sum(0), "W0": x.T @ below, "b0": below.sum(0)}

    def orthogonal(self, u):
        x = u / (np.linalg.norm(u) + 1e-7)
        for _ in range(self.iterations):
            square = x @ x.T  # either orientation: x^T p(x x^T) = p(x^T x) x^T
            x = 3.4445 * x - 4.7750 * square @ x + 2.0315 * square @ square @ x
        return x

    def step(self, x, y):
        self.t += 1
        for name, g in self.gradients(x, y).items():
            shrunk = self.weights[name] * (1 - RATE * self.decay)
            if name in MATRICES:
                m = self.momentum * self.average[name] + (1 - self.momentum) * g
                self.average[name] = m
                u = self.momentum * m + (1 - self.momentum) * g if self.nesterov else m
                factor = 0.2 * np.sqrt(max(u.shape))
                self.weights[name] = shrunk - RATE * factor * self.orthogonal(u)
                continue
            self.average[name] = 0.9 * self.average[name] + 0.1 * g
            self.square[name] = 0.95 * self.square[name] + 0.05 * g**2
            m = self.average[name] / (1 - 0.9**self.t)
            v = self.square[name] / (1 - 0.95**self.t)
            self.weights[name] = shrunk - RATE * m / (np.sqrt(v) + 1e-8)


def batches(dtype, count=20):
    rng = np.random.default_rng(4)
    for _ in range(count):
        yield rng.normal(size=(8, 4)).astype(dtype), rng.normal(size=(8, 3)).astype(dtype)


def assert_agrees(found, expected, dtype):
    tolerance = 1e-10 if dtype is np.float64 else 1e-4
    for name, value in expected.weights.items():
        np.testing.assert_allclose(found[name], value, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "options",
    [{}, {"nesterov": False}, {"momentum": 0.5, "weight_decay": 0.3, "iterations": 3}],
    ids=str,
)
def test_twenty_steps_are_those_of_the_formulas(options, dtype):
    model = mlp_proto([4, 6, 3], dtype=dtype)
    session = og.TrainingSession(model, "squared_error", og.optimizers.Muon(RATE, **options))
    in_numpy = {{"weight_decay": "decay"}.get(name, name): x for name, x in options.items()}
    expected = NumpyMuon(initializers(model), **in_numpy)
    for x, y in batches(dtype):
        session.step({"X": x, "label": y})
        expected.step(x.astype(np.float64), y.astype(np.float64))
    assert_agrees(session.state(), expected, dtype)


def test_singular_values_of_an_update_are_near_one():
    model = mlp_proto([4, 6, 3], dtype=np.float64)
    session = og.TrainingSession(
        model, "squared_error", og.optimizers.Muon(1.0, weight_decay=0.0, iterations=8)
    )
    before = session.state()
    x, y = next(batches(np.float64))
    session.step({"X": x, "label": y})
    for name in MATRICES:
        moved = (before[name] - session.state()[name]) / (0.2 * np.sqrt(6))
        values = np.linalg.svd(moved, compute_uv=False)
        assert np.all((values > 0.6) & (values < 1.3)), values


def test_a_matrix_without_gradient_only_decays():
    model = mlp_proto([4, 6, 3], dtype=np.float64)
    session = og.TrainingSession(model, "squared_error", og.optimizers.Muon(RATE))
    before = session.state()["W0"]
    _, y = next(batches(np.float64))
    session.step({"X": np.zeros((8, 4)), "label": y})
    np.testing.assert_allclose(session.state()["W0"], before * (1 - RATE * 0.1), rtol=1e-15)


def test_training_continues_from_a_checkpoint(tmp_path):
    model = mlp_proto([4, 6, 3], dtype=np.float64)
    optimizer = og.optimizers.Muon(RATE)
    expected = NumpyMuon(initializers(model))
    session = og.TrainingSession(model, "squared_error", optimizer)
    for i, (x, y) in enumerate(batches(np.float64)):
        if i == 7:
            session.save(tmp_path / "state.safetensors")
            session = og.TrainingSession(model, "squared_error", optimizer)
            session.load(tmp_path / "state.safetensors")
        session.step({"X": x, "label": y})
        expected.step(x, y)
    assert_agrees(session.state(), expected, np.float64)
    assert {"muon_m/W0", "muon_m/W1", "adam_m/b0", "adam_v/b1"} <= set(session.state())


def test_the_file_of_a_step_in_onnxruntime():
    model = mlp_proto([4, 6, 3], dtype=np.float64)
    file = og.training_step(model, "squared_error", og.optimizers.Muon(RATE), inline=True)
    options = onnxruntime.SessionOptions()  # its fused products have float32 factors
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    stock = onnxruntime.InferenceSession(file.SerializeToString(), options)
    names = [output.name for output in stock.get_outputs()]
    expected = NumpyMuon(initializers(model))
    state = {}
    for x, y in batches(np.float64, 5):
        feeds = {"X": x, "label": y, "learning_rate": np.array(RATE), **state}
        found = dict(zip(names, stock.run(None, feeds), strict=True))
        state = {n.removeprefix("next/"): a for n, a in found.items() if n.startswith("next/")}
        expected.step(x, y)
    assert_agrees(state, expected, np.float64)


def test_the_command_line_takes_it(tmp_path, monkeypatch):
    onnx.save(mlp_proto([4, 6, 3], dtype=np.float64), tmp_path / "model.onnx")
    expected = NumpyMuon(initializers(tmp_path / "model.onnx"), iterations=4)
    rows = list(batches(np.float64, 3))
    np.savez(
        tmp_path / "rows.npz",
        X=np.concatenate([x for x, _ in rows]),
        label=np.concatenate([y for _, y in rows]),
    )
    arguments = [
        "onnxgrad", "train", "model.onnx", "--data", "rows.npz", "--target", "label",
        "--loss", "squared_error", "--optimizer", f"muon:lr={RATE},iterations=4",
        "--batch-size", "8", "--no-shuffle", "--epochs", "2", "-q", "-o", "trained.onnx",
        "--history", "history.csv",
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    for x, y in 2 * rows:
        expected.step(x, y)
    assert_agrees(initializers(tmp_path / "trained.onnx"), expected, np.float64)
    with (tmp_path / "history.csv").open() as file:
        assert [float(row["lr"]) for row in csv.DictReader(file)] == [RATE, RATE]
