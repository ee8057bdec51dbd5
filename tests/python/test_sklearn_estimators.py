"""OnnxRegressor and OnnxClassifier: scikit-learn's own checks, its tools, files in onnxruntime."""

import io
import itertools
import pickle
import re
import sys
from pathlib import Path

import joblib
import numpy as np
import onnx
import onnxruntime
import pytest
import threadpoolctl
from skl2onnx import to_onnx
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import onnxgrad as og
from onnxgrad.sklearn import OnnxClassifier, OnnxRegressor, multi_layer_perceptron
from support import initializers, mlp_proto, run_python


# Nothing is expected to fail. scikit-learn itself skips checks that need pandas or another array
# library where these are not installed, and one of a method that is not there, and says so.
@parametrize_with_checks(
    [
        OnnxRegressor(threads=1),
        OnnxRegressor(
            optimizer=og.optimizers.SGD(0.05, momentum=0.9), activation="tanh", threads=1
        ),
        OnnxRegressor(optimizer="lbfgs", max_iter=5, hidden_layer_sizes=(10,), threads=1),
        OnnxClassifier(threads=1),
        OnnxClassifier(loss="hinge", threads=1),
        OnnxClassifier(loss="one_vs_rest_log", activation="logistic", lr=0.01, threads=1),
    ]
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def in_onnxruntime(model, X):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: X})


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return StandardScaler().fit_transform(X).astype(np.float32), y


