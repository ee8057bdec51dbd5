"""Models of scikit-learn as skl2onnx writes them, and the losses that scikit-learn says they have.

A case is one estimator behind a StandardScaler with one set of labels and one set of options of the
converter. Weights are rounded to float32 before anything else, so that the pipeline in float64 and
the exported file are the same function up to the rounding of the file's own arithmetic.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Perceptron,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.linear_model._sgd_fast import Hinge, ModifiedHuber
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

ESTIMATORS: dict[str, Any] = {
    "mlp": lambda: MLPClassifier((6,), max_iter=60, random_state=0),
    "logistic_regression": lambda: LogisticRegression(max_iter=200),
    "logistic_regression_no_intercept": lambda: LogisticRegression(fit_intercept=False),
    "sgd_log": lambda: SGDClassifier(loss="log_loss", alpha=0.01, random_state=0),
    "sgd_hinge": lambda: SGDClassifier(loss="hinge", alpha=0.01, random_state=0),
    "sgd_modified_huber": lambda: SGDClassifier(loss="modified_huber", alpha=0.1, random_state=0),
    "perceptron": lambda: Perceptron(random_state=0),
    "ridge_classifier": lambda: RidgeClassifier(),
    "one_vs_rest": lambda: OneVsRestClassifier(LogisticRegression(max_iter=200)),
    "mlp_regressor": lambda: MLPRegressor(hidden_layer_sizes=(6,), max_iter=60, random_state=0),
    "linear_regression": lambda: LinearRegression(),
    "ridge": lambda: Ridge(),
    "sgd_regressor": lambda: SGDRegressor(random_state=0),
}

MAIN_ESTIMATORS = (
    "mlp",
    "logistic_regression",
    "sgd_log",
    "sgd_hinge",
    "sgd_modified_huber",
)

# The loss that is found for two classes and for more.
LOSSES = {
    "mlp": ("binary cross-entropy", "softmax cross-entropy"),
    "logistic_regression": ("binary cross-entropy", "softmax cross-entropy"),
    "logistic_regression_no_intercept": ("binary cross-entropy", "softmax cross-entropy"),
    "sgd_log": ("binary cross-entropy", "one-vs-rest log loss"),
    "sgd_hinge": ("one-vs-rest hinge", "one-vs-rest hinge"),
    "sgd_modified_huber": ("one-vs-rest modified Huber", "one-vs-rest modified Huber"),
    "perceptron": ("one-vs-rest hinge", "one-vs-rest hinge"),
    "ridge_classifier": ("one-vs-rest hinge", "one-vs-rest hinge"),
    "one_vs_rest": ("binary cross-entropy", "negative log-likelihood"),
}


@dataclass(frozen=True)
class HeadCase:
    """One exported model. `classes` is 0 for a regression with `targets` columns."""

    estimator: str
    classes: int = 0
    labels: str = "integers"  # or "strings", "shifted", "booleans"
    zipmap: Any = False  # or True, "columns"
    targets: int = 1
    dtype: str = "float32"

    @property
    def name(self) -> str:
        if not self.classes:
            return f"{self.estimator}_{self.targets}_{self.dtype}"
        zipmap = {False: "plain", True: "zipmap"}.get(self.zipmap, self.zipmap)
        return f"{self.estimator}_{self.classes}_{self.labels}_{zipmap}_{self.dtype}"

    @property
    def loss(self) -> str:
        if not self.classes:
            return "squared error"
        return LOSSES[self.estimator][self.classes > 2]

    @property
    def has_attributes(self) -> bool:
        """True if the weights sit in the attributes of a node."""
        linear = (
            "logistic_regression",
            "logistic_regression_no_intercept",
            "ridge_classifier",
            "linear_regression",
            "ridge",
            "sgd_regressor",
        )
        return self.estimator in linear and self.dtype == "float32"


def main_cases() -> list[HeadCase]:
    """Two and three classes, both kinds of labels, with and without ZipMap."""
    return [
        HeadCase(estimator, classes, labels, zipmap)
        for estimator in (
            "mlp",
            "logistic_regression",
            "sgd_log",
            "sgd_hinge",
            "sgd_modified_huber",
        )
        for classes in (2, 3)
        for labels in ("integers", "strings")
        for zipmap in (False, True)
    ]


def regression_cases() -> list[HeadCase]:
    return [
        HeadCase("mlp_regressor"),
        HeadCase("mlp_regressor", targets=2),
        HeadCase("linear_regression"),
        HeadCase("linear_regression", targets=2),
        HeadCase("ridge"),
        HeadCase("sgd_regressor"),
        HeadCase("mlp_regressor", dtype="float64"),
        HeadCase("mlp_regressor", targets=2, dtype="float64"),
        HeadCase("linear_regression", dtype="float64"),
        HeadCase("linear_regression", targets=2, dtype="float64"),
        HeadCase("ridge", dtype="float64"),
        HeadCase("sgd_regressor", dtype="float64"),
    ]


def wide_cases() -> list[HeadCase]:
    """The main cases in float64: no LinearClassifier, and no ZipMap, which ONNX has for float32."""
    return [
        HeadCase(estimator, classes, labels, zipmap, dtype="float64")
        for estimator in (*MAIN_ESTIMATORS, "logistic_regression_no_intercept", "one_vs_rest")
        for classes in (2, 3)
        for labels, zipmap in (("integers", "columns"), ("strings", False))
    ]


def more_cases() -> list[HeadCase]:
    """Cases of other estimators and options, besides the main cases."""
    mlp = HeadCase("mlp", 3)
    logistic = HeadCase("logistic_regression", 3)
    return [
        replace(mlp, labels="shifted"),
        replace(mlp, labels="booleans", classes=2),
        replace(mlp, zipmap="columns"),
        replace(mlp, dtype="float64"),
        replace(logistic, labels="shifted"),
        replace(logistic, labels="booleans", classes=2),
        replace(logistic, zipmap="columns"),
        replace(logistic, zipmap="columns", classes=2),
        replace(logistic, dtype="float64"),
        replace(logistic, dtype="float64", classes=2),
        HeadCase("logistic_regression_no_intercept", 2),
        HeadCase("logistic_regression_no_intercept", 3),
        HeadCase("perceptron", 2),
        HeadCase("perceptron", 3),
        HeadCase("ridge_classifier", 2),
        HeadCase("ridge_classifier", 3),
        HeadCase("one_vs_rest", 2),
        HeadCase("one_vs_rest", 3),
    ]


def all_cases() -> list[HeadCase]:
    return [*main_cases(), *regression_cases(), *wide_cases(), *more_cases()]


def data(case: HeadCase) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, K] and labels [N] or values [N, targets] of a case, in the dtype of its model."""
    if case.classes == 2:
        X, numbers = load_breast_cancer(return_X_y=True)
        X = X[:, :8]
    else:
        X, numbers = load_iris(return_X_y=True)
    X = X.astype(case.dtype)
    if not case.classes:
        y = np.stack([X[:, 2] + 0.1 * X[:, 3] ** 2, X[:, 0] * 0.5 - numbers], axis=1)
        return np.ascontiguousarray(X[:, :2]), y[:, : case.targets].astype(case.dtype)
    labels = {
        "integers": np.arange(3),
        "shifted": np.arange(3) * 2 + 5,
        "strings": np.array(["alpha", "beta", "gamma"]),
        "booleans": np.array([False, True, True]),
    }[case.labels]
    return X, labels[numbers]


