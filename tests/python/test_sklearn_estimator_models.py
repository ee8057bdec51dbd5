"""Models of the estimators: networks by layer sizes, losses, given models; their files."""

import itertools

import numpy as np
import onnx
import pytest
from skl2onnx import to_onnx
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import onnxgrad as og
from estimator_data import LABELS, PLAIN, by_pickle, in_onnxruntime
from onnxgrad.sklearn import OnnxClassifier, OnnxRegressor, multi_layer_perceptron
from support import initializers, mlp_proto

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
def test_several_labels_per_row(iris, given, loss):
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
    with pytest.raises(ValueError, match="only 0 and 1"):
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


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", ["log_loss", "hinge", "modified_huber"])
def test_linear_models_that_skl2onnx_wrote(iris, loss, classes):
    X, y = iris[0][150 - 50 * classes :], iris[1][150 - 50 * classes :]  # not separable
    linear = SGDClassifier(loss=loss, random_state=0).fit(X, y)
    model = to_onnx(linear, X[:1], options={"zipmap": False})
    for max_iter, lr in ((1, 0.0), (30, 0.05)):
        classifier = OnnxClassifier(model, lr=lr, max_iter=max_iter, random_state=0).fit(X, y)
        found, values = in_onnxruntime(classifier.to_onnx(), X)
        np.testing.assert_array_equal(found, classifier.predict(X))
        if loss == "hinge":
            margins = values[:, 1] if classes == 2 else values
            np.testing.assert_allclose(margins, classifier.decision_function(X), rtol=1e-5)
        else:
            np.testing.assert_allclose(values, classifier.predict_proba(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Ridge, SGDRegressor])
def test_linear_regressions_that_skl2onnx_wrote(iris, kind):
    X, y = iris[0], iris[0] @ [1.0, 2.0, 3.0, 4.0]
    model = to_onnx(kind().fit(X, y), X[:1])
    regressor = OnnxRegressor(model, optimizer="lbfgs", max_iter=20).fit(X, y)
    assert regressor.score(X, y) > 0.9999
    found = in_onnxruntime(regressor.to_onnx(), X)[0]
    np.testing.assert_allclose(found.ravel(), regressor.predict(X), rtol=1e-5)


def test_numbers_of_words_as_input():
    words = np.random.default_rng(0).integers(0, 5, (200, 3))
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (int64[N, 3] words) => (float[N, 2] Y)
        <float[5, 2] table = {1, 0, 0, 1, 1, 1, 2, 0, 0, 2}, float[2, 2] W = {1, 2, 3, 4},
         int64[1] axes = {1}>
        { e = Gather(table, words)  s = ReduceSum<keepdims = 0>(e, axes)  Y = MatMul(s, W) }"""
    )
    has_two = (words == 2).any(axis=1)
    classifier = OnnxClassifier(model, lr=0.1, random_state=0).fit(words, has_two)
    assert classifier.score(words, has_two) > 0.95
    assert classifier.predict(words).dtype == bool


NORMALISED = """<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 4] X) => (float[N, 3] Y)
<float[4, 3] W = {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1}, float[3] scale = {1, 1, 1},
 float[3] shift = {0, 0, 0}, float[3] mean = {5, 5, 5}, float[3] variance = {9, 9, 9}>
{ a = MatMul(X, W)  Y = BatchNormalization(a, scale, shift, mean, variance) }"""


def test_batch_statistics_are_kept(iris):
    X, y = iris
    model = onnx.parser.parse_model(NORMALISED)
    options = {"lr": 0.02, "batch_size": 50, "random_state": 0}
    still = OnnxClassifier(model, training_mode=False, max_iter=2, **options).fit(X, y)
    assert initializers(still.to_onnx())["mean"].tolist() == [5, 5, 5]
    first = OnnxClassifier(model, max_iter=40, warm_start=True, **options).fit(X, y)
    found = initializers(first.to_onnx())
    values = X @ found["W"]
    np.testing.assert_allclose(found["mean"], values.mean(axis=0), atol=0.3)
    np.testing.assert_allclose(found["variance"], values.var(axis=0), rtol=0.3)
    assert first.score(X, y) > 0.8
    second = by_pickle(first)
    np.testing.assert_array_equal(
        first.fit(X, y).predict_proba(X), second.fit(X, y).predict_proba(X)
    )


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


def test_images_as_input():
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


def test_a_new_head_for_the_classes_of_y(iris):
    X, y = iris
    names = np.array(["a", "b", "c"])[y]
    for head in (3, {"classes": 3, "init": "zeros"}):
        model = OnnxClassifier(mlp_proto((4, 6, 2), head="Softmax"), new_head=head, max_iter=3)
        fitted = clone(model).fit(X, names)
        assert fitted.predict_proba(X).shape == (150, 3)
        assert set(fitted.predict(X)) <= set(names)
        assert fitted.get_params()["new_head"] == head
    with pytest.raises(ValueError, match="2 columns"):
        OnnxClassifier(mlp_proto((4, 6, 2), head="Softmax")).fit(X, names)


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


def test_no_gradient_before_a_stop(iris):
    X, y = iris
    model = onnx.parser.parse_model(NORMALISED)
    options = {"lr": 0.02, "max_iter": 2, "training_mode": False, "stop_gradient": "a"}
    stopped = OnnxClassifier(model, **options).fit(X, y)
    assert by_pickle(stopped).get_params()["stop_gradient"] == "a"
    before, after = initializers(model), initializers(stopped.to_onnx())
    np.testing.assert_array_equal(after["W"], before["W"])
    assert not np.array_equal(after["scale"], before["scale"])