PLAIN = {"hidden_layer_sizes": (5,), "shuffle": False, "tol": None, "random_state": 0}
LABELS = {
    "int": np.array([3, 5, 8]),
    "string": np.array(["setosa", "versicolor", "virginica"]),
    "object": np.array(["a", "bb", "ccc"], dtype=object),
    "whole_float": np.array([-1.0, 0.0, 2.0]),
}
LOSSES = ["auto", "softmax_cross_entropy", "one_vs_rest_log", "negative_log_likelihood"]


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_file_gives_the_same_labels_and_probabilities(iris, loss, classes, labels):
    X, y = iris[0][: 50 * classes], LABELS[labels][iris[1][: 50 * classes]]
    classifier = OnnxClassifier(hidden_layer_sizes=(8,), loss=loss, lr=0.05, random_state=0)
    classifier.fit(X, y)
    assert classifier.score(X, y) > 0.95
    np.testing.assert_array_equal(classifier.classes_, LABELS[labels][:classes])
    found, probabilities = in_onnxruntime(classifier.to_onnx(), X)
    np.testing.assert_array_equal(found, classifier.predict(X))
    np.testing.assert_allclose(probabilities, classifier.predict_proba(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", ["hinge", "modified_huber"])
def test_file_gives_the_same_labels_and_margins(iris, loss, classes):
    X, y = iris[0][: 50 * classes], LABELS["string"][iris[1][: 50 * classes]]
    classifier = OnnxClassifier(hidden_layer_sizes=(8,), loss=loss, lr=0.05, random_state=0)
    classifier.fit(X, y)
    assert classifier.score(X, y) > 0.95
    assert not hasattr(classifier, "predict_proba")
    found, margins = in_onnxruntime(classifier.to_onnx(), X)
    np.testing.assert_array_equal(found, classifier.predict(X))
    expected = classifier.decision_function(X).reshape(margins.shape)
    np.testing.assert_allclose(margins, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "tanh", "logistic", "identity"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_file_of_a_regressor(iris, activation, dtype, tmp_path):
    X = iris[0].astype(dtype)
    y = X[:, :2] * 2 + 1
    regressor = OnnxRegressor(
        hidden_layer_sizes=(6, 5), activation=activation, max_iter=5, random_state=0
    )
    regressor.fit(X, y)
    regressor.to_onnx(tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {w.dtype.name for w in initializers(model).values()} == {dtype}
    (found,) = in_onnxruntime(model, X)
    assert found.shape == y.shape
    rtol = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(found, regressor.predict(X), rtol=rtol, atol=rtol)


def test_weights_are_those_of_least_squares():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = X @ [[1.0, 2.0], [-2.0, 0.0], [0.5, 3.0]] + 1 + rng.normal(size=(80, 2)) * 0.3
    weight = rng.uniform(0, 2, 80)
    expected = LinearRegression().fit(X, y, weight)
    regressor = OnnxRegressor(
        hidden_layer_sizes=(), optimizer="sgd", lr=0.3, max_iter=400, tol=None, random_state=0
    )
    regressor.fit(X, y, weight)
    found = initializers(regressor.to_onnx())
    np.testing.assert_allclose(found["layer0.weight"].T, expected.coef_, rtol=1e-8)
    np.testing.assert_allclose(found["layer0.bias"], expected.intercept_, rtol=1e-8)
    np.testing.assert_allclose(regressor.predict(X), expected.predict(X), rtol=1e-8)
    assert regressor.score(X, y, weight) == pytest.approx(expected.score(X, y, weight))


def test_penalty_is_that_of_ridge_regression():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 3))
    y = X @ [1.0, -2.0, 0.5] + 1 + rng.normal(size=60) * 0.3
    expected = Ridge(alpha=6.0).fit(X, y)
    regressor = OnnxRegressor(
        hidden_layer_sizes=(), optimizer="sgd", lr=0.3, max_iter=400, tol=None, random_state=0
    )
    regressor.set_params(penalty=og.losses.Penalty(l2=6.0 / 60)).fit(X, y)
    found = initializers(regressor.to_onnx())
    np.testing.assert_allclose(found["layer0.weight"].ravel(), expected.coef_, rtol=1e-8)
    np.testing.assert_allclose(found["layer0.bias"][0], expected.intercept_, rtol=1e-8)


def test_counts_as_poisson_regression():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(200, 3))
    y = rng.poisson(np.exp(X @ [0.5, -0.3, 0.1] + 1))
    expected = PoissonRegressor(alpha=0.0, tol=1e-10).fit(X, y)
    regressor = OnnxRegressor(
        hidden_layer_sizes=(), loss="poisson", optimizer="sgd", lr=0.1, max_iter=800, tol=None
    ).fit(X, y)
    np.testing.assert_allclose(regressor.predict(X), expected.predict(X), rtol=1e-5)
    (found,) = in_onnxruntime(regressor.to_onnx(), X)
    np.testing.assert_allclose(found.ravel(), expected.predict(X), rtol=1e-5)


@pytest.mark.parametrize("loss", ["absolute_error", "huber", "smooth_l1", "elastic"])
def test_losses_of_numbers(iris, loss):
    X = iris[0]
    y = np.abs(X[:, 0] + X[:, 1] / 2)
    regressor = OnnxRegressor(hidden_layer_sizes=(8,), loss=loss, lr=0.05, random_state=0)
    assert regressor.fit(X, y).score(X, y) > 0.95


@pytest.mark.parametrize("loss", ["squared_error", "kl_divergence", "squared_hinge", "cosine"])
@pytest.mark.parametrize("classes", [2, 3])
def test_further_losses_of_classes(iris, loss, classes):
    X, y = iris[0][: 50 * classes], LABELS["string"][iris[1][: 50 * classes]]
    classifier = OnnxClassifier(hidden_layer_sizes=(8,), loss=loss, lr=0.05, random_state=0)
    assert classifier.fit(X, y).score(X, y) > 0.95
    np.testing.assert_array_equal(in_onnxruntime(classifier.to_onnx(), X)[0], classifier.predict(X))


def test_log_loss_is_that_of_probabilities(iris):
    X, y = iris[0][50:], iris[1][50:]
    classifier = OnnxClassifier(hidden_layer_sizes=(), loss="log_loss", random_state=0, max_iter=1)
    classifier.set_params(lr=0.0).fit(X, y)
    assert classifier.loss_ == pytest.approx(log_loss(y, classifier.predict_proba(X)), rel=1e-5)


@pytest.mark.parametrize("given", [None, "", "Sigmoid"])
@pytest.mark.parametrize("loss", ["auto", "log_loss"])
def test_several_labels_a_row(iris, given, loss):
    if given == "" and loss == "log_loss":
        loss = "binary_cross_entropy"  # bare scores are no probabilities
    X = iris[0]
    y = np.stack([X[:, 0] > 0, X[:, 1] + X[:, 2] > 0, X[:, 3] < 0.5], axis=1).astype(int)
    model = None if given is None else mlp_proto([4, 8, 3], head=given)
    classifier = OnnxClassifier(
        model, hidden_layer_sizes=(8,), loss=loss, lr=0.05, batch_size=30, random_state=0
    ).fit(X, y)
    assert classifier.predict(X).shape == y.shape
    assert (classifier.predict(X) == y).mean() > 0.95
    found = in_onnxruntime(classifier.to_onnx(), X)
    if model is None:
        np.testing.assert_array_equal(found[0], classifier.predict(X))
    if given != "":
        np.testing.assert_allclose(found[-1], classifier.predict_proba(X), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="y has 2 columns, expected 3"):
        classifier.partial_fit(X, y[:, :2])
    with pytest.raises(ValueError, match="of 0 and 1"):
        OnnxClassifier().fit(X, y + (np.arange(150) % 3)[:, None])


def test_digits_as_well_as_scikit_learn():
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    options = {"hidden_layer_sizes": (32,), "max_iter": 20, "batch_size": 50, "random_state": 0}
    ours = OnnxClassifier(**options, lr=0.005).fit(X[:1200], y[:1200])
    with pytest.warns(ConvergenceWarning):
        theirs = MLPClassifier(**options, learning_rate_init=0.005).fit(X[:1200], y[:1200])
    assert ours.score(X[1200:], y[1200:]) > theirs.score(X[1200:], y[1200:]) - 0.02


# Models that are given.


def exported(labels, iris, classes=3):
    X, y = iris[0][: 50 * classes], LABELS[labels][iris[1][: 50 * classes]]
    with pytest.warns(ConvergenceWarning):
        pipeline = make_pipeline(
            StandardScaler(), MLPClassifier((6,), max_iter=1, random_state=0)
        ).fit(X, y)
    return pipeline, X, y


@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("labels", ["int", "string"])
def test_model_that_skl2onnx_wrote(iris, labels, classes, zipmap, tmp_path):
    pipeline, X, y = exported(labels, iris, classes)
    options = {} if zipmap else {"options": {"zipmap": False}}
    onnx.save(to_onnx(pipeline, X[:1], **options), tmp_path / "model.onnx")
    classifier = OnnxClassifier(tmp_path / "model.onnx", lr=0.05, max_iter=50, random_state=0)
    before = pipeline.score(X, y)
    classifier.fit(X, y)
    assert classifier.score(X, y) > max(0.95, before)
    np.testing.assert_array_equal(classifier.classes_, pipeline.classes_)
    found, probabilities = in_onnxruntime(classifier.to_onnx(), X)
    if zipmap:
        probabilities = np.array([[row[c] for c in pipeline.classes_] for row in probabilities])
    np.testing.assert_array_equal(found, classifier.predict(X))
    np.testing.assert_allclose(probabilities, classifier.predict_proba(X), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("columns", "head"), [(3, ""), (3, "Softmax"), (2, "Softmax"), (1, ""), (1, "Sigmoid")]
)
def test_model_without_labels(iris, columns, head):
    classes = max(columns, 2)
    X, y = iris[0][: 50 * classes], LABELS["string"][iris[1][: 50 * classes]]
    model = mlp_proto([4, 8, columns], head=head)
    classifier = OnnxClassifier(model, lr=0.05, random_state=0).fit(X, y)
    assert classifier.score(X, y) > 0.95
    assert [o.name for o in classifier.to_onnx().graph.output] == ["Y"]
    (values,) = in_onnxruntime(classifier.to_onnx(), X)
    values = values.astype(np.float64)
    if not head:
        values = np.exp(values) if columns > 1 else 1 / (1 + np.exp(-values))
    if columns == 1:
        values = np.hstack([1 - values, values])
    expected = values / values.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(classifier.predict_proba(X), expected, rtol=1e-4, atol=1e-6)


def test_given_weights_are_the_first(iris):
    X, y = iris
    model = mlp_proto([4, 5, 3])
    for initializer, is_same in ((None, True), ("zeros", False)):
        classifier = OnnxClassifier(model, lr=0.0, max_iter=1, initializer=initializer)
        found = initializers(classifier.fit(X, y).to_onnx())
        same = [np.array_equal(found[k], w) for k, w in initializers(model).items()]
        assert all(same) == is_same


def test_function_that_makes_the_model(iris):
    asked = []

    def make(num_features, num_outputs):
        asked.append((num_features, num_outputs))
        return mlp_proto([num_features, 7, num_outputs])

    X, y = iris
    OnnxClassifier(make, max_iter=1).fit(X, y)
    OnnxRegressor(make, max_iter=1).fit(X, X[:, :2])
    assert asked == [(4, 3), (4, 2)]


def test_frozen_weights_stay(iris):
    regressor = OnnxRegressor(mlp_proto([4, 5, 1]), frozen="W0", max_iter=2).fit(iris[0], iris[1])
    first, last = initializers(mlp_proto([4, 5, 1])), initializers(regressor.to_onnx())
    assert {name for name in first if np.array_equal(first[name], last[name])} == {"W0"}


def test_images_are_taken_by_models_that_want_them():
    X, y = (array[:200] for array in load_digits(n_class=3, return_X_y=True))
    X = (X / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, 1, 8, 8] X) => (float[N, 3] Y)
        <float[4, 1, 3, 3] filters = {FILTERS}, float[4, 3] W = {HEAD}>
        { c = Conv(X, filters)  r = Relu(c)  m = GlobalMaxPool(r)  f = Flatten(m)
          Y = MatMul(f, W) }""".replace("FILTERS", ", ".join(["1"] * 36)).replace(
            "HEAD", ", ".join(["0"] * 12)
        )
    )
    classifier = OnnxClassifier(
        model, initializer="auto", lr=0.05, max_iter=12, batch_size=20, random_state=0
    )
    assert classifier.fit(X, y).score(X, y) > 0.8
    with pytest.raises(ValueError, match="8 features"):
        classifier.predict(X[:, 0])


# scikit-learn's tools.


@pytest.fixture(scope="module")
def small():
    return OnnxClassifier(hidden_layer_sizes=(5,), lr=0.05, max_iter=15, threads=1, random_state=0)


def test_pipeline_grid_search_and_cross_validation(iris, small):
    X, y = iris
    pipeline = make_pipeline(StandardScaler(), small)
    grid = {
        "onnxclassifier__hidden_layer_sizes": [(3,), (6,)],
        "onnxclassifier__optimizer": ["adam", og.optimizers.SGD(momentum=0.9)],
    }
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2, error_score="raise").fit(X, y)
    assert search.best_score_ > 0.7
    alone = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
    np.testing.assert_array_equal(
        search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"]
    )
    scores = cross_val_score(OnnxClassifier(mlp_proto([4, 8, 3]), lr=0.05), X, y, n_jobs=2)
    assert len(scores) == 5
    assert min(scores) > 0.8


def threads_of(estimator):
    return estimator._training.__getstate__()["options"]["threads"]


def test_workers_have_a_share_of_the_cores(iris, small):
    loose = clone(small).set_params(threads=None, max_iter=1)
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        fits = joblib.Parallel(n_jobs=2)(joblib.delayed(loose.fit)(*iris) for _ in range(2))
    assert [threads_of(fit) for fit in fits] == [1, 1]
    with threadpoolctl.threadpool_limits(1, user_api="openmp"):
        assert threads_of(clone(loose).fit(*iris)) == 1
    assert threads_of(clone(loose).set_params(threads=3).fit(*iris)) == 3


def test_threads_predict_from_one_estimator(iris, small):
    fitted = clone(small).fit(*iris)
    parallel = joblib.Parallel(n_jobs=4, backend="threading")
    found = parallel(joblib.delayed(fitted.predict_proba)(iris[0][:k]) for k in range(1, 40))
    expected = fitted.predict_proba(iris[0])
    for rows in found:
        np.testing.assert_allclose(rows, expected[: len(rows)], rtol=1e-5)


def test_inside_another_estimator(iris):
    y = iris[0][:, :2] + 1
    one = OnnxRegressor(hidden_layer_sizes=(), optimizer="sgd", lr=0.1, random_state=0)
    model = MultiOutputRegressor(one)
    assert model.fit(iris[0], y).score(iris[0], y) > 0.99


def by_pickle(estimator):
    return pickle.loads(pickle.dumps(estimator))


def by_joblib(estimator):
    file = io.BytesIO()
    joblib.dump(estimator, file)
    file.seek(0)
    return joblib.load(file)


@pytest.mark.parametrize("copy", [by_pickle, by_joblib])
@pytest.mark.parametrize("optimizer", og.optimizers.names())
def test_a_pickled_estimator_goes_on_as_the_first_one(iris, copy, optimizer):
    X, y = iris
    first = OnnxClassifier(
        hidden_layer_sizes=(5,), optimizer=optimizer, max_iter=3, warm_start=True, random_state=0
    ).fit(X, y)
    second = copy(first)
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))
    np.testing.assert_array_equal(
        first.fit(X, y).predict_proba(X), second.fit(X, y).predict_proba(X)
    )
    assert first.n_iter_ == second.n_iter_ == 6


def test_lbfgs_is_that_of_logistic_regression(iris):
    X, y = iris[0].astype(np.float64), iris[1]
    expected = LogisticRegression(C=1.0, tol=1e-8, max_iter=1000).fit(X, y)
    classifier = OnnxClassifier(
        hidden_layer_sizes=(),
        loss="softmax_cross_entropy",
        optimizer=og.optimizers.LBFGS(gradient_tolerance=1e-10, change_tolerance=1e-15),
        penalty=og.losses.Penalty(l2=0.5 / 150),
        tol=None,
        max_iter=10,
        random_state=0,
    ).fit(X, y)
    np.testing.assert_allclose(
        classifier.predict_proba(X), expected.predict_proba(X), rtol=1e-4, atol=1e-6
    )


def test_options_of_training_arrive(iris):
    X, y = iris
    options = {**PLAIN, "optimizer": "sgd", "max_iter": 2}
    plain = OnnxClassifier(**options, lr=0.1).fit(X, y)
    half = OnnxClassifier(**options, lr=0.1, schedule=og.schedules.Exponential(0.5)).fit(X, y)
    assert plain.history_["lr"] == [0.1, 0.1]
    assert half.history_["lr"] == pytest.approx([0.1, 0.05])
    still = OnnxClassifier(**options, lr=0.1, clip_norm=0.0 + 1e-12).fit(X, y)
    first = OnnxClassifier(**options, lr=0.0).fit(X, y)
    np.testing.assert_allclose(still.predict_proba(X), first.predict_proba(X), rtol=1e-5)
    group = og.optimizers.ParameterGroup("layer0.*", lr=0.0)
    grouped = initializers(OnnxClassifier(**options, lr=0.1, groups=[group]).fit(X, y).to_onnx())
    before = initializers(first.to_onnx())
    same = {name for name in before if np.array_equal(before[name], grouped[name])}
    assert same == {"layer0.weight", "layer0.bias", "classes"}
    whole = OnnxClassifier(**options, lr=0.1, batch_size=150).fit(X, y)
    parts = OnnxClassifier(**options, lr=0.1, batch_size=50, accumulate=3).fit(X, y)
    np.testing.assert_allclose(parts.predict_proba(X), whole.predict_proba(X), rtol=1e-4)


def test_clone_is_not_fitted(iris, small):
    fitted = clone(small).fit(*iris)
    with pytest.raises(NotFittedError):
        clone(fitted).to_onnx()
    again = clone(fitted).fit(*iris)
    assert again.to_onnx() == fitted.to_onnx()


# Going on.


def test_parts_of_a_training_are_the_whole(iris):
    X, y = iris
    whole = OnnxClassifier(**PLAIN, max_iter=6, batch_size=40).fit(X, y)
    warm = OnnxClassifier(**PLAIN, max_iter=2, batch_size=40, warm_start=True)
    step = OnnxClassifier(**PLAIN, max_iter=99, batch_size=40)
    for _ in range(3):
        warm.fit(X, y)
    for _ in range(6):
        step.partial_fit(X, y, classes=[0, 1, 2])
    for other in (warm, step):
        np.testing.assert_array_equal(other.predict_proba(X), whole.predict_proba(X))
        assert other.loss_curve_ == whole.loss_curve_
        assert other.n_iter_ == 6


def test_partial_fit_of_a_regressor_in_chunks(iris):
    X = iris[0]
    y = X @ [1.0, 2.0, 0.0, -1.0]
    regressor = OnnxRegressor(hidden_layer_sizes=(), optimizer="sgd", lr=0.1, random_state=0)
    for _, start in itertools.product(range(60), range(0, 150, 50)):
        regressor.partial_fit(X[start : start + 50], y[start : start + 50])
    assert regressor.score(X, y) > 0.999


def test_learning_rate_can_change_between_warm_starts(iris):
    classifier = OnnxClassifier(**PLAIN, max_iter=2, warm_start=True).fit(*iris)
    before = classifier.to_onnx()
    classifier.set_params(lr=0.0).fit(*iris)
    assert classifier.to_onnx() == before


def test_classes_of_partial_fit(iris):
    X, y = iris
    with pytest.raises(ValueError, match="classes must be passed"):
        OnnxClassifier().partial_fit(X, y)
    classifier = OnnxClassifier(random_state=0).partial_fit(X[:20], y[:20], classes=[0, 1, 2])
    with pytest.raises(ValueError, match="not among the classes"):
        classifier.partial_fit(X, y + 1)


def test_random_state(iris):
    def fitted(random_state):
        return OnnxRegressor(max_iter=2, random_state=random_state).fit(iris[0], iris[1]).to_onnx()

    assert fitted(1) == fitted(1)
    assert fitted(1) != fitted(2)
    assert fitted(None) != fitted(None)
    assert fitted(np.random.RandomState(3)) == fitted(np.random.RandomState(3))


# Stopping, weights of rows and classes, callbacks.


def test_early_stopping_keeps_the_best_epoch(iris):
    X, y = iris
    classifier = OnnxClassifier(
        hidden_layer_sizes=(50,),
        early_stopping=True,
        validation_fraction=0.3,
        lr=0.1,
        n_iter_no_change=4,
        max_iter=300,
        random_state=0,
    ).fit(X, y)
    best = int(np.argmin(classifier.validation_losses_)) + 1
    assert classifier.n_iter_ < 300
    assert classifier.n_iter_ >= best
    assert len(classifier.validation_scores_) == classifier.n_iter_
    assert classifier.stop_reason_
    shorter = clone(classifier).set_params(max_iter=best).fit(X, y)
    np.testing.assert_array_equal(shorter.predict_proba(X), classifier.predict_proba(X))


def test_training_ends_when_the_loss_does_not_fall(iris):
    regressor = OnnxRegressor(lr=0.0, n_iter_no_change=3).fit(iris[0], iris[1])
    assert regressor.n_iter_ == 4
    assert regressor.validation_losses_ is None
    regressor = OnnxRegressor(lr=0.0, tol=None, max_iter=20).fit(iris[0], iris[1])
    assert regressor.n_iter_ == 20


def test_class_weight_is_a_weight_of_rows(iris):
    X, y = iris[0], np.minimum(iris[1], 1)
    options = {**PLAIN, "max_iter": 5}
    by_class = OnnxClassifier(**options, class_weight={0: 3.0, 1: 0.5}).fit(X, y)
    by_row = OnnxClassifier(**options).fit(X, y, np.where(y == 0, 3.0, 0.5))
    np.testing.assert_allclose(by_class.predict_proba(X), by_row.predict_proba(X), rtol=1e-6)
    balanced = OnnxClassifier(**options, class_weight="balanced").fit(X, y)
    same = OnnxClassifier(**options).fit(X, y, np.where(y == 0, 1.5, 0.75))
    np.testing.assert_allclose(balanced.predict_proba(X), same.predict_proba(X), rtol=1e-6)
    with pytest.raises(ValueError, match="balanced"):
        balanced.partial_fit(X, y)


def test_callbacks_and_verbosity(iris, capsys):
    epochs = []
    OnnxRegressor(max_iter=3, callbacks=[lambda trainer, logs: epochs.append(logs["epoch"])]).fit(
        *iris
    )
    assert epochs == [1, 2, 3]
    assert capsys.readouterr().err == ""
    OnnxRegressor(max_iter=3, verbose=1).fit(*iris)
    assert "train_loss" in capsys.readouterr().err


# Mistakes.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": "rellu"}, "activation: unknown 'rellu'"),
        ({"hidden_layer_sizes": (5, 0)}, "hidden_layer_sizes"),
        ({"optimizer": "adamm"}, "'adam'"),
        ({"loss": "cross"}, "loss: unknown 'cross'"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_iter": 0}, "epochs"),
        ({"dtype": "int8"}, "dtype"),
        ({"initializer": "glorot"}, "scheme"),
        ({"model": mlp_proto([4, 5, 2])}, "2 columns of scores"),
        ({"loss": "binary_cross_entropy"}, "softmax_cross_entropy"),
        ({"loss": "log_loss"}, "negative_log_likelihood"),
        ({"penalty": "l3"}, "penalty"),
    ],
)
def test_wrong_options_are_named(iris, options, words):
    with pytest.raises(ValueError, match=words):
        OnnxClassifier(**options).fit(*iris)


def test_weights_in_another_file(iris, tmp_path):
    X, y = iris
    here = mlp_proto([4, 30, 3])
    onnx.save(
        onnx.ModelProto.FromString(here.SerializeToString()),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        size_threshold=0,
    )
    options = {"max_iter": 3, "lr": 0.01, "random_state": 0}
    one = OnnxClassifier(tmp_path / "model.onnx", **options).fit(X, y)
    other = by_pickle(OnnxClassifier(here, **options).fit(X, y))
    for file in tmp_path.iterdir():
        file.unlink()
    np.testing.assert_array_equal(by_pickle(one).predict_proba(X), other.predict_proba(X))
    found, expected = initializers(one.to_onnx()), initializers(other.to_onnx())
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_files_that_are_no_models(iris, tmp_path):
    (tmp_path / "text.onnx").write_text("this is not a model")
    for path in ("missing.onnx", tmp_path / "text.onnx"):
        with pytest.raises(og.ModelError, match=Path(path).name):
            OnnxClassifier(path).fit(*iris)


def test_wrong_kind_of_model(iris):
    X, y = iris
    model = multi_layer_perceptron([4, 3], head="softmax")
    with pytest.raises(ValueError, match="Use OnnxClassifier"):
        OnnxRegressor(model).fit(X, y)
    two = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, 2] A, float[N, 2] B) => (float[N, 2] Y) <float[2, 2] w = {1, 2, 3, 4}>
        { s = Add(A, B)  Y = MatMul(s, w) }"""
    )
    with pytest.raises(ValueError, match="one input of numbers"):
        OnnxRegressor(two).fit(X, X[:, :2])


