"""Metrics: values of scikit-learn, with and without weights; names, functions, early stopping."""

import numpy as np
import pytest
import sklearn.metrics as sk

import onnxgrad as og
from support import mlp_proto

ROWS = 200


def class_predictions(classes, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, ROWS)
    scores = rng.normal(size=(ROWS, classes)) + 1.5 * np.eye(classes)[y]
    scores[::7] = np.round(scores[::7])  # ties
    p = np.exp(scores)
    return y, p / p.sum(axis=1, keepdims=True), rng.uniform(0, 2, ROWS)


def average(y):
    return "binary" if y.max() == 1 else "macro"


CLASS_METRICS = {
    "accuracy": lambda y, p, w: sk.accuracy_score(y, p.argmax(1), sample_weight=w),
    "balanced_accuracy": lambda y, p, w: sk.balanced_accuracy_score(
        y, p.argmax(1), sample_weight=w
    ),
    "precision": lambda y, p, w: sk.precision_score(
        y, p.argmax(1), average=average(y), sample_weight=w, zero_division=0
    ),
    "recall": lambda y, p, w: sk.recall_score(
        y, p.argmax(1), average=average(y), sample_weight=w, zero_division=0
    ),
    "f1": lambda y, p, w: sk.f1_score(
        y, p.argmax(1), average=average(y), sample_weight=w, zero_division=0
    ),
    "auc": lambda y, p, w: sk.roc_auc_score(
        y, p if p.shape[1] > 2 else p[:, 1], multi_class="ovr", sample_weight=w
    ),
    "log_loss": lambda y, p, w: sk.log_loss(y, p, sample_weight=w),
    "perplexity": lambda y, p, w: np.exp(sk.log_loss(y, p, sample_weight=w)),
}
NUMBER_METRICS = {
    "mae": sk.mean_absolute_error,
    "mse": sk.mean_squared_error,
    "rmse": sk.root_mean_squared_error,
    "r2": sk.r2_score,
    "explained_variance": sk.explained_variance_score,
    "max_error": None,
    "pearson": None,
}


def test_every_metric_has_an_oracle():
    assert sorted([*CLASS_METRICS, *NUMBER_METRICS]) == og.metrics.names()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("name", CLASS_METRICS)
def test_class_metrics(name, classes, weighted):
    y, p, w = class_predictions(classes)
    weight = w if weighted else None
    expected = CLASS_METRICS[name](y, p, weight)
    assert og.metrics.compute(name, y, p, weight) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["precision", "f1", "recall", "balanced_accuracy"])
def test_class_that_never_occurs(name):
    y, p, _ = class_predictions(4)
    y[y == 3] = 0
    p[:, 3] = 0
    expected = CLASS_METRICS[name](y, p, None)
    assert og.metrics.compute(name, y, p) == pytest.approx(expected, rel=1e-12)


def test_auc_of_one_class_is_nan():
    assert np.isnan(og.metrics.compute("auc", np.zeros(4, int), np.full((4, 2), 0.5)))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("name", [n for n, oracle in NUMBER_METRICS.items() if oracle])
def test_number_metrics(name, columns, weighted):
    rng = np.random.default_rng(columns)
    y = rng.normal(size=(ROWS, columns))
    p = y + 0.3 * rng.normal(size=y.shape) + 0.1
    w = rng.uniform(0, 2, ROWS) if weighted else None
    expected = NUMBER_METRICS[name](y, p, sample_weight=w)
    assert og.metrics.compute(name, y, p, w) == pytest.approx(expected, rel=1e-12)


def test_max_error_and_pearson():
    rng = np.random.default_rng(1)
    y = rng.normal(size=50)
    p = y + rng.normal(size=50)
    assert og.metrics.compute("max_error", y, p) == sk.max_error(y, p)
    expected = np.corrcoef(y, p)[0, 1]
    assert og.metrics.compute("pearson", y, p) == pytest.approx(expected, rel=1e-12)


HEADS = {
    "softmax": (mlp_proto([4, 8, 3], head="Softmax"), "auto", 3),
    "bare scores": (mlp_proto([4, 8, 3]), "softmax_cross_entropy", 3),
    "sigmoid": (mlp_proto([4, 8, 1], head="Sigmoid"), "auto", 2),
}


