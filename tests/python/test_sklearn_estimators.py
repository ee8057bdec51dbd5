"""OnnxRegressor and OnnxClassifier: scikit-learn's own checks and tools, going on, mistakes."""

import io
import itertools
import re
import sys
from pathlib import Path

import joblib
import numpy as np
import onnx
import pytest
import threadpoolctl
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import onnxgrad as og
from estimator_data import LABELS, PLAIN, by_pickle
from onnxgrad.sklearn import OnnxClassifier, OnnxRegressor, multi_layer_perceptron
from support import mlp_proto, run_python


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


def by_joblib(estimator):
    file = io.BytesIO()
    joblib.dump(estimator, file)
    file.seek(0)
    return joblib.load(file)


@pytest.mark.parametrize("copy", [by_pickle, by_joblib])
@pytest.mark.parametrize("optimizer", og.optimizers.names())
def test_a_pickled_estimator_continues_like_the_original(iris, copy, optimizer):
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


def test_a_pickled_estimator_draws_like_the_original(iris):
    """Dropout continues in its stream of random numbers."""
    model = multi_layer_perceptron([4, 20, 3], head="softmax", seed=1)
    place = next(i for i, node in enumerate(model.graph.node) if node.op_type == "Relu")
    after = model.graph.node[place].output[0]
    model.graph.node[place].output[0] = "kept"
    model.graph.node.insert(place + 1, onnx.helper.make_node("Dropout", ["kept"], [after]))
    options = {"max_iter": 2, "warm_start": True, "random_state": 0}
    first = OnnxClassifier(model, **options).fit(*iris)
    second = by_pickle(first)
    np.testing.assert_array_equal(
        first.fit(*iris).predict_proba(iris[0]), second.fit(*iris).predict_proba(iris[0])
    )


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


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_validation_scores_of_a_regressor(iris, loss):
    """Scores are R^2 on the held-out rows: with all rows but one, on nearly all."""
    X, y = iris[0], np.exp(iris[0][:, :2] / 2).sum(axis=1)
    regressor = OnnxRegressor(
        hidden_layer_sizes=(20,),
        loss=loss,
        lr=0.01,
        max_iter=30,
        tol=None,
        early_stopping=True,
        validation_fraction=0.9,
        random_state=0,
    ).fit(X, y)
    assert len(regressor.validation_scores_) == regressor.n_iter_ == 30
    assert regressor.validation_scores_[-1] == pytest.approx(regressor.score(X, y), abs=0.05)
    assert OnnxRegressor(max_iter=2).fit(X, y).validation_scores_ is None


def test_sparse_rows_are_refused_with_a_hint(iris):
    sparse = pytest.importorskip("scipy.sparse")
    rows = sparse.csr_array(iris[0])
    with pytest.raises(TypeError, match="toarray"):
        OnnxRegressor(max_iter=1).fit(rows, iris[1])


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


def test_files_that_are_not_models(iris, tmp_path):
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
    with pytest.raises(ValueError, match="one numeric input"):
        OnnxRegressor(two).fit(X, X[:, :2])


def test_labels_that_the_model_does_not_list(iris):
    model = multi_layer_perceptron([4, 3], head="softmax", classes=LABELS["string"])
    with pytest.raises(ValueError, match=r"labels \['rosa'\] that are not among the classes"):
        OnnxClassifier(model).fit(iris[0], np.where(iris[1] == 1, "rosa", "setosa"))


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