def test_labels_that_the_model_does_not_list(iris):
    model = multi_layer_perceptron([4, 3], head="softmax", classes=LABELS["string"])
    with pytest.raises(ValueError, match=r"labels \['rosa'\] that are not among the classes"):
        OnnxClassifier(model).fit(iris[0], np.where(iris[1] == 1, "rosa", "setosa"))


def test_sizes_of_layers():
    with pytest.raises(og.OptionError, match="layer_sizes"):
        multi_layer_perceptron([4])
    with pytest.raises(og.OptionError, match="is for one score"):
        multi_layer_perceptron([4, 3], head="sigmoid")
    with pytest.raises(og.OptionError, match="head: unknown"):
        multi_layer_perceptron([4, 1], head="softmaxx")
    network = multi_layer_perceptron([20, 30, 2], seed=3)
    weights = initializers(network)
    # As scikit-learn draws: uniform within sqrt(6 / (inputs + outputs)).
    for i, sizes in enumerate(itertools.pairwise([20, 30, 2])):
        bound = np.sqrt(6 / sum(sizes))
        largest = np.abs(weights[f"layer{i}.weight"]).max()
        assert 0.8 * bound < largest <= bound * (1 + 1e-6)
        assert 0 < np.abs(weights[f"layer{i}.bias"]).max() <= bound * (1 + 1e-6)


def test_import_of_the_estimators_is_asked_for():
    done = run_python("import sys, onnxgrad; print('onnxgrad.sklearn' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr
    assert "sklearn" in sys.modules


def test_example_of_the_documentation(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "docs/scikit-learn.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "scikit-learn.md", "exec"), {})
    accuracy = re.findall(r"0\.\d+", capsys.readouterr().out)
    assert float(accuracy[1]) > 0.9
