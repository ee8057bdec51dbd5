"""Balanced and weighted rows, curricula, cross-validation, weights as lists."""

import itertools
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
from sklearn.model_selection import GridSearchCV

import onnxgrad as og
from command_line import run
from onnxgrad.trainer.cross_validation import fold_rows
from support import initializers, mlp_proto

N = 60
COUNTS = (40, 15, 5)
LABELS = np.repeat(np.arange(3), COUNTS)


def numbered_rows():
    """One-hot rows: what the only layer has learnt with a rate of -1 are the rows it has seen."""
    return np.eye(N, dtype=np.float32), LABELS


COUNTING = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[N, 60] X) => (float[N, 1] Y)
<float[60, 1] w>
{ Y = MatMul(X, w) }
"""


def times_seen(labels=None, epochs=1, callbacks=(), batch_size=7, seed=0, **fit):
    """How often an epoch has each row: with the gradient of sum(Y), w counts them."""
    model = onnx.parser.parse_model(COUNTING)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((N, 1), np.float32), "w"))
    del model.graph.value_info[:]
    # |y + 1|: the slope is 1 at every row that is not far below 0
    trainer = og.Trainer(
        model,
        og.losses.AbsoluteError(reduction="sum"),
        og.optimizers.SGD(lr=2**-10),
        seed=seed,
    )
    y = np.full((N, 1), -100.0, np.float32)
    trainer.fit(
        np.eye(N, dtype=np.float32),
        y,
        epochs=epochs,
        batch_size=batch_size,
        verbose=0,
        callbacks=callbacks,
        **fit,
    )
    assert labels is None
    return np.rint(-trainer.session.weights["w"][:, 0] * 2**10).astype(int)


def test_weighted_rows_come_as_often_as_their_weights():
    weights = np.arange(N, dtype=float)
    seen = times_seen(epochs=200, sampling="weighted", row_weights=weights)
    assert seen.sum() == 200 * N
    assert seen[0] == 0
    expected = 200 * N * weights / weights.sum()
    assert np.max(np.abs(seen - expected) / np.sqrt(expected + 1)) < 4.5
    again = times_seen(epochs=200, sampling="weighted", row_weights=weights)
    np.testing.assert_array_equal(again, seen)
    other = times_seen(epochs=200, seed=1, sampling="weighted", row_weights=weights)
    assert not np.array_equal(other, seen)


def test_without_replacement_no_row_comes_twice():
    weights = np.where(np.arange(N) < 20, 0.0, 1.0)
    fit = {"sampling": "weighted", "row_weights": weights, "replacement": False}
    np.testing.assert_array_equal(times_seen(**fit), weights.astype(int))
    seen = times_seen(**fit, epoch_rows=10)
    assert (seen.sum(), seen.max()) == (10, 1)
    heavy = np.where(np.arange(N) < 30, 9.0, 1.0)
    fit |= {"row_weights": heavy, "epoch_rows": 20}
    seen = times_seen(epochs=100, **fit)
    # The expected share of the first thirty is above two thirds: they are taken first.
    assert seen[:30].sum() > 0.75 * seen.sum()


@pytest.mark.parametrize("replacement", [True, False])
def test_classes_are_balanced(replacement):
    X, y = numbered_rows()
    model = mlp_proto([N, 3])
    trainer = og.Trainer(model, "cross_entropy", og.optimizers.SGD(lr=1e-6), seed=3)
    before = initializers(model)["b0"].copy()
    fit = {"sampling": "balanced", "replacement": replacement, "verbose": 0}
    trainer.fit(X, y, epochs=1, batch_size=N, **fit)
    rows = N if replacement else 3 * min(COUNTS)
    step = (before - trainer.session.weights["b0"]) / 1e-6  # mean of p - one-hot
    p = np.exp(X @ initializers(model)["W0"] + before)
    p /= p.sum(1, keepdims=True)
    assert trainer._core.history.epochs[0].rows == rows
    mean_p = np.stack([p[y == c].mean(0) for c in range(3)]).mean(0)
    np.testing.assert_allclose(mean_p - step, 1 / 3, atol=0.05)


def test_a_callback_sets_the_rows_of_each_epoch():
    class Easy(og.callbacks.Callback):
        def on_epoch_begin(self, trainer):
            epoch = len(trainer.history.get("epoch", ())) + 1
            trainer.row_weights = (np.arange(N) < 20 * epoch).astype(float)

    seen = times_seen(epochs=3, callbacks=[Easy()], sampling="weighted", replacement=False)
    np.testing.assert_array_equal(seen, np.repeat([3, 2, 1], 20))


def test_a_resumed_fit_draws_the_same_rows(tmp_path):
    X, y = numbered_rows()

    def train(folder, epochs, resume):
        trainer = og.Trainer(mlp_proto([N, 3]), "cross_entropy", seed=4)
        checkpoint = og.callbacks.Checkpoint(tmp_path / folder, every=2)
        trainer.fit(
            X,
            y,
            epochs=epochs,
            batch_size=16,
            sampling="balanced",
            augment="noise",
            verbose=0,
            callbacks=[checkpoint],
            resume=resume,
        )
        return trainer.session.weights["W0"].copy()

    train("part", 2, resume=False)
    np.testing.assert_array_equal(train("part", 4, True), train("whole", 4, False))


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        ({"sampling": "weighted"}, "needs a weight"),
        ({"sampling": "weighted", "row_weights": [1.0]}, "1 weights for 60 rows"),
        ({"sampling": "weighted", "row_weights": [-1.0] * N}, "row 0 is -1"),
        ({"sampling": "weighted", "row_weights": [0.0] * N}, "above 0"),
        ({"row_weights": [1.0] * N}, "no effect"),
        ({"sampling": "balanced", "shuffle": False}, "shuffle"),
    ],
)
def test_errors(fit, message):
    X, y = numbered_rows()
    with pytest.raises(og.Error, match=message):
        og.Trainer(mlp_proto([N, 3]), "cross_entropy").fit(X, y, verbose=0, **fit)


def test_the_command_line_draws_by_a_column(tmp_path):
    X, y = rows()
    weights = np.arange(60) % 5
    onnx.save(mlp_proto([2, 2]), tmp_path / "net.onnx")
    table = np.column_stack([X, weights, y])
    np.savetxt(tmp_path / "d.csv", table, "%.9g", ",", header="a,b,often,y", comments="")
    command = ["train", tmp_path / "net.onnx", "--data", tmp_path / "d.csv", "--target", "y"]
    command += ["--loss", "cross_entropy", "--epochs", 2, "-q", "-o", tmp_path / "out.onnx"]
    run(*command, "--sampling", "weighted", "--row-weights", "often", "--epoch-rows", 40)
    trainer = og.Trainer(mlp_proto([2, 2]), "cross_entropy")
    drawn = {"sampling": "weighted", "row_weights": weights, "epoch_rows": 40}
    trainer.fit(X, y, epochs=2, verbose=0, **drawn)
    found = initializers(onnx.load(tmp_path / "out.onnx"))
    np.testing.assert_array_equal(found["W0"], trainer.session.weights["W0"])
    run(*command, "--sampling", "weighted", status=2)


# ------------------------------------------------------------------------------ cross-validation


@pytest.mark.parametrize("labels", [None, LABELS])
def test_folds_divide_the_rows(labels):
    folds = fold_rows(N, 7, labels, seed=2)
    np.testing.assert_array_equal(np.sort(np.concatenate(folds)), np.arange(N))
    assert max(map(len, folds)) - min(map(len, folds)) <= 1
    if labels is not None:
        counts = np.array([np.bincount(labels[fold], minlength=3) for fold in folds])
        assert np.max(counts.max(0) - counts.min(0)) <= 1


def rows(count=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count, 2)).astype(np.float32)
    return X, (X @ np.array([1.0, -2.0]) > 0).astype(np.int64)


def test_cross_validation_trains_each_fold_alone(tmp_path):
    X, y = rows()
    model = mlp_proto([2, 2], head="Softmax")
    fit = {"epochs": 5, "batch_size": 8}
    result = og.cross_validate(model, X, y, folds=3, trainer={"lr": 0.05}, **fit)
    for fold, found in zip(result.rows, result.evaluations, strict=True):
        trainer = og.Trainer(model, lr=0.05)
        others = np.setdiff1d(np.arange(len(X)), fold)
        trainer.fit(X[others], y[others], verbose=0, **fit)
        assert trainer.evaluate(X[fold], y[fold]).loss == found.loss
    assert result.mean["accuracy"] == np.mean([one.accuracy for one in result.evaluations])
    onnx.save(model, tmp_path / "net.onnx")
    table = np.column_stack([X, y])
    np.savetxt(tmp_path / "d.csv", table, "%.9g", ",", header="a,b,y", comments="")
    command = ["train", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "d.csv")]
    command += ["--target", "y", "--folds", "3", "--lr", "0.05", "--epochs", "5"]
    printed, _ = run(*command, "--batch-size", "8")
    assert f"mean of 3 folds: loss {result.mean['loss']:.6g}" in printed
    for more in (["-o", tmp_path / "out.onnx"], ["--lr", "auto"], ["--dry-run"], ["--folds", 1]):
        run(*command, *more, status=2)


def test_grid_search_over_an_estimator():
    from onnxgrad.sklearn import OnnxClassifier

    X, y = rows()
    grid = {"lr": [1e-5, 0.05], "average": [None, "ema:decay=0.5"]}
    search = GridSearchCV(OnnxClassifier(max_iter=30, random_state=0), grid, cv=3)
    search.fit(X, y)
    assert search.best_params_["lr"] == 0.05
    assert search.best_score_ > 0.8


def test_optuna_prunes_a_hopeless_trial():
    optuna = pytest.importorskip("optuna", reason="requirements/test.txt has it")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    X, y = rows()
    epochs = []

    def objective(trial):
        lr = trial.suggest_float("lr", 1e-6, 1.0, log=True)
        trainer = og.Trainer(mlp_proto([2, 8, 2]), "cross_entropy", lr=lr)
        pruning = og.callbacks.OptunaPruning(trial, "val_loss")
        try:
            trainer.fit(
                X, y, epochs=10, batch_size=8, validation=0.25, callbacks=[pruning], verbose=0
            )
        finally:
            epochs.append(len(trainer.history["epoch"]))
        return trainer.history["val_loss"][-1]

    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=3)
    study = optuna.create_study(pruner=pruner)
    study.enqueue_trial({"lr": 0.05})
    study.enqueue_trial({"lr": 1e-6})
    study.optimize(objective, n_trials=2)
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "PRUNED"]
    assert epochs[0] == 10 > epochs[1]
    assert study.best_params == {"lr": 0.05}


# ------------------------------------------------------------------------------------ federated


WITHOUT_FLOWER = """
import runpy, sys
sys.modules["flwr"] = None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_three_clients_average_as_numpy_does():
    X, y = rows()
    clients = [og.Trainer(mlp_proto([2, 4, 2]), "cross_entropy", "sgd", lr=0.1) for _ in range(3)]
    parts = np.split(np.arange(60), [10, 30])
    weights = clients[0].get_weights()
    expected = [array.astype(np.float64) for array in weights]
    for _ in range(3):
        found, means = [], []
        for client, part in zip(clients, parts, strict=True):
            client.set_weights(weights)
            client.fit(X[part], y[part], epochs=1, batch_size=5, shuffle=False, verbose=0)
            found.append(client.get_weights())
            alone = og.Trainer(mlp_proto([2, 4, 2]), "cross_entropy", "sgd", lr=0.1)
            alone.set_weights([array.astype(np.float32) for array in expected])
            alone.fit(X[part], y[part], epochs=1, batch_size=5, shuffle=False, verbose=0)
            means.append([array * len(part) / 60 for array in alone.get_weights()])
        shares = [len(part) / 60 for part in parts]
        weights = [
            sum(share * one[i] for share, one in zip(shares, found, strict=True)).astype(np.float32)
            for i in range(len(weights))
        ]
        expected = [sum(one[i] for one in means) for i in range(len(weights))]
    for a, b in itertools.zip_longest(weights, expected):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
    names = clients[0].session.weight_names
    assert names == ["W0", "W1", "b0", "b1"]
    clients[0].freeze("W0")
    assert clients[0].session.weight_names == names
    with pytest.raises(og.DataError, match="3 arrays for 4"):
        clients[0].set_weights(weights[:3])


def test_the_example_without_flower_averages():
    example = Path(__file__).parents[2] / "examples" / "federated.py"
    command = [sys.executable, "-c", WITHOUT_FLOWER, str(example)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    accuracies = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(accuracies) == 10
    assert accuracies[-1] > max(accuracies[0], 0.9)


def test_the_example_for_flower_averages(monkeypatch):
    flwr = types.ModuleType("flwr")
    flwr.client = types.SimpleNamespace(NumPyClient=object)
    monkeypatch.setitem(sys.modules, "flwr", flwr)
    monkeypatch.setitem(sys.modules, "flwr.client", flwr.client)
    path = Path(__file__).parents[2] / "examples" / "federated.py"
    namespace = {"__name__": "federated"}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), namespace)
    X, y = rows()
    trainer = og.Trainer(mlp_proto([2, 4, 2]), "cross_entropy", "sgd", lr=0.1)
    client = namespace["OnnxClient"](trainer, X, y)
    weights = client.get_parameters({})
    changed, count, _ = client.fit(weights, {"epochs": 1})
    assert count == 60
    loss, count, metrics = client.evaluate(changed, {})
    assert loss < client.evaluate(weights, {})[0]
    assert (count, set(metrics)) == (60, {"accuracy"})
