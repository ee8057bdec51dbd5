"""Sharpness-aware minimization and Adafactor against NumPy, and the gradient noise scale."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad as og
from support import initializers, mlp_proto

NAMES = ("W0", "b0", "W1", "b1")
RATE = 0.1
DATA = Path(__file__).resolve().parents[1] / "data" / "optimizers"


def rows(count=40, dtype=np.float64, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 4)).astype(dtype), rng.normal(size=(count, 3)).astype(dtype)


def gradients(w, x, y):
    """Gradients of the mean squared error of relu(x W0 + b0) W1 + b1."""
    hidden = np.maximum(x @ w["W0"] + w["b0"], 0)
    error = 2 * (hidden @ w["W1"] + w["b1"] - y) / y.size
    below = (error @ w["W1"].T) * (hidden > 0)
    return {"W1": hidden.T @ error, "b1": error.sum(0), "W0": x.T @ below, "b0": below.sum(0)}


def sharpness_aware(w, x, y, rho, adaptive):
    """The gradient at w + rho g / |g| (Foret et al., 2021), or of Kwon et al., 2021."""
    g = gradients(w, x, y)
    scale = {name: np.abs(w[name]) if adaptive else 1.0 for name in NAMES}
    norm = np.sqrt(sum(np.sum((scale[name] * g[name]) ** 2) for name in NAMES))
    moved = {name: w[name] + rho * scale[name] ** 2 * g[name] / norm for name in NAMES}
    return gradients(moved, x, y)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_sam_against_numpy(adaptive, accumulate):
    model = mlp_proto([4, 6, 3], dtype=np.float64)
    session = og.TrainingSession(
        model,
        "squared_error",
        og.optimizers.SGD(lr=RATE),
        sam={"rho": 0.3, "adaptive": adaptive},
        accumulate=accumulate,
    )
    w = {name: initializers(model)[name] for name in NAMES}
    X, y = rows()
    sums = dict.fromkeys(NAMES, 0.0)
    for step in range(5 * accumulate):
        at = slice(step % 5 * 8, step % 5 * 8 + 8)
        loss = session.step({"X": X[at], "label": y[at]})
        hidden = np.maximum(X[at] @ w["W0"] + w["b0"], 0)
        assert loss == pytest.approx(np.mean((hidden @ w["W1"] + w["b1"] - y[at]) ** 2), 1e-12)
        g = sharpness_aware(w, X[at], y[at], 0.3, adaptive)
        sums = {name: sums[name] + g[name] / accumulate for name in NAMES}
        if (step + 1) % accumulate == 0:
            w = {name: w[name] - RATE * sums[name] for name in NAMES}
            sums = dict.fromkeys(NAMES, 0.0)
    for name in NAMES:
        np.testing.assert_allclose(session.weights[name], w[name], 1e-10, 1e-12, err_msg=name)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sam_in_16_bits_is_near_float32(precision):
    X, y = rows(dtype=np.float32)
    found = []
    for kind in ("float32", precision):
        session = og.TrainingSession(
            mlp_proto([4, 6, 3]),
            "squared_error",
            og.optimizers.SGD(lr=RATE),
            sam=0.1,
            precision=kind,
        )
        for _ in range(5):
            session.step({"X": X, "label": y})
        found.append({name: value.copy() for name, value in session.weights.items()})
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, 0.05, 5e-3, err_msg=name)


def adafactor(w, state, g, t, lr, decay):
    """Adafactor of torch.optim: Shazeer and Stern, 2018, algorithm 5, with relative steps."""
    eps1 = np.finfo(np.float64).eps
    share, rho = t**-0.8, min(lr, 1 / np.sqrt(t))
    alpha = max(1e-3, np.linalg.norm(w) / np.sqrt(w.size)) * rho
    if g.ndim > 1:
        row, column = state or (0.0, 0.0)
        row = row + share * ((g**2).mean(-1, keepdims=True) - row)
        column = column + share * ((g**2).mean(-2, keepdims=True) - column)
        state = (row, column)
        v = row @ column / np.maximum(row.mean(-2, keepdims=True), eps1)
    else:
        state = (state or 0.0) if np.isscalar(state) or state is None else state
        state = v = state + share * (g**2 - state)
    u = g / np.sqrt(np.maximum(v, eps1**2))
    excess = max(1.0, np.linalg.norm(u) / np.sqrt(u.size))
    return (1 - lr * decay) * w - alpha / excess * u, state


def test_adafactor_against_numpy():
    model = mlp_proto([4, 6, 3], dtype=np.float64)
    optimizer = og.optimizers.Adafactor(lr=0.2, weight_decay=0.05)
    session = og.TrainingSession(model, "squared_error", optimizer)
    w = {name: initializers(model)[name] for name in NAMES}
    states = dict.fromkeys(NAMES)
    X, y = rows()
    for t in range(1, 31):
        session.step({"X": X, "label": y})
        g = gradients(w, X, y)
        for name in NAMES:
            w[name], states[name] = adafactor(w[name], states[name], g[name], t, 0.2, 0.05)
    for name in NAMES:
        np.testing.assert_allclose(session.weights[name], w[name], 1e-9, 1e-11, err_msg=name)
    shapes = {name: value.shape for name, value in session.state().items()}
    assert shapes["adafactor_row/W0"] == (4, 1)
    assert shapes["adafactor_column/W0"] == (1, 6)


TORCH = {
    "adafactor": og.optimizers.Adafactor(0.3),
    "adafactor_options": og.optimizers.Adafactor(0.2, -0.6, 1e-6, 0.05, 1.2, 0.1),
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_adafactor_ends_where_that_of_torch_ends(name, dtype):
    """Values of tests/data/optimizers/make_adafactor_values.py."""
    problem, expected = (np.load(DATA / f"{one}.npz") for one in ("reference", "adafactor"))
    model = mlp_proto([4, 3], dtype=dtype)
    for tensor, array in zip(model.graph.initializer, ("weights", "bias"), strict=True):
        start = onnx.numpy_helper.from_array(problem[array].astype(dtype), tensor.name)
        tensor.CopyFrom(start)
    session = og.TrainingSession(model, "squared_error", TORCH[name])
    found = []
    for step in range(50):
        feeds = {"X": problem["x"][step].astype(dtype), "label": problem["y"][step].astype(dtype)}
        session.step(feeds)
        if step + 1 in (1, 2, 10, 50):
            found.append(np.concatenate([session.weights[n].ravel() for n in ("W0", "b0")]))
    tolerance = 1e-12 if dtype is np.float64 else 2e-4
    np.testing.assert_allclose(found, expected[f"optimizer/{name}"], tolerance, tolerance)


def test_the_noise_scale_is_that_of_its_formula():
    X, y = rows(64)
    model = mlp_proto([4, 6, 3], dtype=np.float64)
    optimizer = og.optimizers.SGD(lr=0.0)  # the weights stay
    trainer = og.Trainer(model, "squared_error", optimizer, accumulate=4)
    fit = {"epochs": 1, "batch_size": 8, "shuffle": False, "verbose": 0}
    trainer.fit(X, y, noise_scale=True, **fit)
    w = initializers(model)
    square = variance = 0.0
    for update in range(2):
        batches = [slice(at, at + 8) for at in range(update * 32, update * 32 + 32, 8)]
        all_g = [gradients(w, X[at], y[at]) for at in batches]
        small = np.mean([sum(np.sum(g[n] ** 2) for n in NAMES) for g in all_g])
        large = sum(np.sum(np.mean([g[n] for g in all_g], 0) ** 2) for n in NAMES)
        square += (32 * large - 8 * small) / 24
        variance += (small - large) / (1 / 8 - 1 / 32)
    assert trainer.history["noise_scale"] == pytest.approx([variance / square], 1e-9)
    with pytest.raises(og.OptionError, match="accumulate"):
        og.Trainer(model, "squared_error").fit(X, y, noise_scale=True, **fit)


@pytest.mark.parametrize(
    ("sam", "message"), [(0, "rho"), ({"rho": 0.1, "adapt": True}, "adapt"), (-1.0, "rho")]
)
def test_errors(sam, message):
    with pytest.raises(og.OptionError, match=message):
        og.TrainingSession(mlp_proto([3, 4, 1]), "squared_error", sam=sam)