def _round_weights(pipeline: Any, dtype: str) -> None:
    def rounded(array: Any) -> Any:
        return np.asarray(array, dtype).astype(np.float64)

    scaler, estimator = pipeline[0], pipeline[-1]
    scaler.mean_ = rounded(scaler.mean_)
    if dtype == "float32":  # the file multiplies with the inverse
        scaler.scale_ = 1 / rounded(1 / scaler.scale_)
    parts = getattr(estimator, "estimators_", [estimator])
    for part in parts:
        if hasattr(part, "coefs_"):
            part.coefs_ = [rounded(array) for array in part.coefs_]
            part.intercepts_ = [rounded(array) for array in part.intercepts_]
        else:
            part.coef_ = rounded(part.coef_)
            part.intercept_ = rounded(part.intercept_)


@functools.cache
def fitted(case: HeadCase) -> Any:
    """The pipeline, trained, with weights that float32 (or the model's dtype) can hold."""
    X, y = data(case)
    pipeline = make_pipeline(StandardScaler(), ESTIMATORS[case.estimator]())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        pipeline.fit(X.astype(np.float64), y[:, 0] if not case.classes and case.targets == 1 else y)
    _round_weights(pipeline, case.dtype)
    return pipeline


@functools.cache
def exported(case: HeadCase) -> bytes:
    """The file that skl2onnx writes, with an unnamed batch dimension."""
    pipeline = fitted(case)
    columns = data(case)[0].shape[1]
    kind = FloatTensorType if case.dtype == "float32" else DoubleTensorType
    options = {id(pipeline): {"zipmap": case.zipmap}} if case.classes else None
    if case.estimator == "ridge_classifier":
        options = None  # it has no probabilities, and so no option for them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = convert_sklearn(
            pipeline, "pipeline", [("X", kind([None, columns]))], options=options
        )
    return model.SerializeToString()


def _one_vs_rest(pipeline: Any, X: np.ndarray, y: np.ndarray, loss: Any) -> float:
    scores = pipeline.decision_function(X)
    scores = scores[:, None] if scores.ndim == 1 else scores
    classes = pipeline[-1].classes_
    ones = y[:, None] == (classes[1:] if scores.shape[1] == 1 else classes)
    signs = np.where(ones, 1.0, -1.0)
    rows = [
        sum(loss(float(t), float(s)) for t, s in zip(*row, strict=True))
        for row in zip(signs, scores, strict=True)
    ]
    return float(np.mean(rows))


def expected_loss(case: HeadCase, X: np.ndarray, y: np.ndarray) -> float:
    """The loss of the fitted pipeline on these rows as scikit-learn computes it, in float64."""
    pipeline = fitted(case)
    X = X.astype(np.float64)
    if not case.classes:
        predicted = pipeline.predict(X).reshape(len(X), -1)
        return float(mean_squared_error(y.reshape(len(X), -1).astype(np.float64), predicted))
    loss = case.loss
    if loss == "one-vs-rest hinge":
        return _one_vs_rest(pipeline, X, y, Hinge(1.0).py_loss)
    if loss == "one-vs-rest modified Huber":
        return _one_vs_rest(pipeline, X, y, ModifiedHuber().py_loss)
    if loss == "one-vs-rest log loss" and case.estimator == "sgd_log":
        return _one_vs_rest(pipeline, X, y, lambda t, s: float(np.logaddexp(0.0, -t * s)))
    probabilities = pipeline.predict_proba(X)
    return float(log_loss(y, probabilities, labels=pipeline[-1].classes_))
