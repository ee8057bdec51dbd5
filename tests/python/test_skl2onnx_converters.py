"""Pipelines with the estimators become one file, which onnxruntime runs with the same results."""

import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from skl2onnx import to_onnx
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from onnxgrad.sklearn import OnnxClassifier, OnnxRegressor
from onnxgrad.sklearn.converters import register_when_imported
from support import mlp_proto

X = np.random.default_rng(0).normal(size=(40, 4))
WORDS = np.array(["no", "yes", "maybe"])[(X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)]
BINARY = (X[:, 0] > 0).astype(int)
COLUMNS = (X[:, :3] > 0).astype(int)
OPTIONS = {"hidden_layer_sizes": (6,), "max_iter": 3, "lr": 0.01, "random_state": 0}
NO_ZIPMAP = {OnnxClassifier: {"zipmap": False}}


def pipeline(estimator, y, dtype=np.float32):
    return make_pipeline(StandardScaler(), estimator).fit(X.astype(dtype), y)


def run(model, rows):
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: rows})


def check_classifier(fitted, dtype=np.float32, opset=None, **options):
    rows = X.astype(dtype)
    model = to_onnx(fitted, rows[:1], options=NO_ZIPMAP | options, target_opset=opset)
    labels, scores = run(model, rows)
    assert (labels == fitted.predict(rows)).all()
    has_margins = not hasattr(fitted, "predict_proba")
    expected = fitted.decision_function(rows) if has_margins else fitted.predict_proba(rows)
    found = scores[:, 1] if expected.ndim == 1 else scores
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert scores.dtype == dtype
    return model


CLASSIFIERS = {
    "text": (WORDS, {}),
    "two": (BINARY, {}),
    "bool": (BINARY.astype(bool), {}),
    "float": (BINARY.astype(float), {}),
    "several per row": (COLUMNS, {}),
    "hinge": (BINARY, {"loss": "hinge"}),
    "hinge of three": (WORDS, {"loss": "hinge"}),
    "modified_huber": (BINARY, {"loss": "modified_huber"}),
    "squared_error": (WORDS, {"loss": "squared_error"}),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier(name, dtype):
    y, options = CLASSIFIERS[name]
    check_classifier(pipeline(OnnxClassifier(**OPTIONS, **options), y, dtype), dtype)


REGRESSORS = {
    "one": (X[:, 0], {}),
    "two": (X[:, :2], {}),
    "poisson": (np.abs(X[:, 0]), {"loss": "poisson"}),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", REGRESSORS)
def test_regressor(name, dtype):
    y, options = REGRESSORS[name]
    fitted = pipeline(OnnxRegressor(**OPTIONS, **options), y, dtype)
    rows = X.astype(dtype)
    (found,) = run(to_onnx(fitted, rows[:1]), rows)
    assert found.shape == (40, 2 if name == "two" else 1)
    np.testing.assert_allclose(found.reshape(y.shape), fitted.predict(rows), atol=2e-6)


@pytest.mark.parametrize("opset", [9, 12, 13, 18, 21])
def test_operator_sets(opset):
    model = check_classifier(pipeline(OnnxClassifier(**OPTIONS), WORDS), opset=opset)
    assert [one.version for one in model.opset_import if not one.domain] == [opset]


def exported(_):
    return to_onnx(
        MLPClassifier((5,), max_iter=2).fit(X.astype(np.float32), WORDS), X[:1].astype(np.float32)
    )


GIVEN = {"exported by skl2onnx": exported, "scores": lambda _: mlp_proto([4, 6, 3])}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("opset", [15, None])
@pytest.mark.parametrize("name", GIVEN)
def test_given_models(name, opset):
    estimator = OnnxClassifier(GIVEN[name](None), max_iter=2, random_state=0)
    check_classifier(pipeline(estimator, WORDS), opset=opset)


@pytest.mark.parametrize("zipmap", [True, "columns"])
def test_zipmap(zipmap):
    rows = X.astype(np.float32)
    fitted = pipeline(OnnxClassifier(**OPTIONS), WORDS)
    options = None if zipmap is True else {OnnxClassifier: {"zipmap": zipmap}}
    labels, *rest = run(to_onnx(fitted, rows[:1], options=options), rows)
    assert (labels == fitted.predict(rows)).all()
    found = pd.DataFrame(rest[0])[fitted.classes_] if zipmap is True else np.stack(rest, 1)
    np.testing.assert_allclose(found, fitted.predict_proba(rows), atol=1e-6)


def test_class_numbers():
    rows = X.astype(np.float32)
    fitted = pipeline(OnnxClassifier(**OPTIONS), WORDS)
    options = {OnnxClassifier: {"zipmap": False, "nocl": True}}
    labels, _ = run(to_onnx(fitted, rows[:1], options=options), rows)
    assert (fitted.classes_[labels] == fitted.predict(rows)).all()


def test_searches_and_bare_estimators():
    rows = X.astype(np.float32)
    check_classifier(OnnxClassifier(**OPTIONS).fit(rows, WORDS))
    search = GridSearchCV(
        make_pipeline(OnnxClassifier(**OPTIONS)), {"onnxclassifier__lr": [0.1]}, cv=2
    )
    check_classifier(search.fit(rows, WORDS))


def test_columns_of_a_table():
    table = pd.DataFrame(X.astype(np.float32), columns=list("abcd"))
    table["kind"] = np.where(X[:, 2] > 0, "u", "v")
    columns = [("numbers", StandardScaler(), list("abcd")), ("kind", OneHotEncoder(), ["kind"])]
    fitted = make_pipeline(ColumnTransformer(columns), OnnxClassifier(**OPTIONS)).fit(table, WORDS)
    model = to_onnx(fitted, table[:1], options=NO_ZIPMAP)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    labels, found = session.run(None, {name: table[[name]].to_numpy() for name in table})
    assert (labels == fitted.predict(table)).all()
    np.testing.assert_allclose(found, fitted.predict_proba(table), atol=1e-6)


def test_registered_when_skl2onnx_is_imported():
    program = """
import sys
sys.modules["skl2onnx"] = None
import onnxgrad.sklearn  # as if it were not installed
try:
    import skl2onnx
except ImportError:
    del sys.modules["skl2onnx"]
import importlib.util
assert importlib.util.find_spec("skl2onnx")  # asks, and does not import
assert "skl2onnx" not in sys.modules
import skl2onnx
from skl2onnx._supported_operators import sklearn_operator_name_map as known
assert {onnxgrad.sklearn.OnnxClassifier, onnxgrad.sklearn.OnnxRegressor} <= {*known}
assert not any("onnxgrad" in type(one).__module__ for one in sys.meta_path)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_subclasses_are_registered_by_their_authors():
    class Own(OnnxRegressor):
        pass

    register_when_imported(Own)
    fitted = Own(**OPTIONS).fit(X, X[:, 0])
    (found,) = run(to_onnx(fitted, X[:1]), X)
    np.testing.assert_allclose(found[:, 0], fitted.predict(X), atol=1e-6)
