"""Entries of a history besides the loss: norms of gradients, the losses of several targets."""

import numpy as np
import onnx.parser
import pytest

import onnxgrad as og

LINEAR = """
<ir_version: 8, opset_import: ["" : 17]>
linear (float[N, 2] X) => (float[N, 1] Y)
<float[2, 1] w = {0.5, 0.25}, float[1] b = {0.1}>
{ h = MatMul(X, w)  Y = Add(h, b) }
"""

TWO_HEADS = """
<ir_version: 8, opset_import: ["" : 17]>
heads (float[N, 2] X) => (float[N, 1] low, float[N, 1] high)
<float[2, 1] w = {0.5, 0.25}, float[2, 1] v = {-0.5, 1.0}>
{ low = MatMul(X, w)  high = MatMul(X, v) }
"""


def rows(n=23):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2)).astype(np.float32)
    return X, (X @ [[2.0], [-1.0]] + 0.5).astype(np.float32)


def expected_norms(X, y, epochs, batch, lr):
    """Return the norm of the gradient of each step of gradient descent, by NumPy."""
    w, b = np.array([[0.5], [0.25]]), 0.1
    norms = []
    for begin in [*range(0, len(X), batch)] * epochs:
        part, target = X[begin : begin + batch].astype(float), y[begin : begin + batch]
        error = 2 * (part @ w + b - target) / len(part)
        of_w, of_b = part.T @ error, error.sum()
        norms.append(np.sqrt((of_w**2).sum() + of_b**2))
        w, b = w - lr * of_w, b - lr * of_b
    return np.array(norms)


class Norms(og.callbacks.Callback):
    every_n_steps = 1

    def __init__(self, last=0):
        self.seen, self.last = [], last

    def on_step_end(self, trainer, logs):
        self.seen.append(logs.get("grad_norm"))
        return len(self.seen) == self.last


def linear_trainer(**options):
    return og.Trainer(onnx.parser.parse_model(LINEAR), "squared_error", "sgd", lr=0.05, **options)


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("in_chunks", [False, True])
def test_grad_norm_is_that_of_numpy(in_chunks, clip, tmp_path):
    X, y = rows()
    data = ([(X[i : i + 5], y[i : i + 5]) for i in range(0, 23, 5)], None) if in_chunks else (X, y)
    norms = Norms()
    log = og.callbacks.CSVLogger(tmp_path / "log.csv")
    options = {"epochs": 2 if clip is None else 1, "batch_size": 5, "shuffle": False, "verbose": 0}
    trainer = linear_trainer(clip_norm=clip)
    trainer.fit(*data, grad_norm=True, callbacks=[norms, log], **options)
    expected = expected_norms(X, y, 2, 5, 0.05)[: len(norms.seen)]
    if clip is None:
        np.testing.assert_allclose(norms.seen, expected, rtol=1e-5)
        means = expected.reshape(2, 5).mean(axis=1)
        assert trainer.history["grad_norm"] == pytest.approx(means, rel=1e-5)
    else:  # before clipping, which makes the steps small: it stays about what it is at first
        assert norms.seen[0] == pytest.approx(expected[0], rel=1e-5)
        assert min(norms.seen) > 10 * clip
    lines = (tmp_path / "log.csv").read_text().splitlines()
    place = lines[0].split(",").index("grad_norm")
    assert float(lines[1].split(",")[place]) == trainer.history["grad_norm"][0]

    trainer.fit(*data, callbacks=[norms], **options)  # only where it is asked for
    assert "grad_norm" not in trainer.history
    assert norms.seen[-1] is None
    assert trainer.session.step({"X": X, "label": y}) > 0


def test_grad_norm_with_lbfgs_is_a_number():
    X, y = rows()
    trainer = og.Trainer(onnx.parser.parse_model(LINEAR), "squared_error", "lbfgs")
    trainer.fit(X, y, epochs=30, grad_norm=True, verbose=0)
    assert np.isfinite(trainer.history["grad_norm"]).all()
    assert trainer.history["grad_norm"][-1] < 1e-2
    assert trainer.history["train_loss"][-1] < 1e-6


def two_losses():
    return {
        "low": og.losses.SquaredError(),
        "high": (og.losses.AbsoluteError(), 0.5),
    }


def heads_trainer(lr=0.05):
    return og.Trainer(
        onnx.parser.parse_model(TWO_HEADS), two_losses(), "sgd", penalty={"w": {"l2": 0.1}}, lr=lr
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_several_targets(weighted):
    X, y = rows()
    targets = {"low": y, "high": -y}
    weight = np.random.default_rng(1).uniform(0.5, 2, 23) if weighted else None
    trainer = heads_trainer(lr=0.0)
    trainer.fit(X, targets, weight, epochs=1, batch_size=5, verbose=0)
    w = np.ones(23) if weight is None else weight
    low = np.average(((X @ [[0.5], [0.25]] - y) ** 2).ravel(), weights=w)
    high = np.average(np.abs(X @ [[-0.5], [1.0]] + y).ravel(), weights=w)
    penalty = 0.1 * (0.5**2 + 0.25**2)
    history = trainer.history
    assert history["train_loss_low"] == pytest.approx([low], rel=1e-5)
    assert history["train_loss_high"] == pytest.approx([high], rel=1e-5)
    assert history["train_loss"] == pytest.approx([low + 0.5 * high + penalty], rel=1e-5)
    assert list(history)[:4] == ["epoch", "train_loss", "train_loss_low", "train_loss_high"]


@pytest.mark.parametrize("stop", [3, 10, 12])
def test_resumed_history_has_them(stop, tmp_path):
    X, y = rows()
    targets = {"low": y, "high": -y}
    options = {"epochs": 4, "batch_size": 5, "grad_norm": True, "verbose": 0}
    whole = heads_trainer().fit(X, targets, **options)
    keeper = og.callbacks.Checkpoint(tmp_path / "run")
    heads_trainer().fit(X, targets, callbacks=[keeper, Norms(stop)], **options)
    resumed = heads_trainer().fit(X, targets, callbacks=[keeper], resume=True, **options)
    for column in ("train_loss", "train_loss_low", "train_loss_high", "grad_norm"):
        assert resumed.history[column] == whole.history[column]
    with pytest.raises(og.CheckpointError, match="grad_norm is true in the checkpoint, false now"):
        heads_trainer().fit(
            X, targets, callbacks=[keeper], resume=True, **options | {"grad_norm": False}
        )


def test_a_fit_that_ends_within_an_epoch_has_its_loss(linear_file):
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    trainer = og.Trainer(linear_file, "squared_error", "sgd")
    losses = []

    class Steps(og.callbacks.Callback):
        every_n_steps = 1

        def on_step_end(self, trainer, logs):
            losses.append(logs["train_loss"])
            assert logs["total_steps"] == 7

    trainer.fit(x, x[:, :1], epochs=3, batch_size=8, max_steps=7, callbacks=[Steps()], verbose=0)
    assert trainer.history["epoch"] == [1, 2]
    np.testing.assert_allclose(trainer.history["train_loss"][1], np.mean(losses[5:]), rtol=1e-6)