@pytest.mark.parametrize("head", HEADS)
def test_metrics_of_a_validation(head):
    model, loss, classes = HEADS[head]
    rng = np.random.default_rng(3)
    y = rng.integers(0, classes, 300)
    X = (rng.normal(size=(300, 4)) + np.eye(classes, 4)[y]).astype(np.float32)
    seen = []

    def own(y_true, y_pred):
        seen.append((y_true, y_pred))
        return 7.0

    weight = rng.uniform(0, 2, 300).astype(np.float32)
    trainer = og.Trainer(model, loss, lr=0.01)
    trainer.fit(
        X[:200],
        y[:200],
        weight[:200],
        validation=(X[200:], y[200:], weight[200:]),
        metrics=["f1", "auc", "log_loss", own],
        epochs=2,
        verbose=0,
    )
    assert trainer.history["val_own"] == [7.0, 7.0]
    y_true, p = seen[-1]
    np.testing.assert_array_equal(y_true, y[200:])
    assert p.shape == (100, classes)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    for name in ("f1", "auc", "log_loss"):
        expected = CLASS_METRICS[name](y[200:], p, weight[200:])
        assert trainer.history[f"val_{name}"][-1] == pytest.approx(expected, rel=1e-9)
    if head == "softmax":
        np.testing.assert_allclose(p, trainer.predict(X[200:]), rtol=1e-5, atol=1e-7)
    assert trainer.history["val_log_loss"][-1] == pytest.approx(
        trainer.history["val_loss"][-1], rel=1e-5
    )


def test_metrics_of_a_regression(linear_model, linear_data):
    X, y = linear_data
    trainer = og.Trainer(linear_model, lr=0.01)
    trainer.fit(
        X[:150], y[:150], validation=(X[150:], y[150:]), metrics=["mae", "r2"], epochs=2, verbose=0
    )
    predicted = trainer.predict(X[150:])
    assert trainer.history["val_mae"][-1] == pytest.approx(
        sk.mean_absolute_error(y[150:], predicted), rel=1e-6
    )
    assert trainer.history["val_r2"][-1] == pytest.approx(sk.r2_score(y[150:], predicted), rel=1e-6)


def test_function_with_sample_weight(linear_model, linear_data):
    X, y = linear_data
    weight = np.random.default_rng(0).uniform(0.5, 1, len(X))

    def weighted(y_true, y_pred, sample_weight=None):
        return sk.mean_absolute_error(y_true, y_pred, sample_weight=sample_weight)

    found = og.Trainer(linear_model).evaluate(X, y, weight, metrics={"a": weighted, "b": "mae"})
    assert found.metrics["a"] == pytest.approx(found.metrics["mae"], rel=1e-12)


def test_exception_of_a_metric_comes_out(linear_model, linear_data):
    def broken(y_true, y_pred):
        raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match="the user's own"):
        og.Trainer(linear_model).fit(*linear_data, validation=0.2, metrics=broken, verbose=0)


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        ("acuracy", og.OptionError, "Did you mean 'accuracy'"),
        ("f1", og.DataError, "'f1' is for classes"),
        (["mae", "mae"], og.OptionError, "two with the name 'mae'"),
        ([3], og.OptionError, "neither a name nor a function"),
    ],
)
def test_refused(metrics, error, message, linear_model, linear_data):
    with pytest.raises(error, match=message):
        og.Trainer(linear_model).fit(*linear_data, validation=0.2, metrics=metrics, verbose=0)


def test_metrics_need_a_validation(linear_model, linear_data):
    with pytest.raises(og.OptionError, match="there is no validation"):
        og.Trainer(linear_model).fit(*linear_data, metrics="mae", verbose=0)


@pytest.mark.parametrize(
    ("monitor", "mode", "stops"),
    [
        ("val_up", "auto", 13),
        ("val_up", "min", 4),
        ("val_mae", "auto", 13),
        ("train_loss", "max", 4),
    ],
)
def test_early_stopping_monitors(monitor, mode, stops, linear_model, linear_data):
    values = iter(range(100))
    stopping = og.callbacks.EarlyStopping(patience=3, min_delta=0.0, monitor=monitor, mode=mode)
    trainer = og.Trainer(linear_model, "squared_error", "sgd", lr=0.01)
    trainer.fit(
        *linear_data,
        validation=0.2,
        metrics={"up": lambda y_true, y_pred: float(next(values)), "mae": "mae"},
        early_stopping=stopping,
        epochs=13,
        verbose=0,
    )
    assert len(trainer.history["epoch"]) == stops


def test_unknown_monitor(linear_model, linear_data):
    for monitor, options in (
        ("val_mea", {"validation": 0.2, "metrics": "mae"}),
        ("val_loss", {}),
        ("val_accuracy", {"validation": 0.2}),
    ):
        trainer = og.Trainer(linear_model)
        stopping = og.callbacks.EarlyStopping(monitor=monitor)
        with pytest.raises(og.DataError, match=f"no '{monitor}' to monitor"):
            trainer.fit(*linear_data, early_stopping=stopping, verbose=0, **options)
        assert trainer.session.steps == 0


def test_kept_line_names_the_monitored_metric(linear_model, linear_data):
    values = iter([1.0, 5.0, 3.0])
    stopping = og.callbacks.EarlyStopping(monitor="val_up", patience=9)
    trainer = og.Trainer(linear_model, "squared_error", "sgd", lr=0.01)
    trainer.fit(
        *linear_data,
        validation=0.2,
        metrics={"up": lambda y_true, y_pred: next(values)},
        early_stopping=stopping,
        epochs=3,
        verbose=0,
    )
    assert trainer.history.kept_line == "kept the weights of epoch 2 (val_up 5)"
