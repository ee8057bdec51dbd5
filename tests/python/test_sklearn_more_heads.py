"""Estimators that are no layers: kernels, trees, ensembles. The loss that their files ask for.

Each is exported, compared with stock onnxruntime, and trained by `loss="auto"`: the loss is a
proper one of its outputs, it falls, and the labels that the file returns do not get worse.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from skl2onnx import to_onnx
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    GradientBoostingClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC, LinearSVC, NuSVC
from sklearn.tree import DecisionTreeClassifier

import onnxgrad as og
import zoo

SOFTMAX, NLL, HINGE, BCE = (
    "softmax_cross_entropy",
    "negative_log_likelihood",
    "hinge",
    "binary_cross_entropy",
)
LEAVES = "*_weights"
G = np.random.default_rng(0)
X = G.normal(size=(80, 4)).astype(np.float32)
SCORE = X[:, 0] - X[:, 1] + 0.3 * G.normal(size=80)
LABELS = {
    "2": (SCORE > 0).astype(int),
    "3": np.digitize(SCORE, np.quantile(SCORE, [0.33, 0.66])),
}
LABELS |= {
    "2 texts": np.array(["no", "yes"])[LABELS["2"]],
    "3 texts": np.array(["ash", "elm", "oak"])[LABELS["3"]],
}


class Case(NamedTuple):
    """An estimator and the losses for two classes and for three."""

    make: Any
    two: str
    three: str
    options: dict[str, Any] = {"zipmap": False}  # noqa: RUF012
    trainable: str | None = None
    tolerance: float = 1e-4


def linear() -> LogisticRegression:
    return LogisticRegression()


CASES = {
    "svc": Case(lambda: SVC(), HINGE, SOFTMAX),
    "svc_zip_map": Case(lambda: SVC(), HINGE, SOFTMAX, {}),
    "svc_raw": Case(lambda: SVC(), HINGE, SOFTMAX, {"zipmap": False, "raw_scores": True}),
    "svc_probability": Case(
        lambda: SVC(probability=True, random_state=0), NLL, NLL, tolerance=5e-3
    ),
    "nu_svc": Case(lambda: NuSVC(nu=0.3), HINGE, SOFTMAX),
    "linear_svc": Case(lambda: LinearSVC(), HINGE, HINGE, {"raw_scores": True}),
    "columns": Case(linear, BCE, SOFTMAX, {"zipmap": "columns"}),
    "gaussian_bayes": Case(lambda: GaussianNB(), SOFTMAX, SOFTMAX),
    "bernoulli_bayes": Case(lambda: BernoulliNB(), SOFTMAX, SOFTMAX),
    "boosting": Case(
        lambda: GradientBoostingClassifier(n_estimators=4), BCE, SOFTMAX, trainable=LEAVES
    ),
    "boosting_raw": Case(
        lambda: GradientBoostingClassifier(n_estimators=4),
        HINGE,
        SOFTMAX,
        {"zipmap": False, "raw_scores": True},
        LEAVES,
    ),
    "ada_boost": Case(lambda: AdaBoostClassifier(n_estimators=3), NLL, NLL),
    "bagging": Case(lambda: BaggingClassifier(linear(), n_estimators=3), NLL, NLL),
    "voting": Case(
        lambda: VotingClassifier(
            [("a", linear()), ("b", GaussianNB())], voting="soft", flatten_transform=False
        ),
        NLL,
        NLL,
    ),
    "stacking": Case(
        lambda: StackingClassifier(
            [("a", linear()), ("b", DecisionTreeClassifier(max_depth=2))], linear()
        ),
        BCE,
        SOFTMAX,
    ),
    "calibrated": Case(lambda: CalibratedClassifierCV(linear(), cv=2), NLL, NLL),
    "calibrated_margins": Case(lambda: CalibratedClassifierCV(LinearSVC(), cv=2), NLL, NLL),
    "one_vs_rest": Case(lambda: OneVsRestClassifier(linear()), BCE, NLL),
}


@functools.cache
def exported(name: str, labels: str) -> bytes:
    case = CASES[name]
    estimator = case.make().fit(X, LABELS[labels])
    options = {id(estimator): case.options}
    return to_onnx(
        estimator, X[:1], options=options, target_opset={"": 18, "ai.onnx.ml": 3}
    ).SerializeToString()


def compare(got: Any, want: Any, tolerance: float) -> None:
    if isinstance(want, list):
        assert [[*row] for row in got] == [[*row] for row in want]
        got, want = ([[*row.values()] for row in maps] for maps in (got, want))
    want = np.asarray(want)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("name", CASES)
def test_the_loss_that_a_classifier_asks_for(name: str, labels: str) -> None:
    case, y = CASES[name], LABELS[labels]
    model = exported(name, labels)
    session = ort.InferenceSession(model)
    for got, want in zip(
        og.InferenceSession(model).run(None, {"X": X}), session.run(None, {"X": X}), strict=True
    ):
        compare(got, want, case.tolerance)
    trainer = og.Trainer(model, optimizer=og.optimizers.Adam(lr=0.003), trainable=case.trainable)
    line = trainer.session.loss_line
    assert trainer.session.loss_name == (case.two if labels[0] == "2" else case.three), line
    before = np.mean(np.asarray(session.run(None, {"X": X})[0]).ravel() == y)
    trainer.fit(X, y, epochs=8, batch_size=20, shuffle=False, verbose=0)
    losses = trainer.history["train_loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0], line
    after = np.mean(np.asarray(trainer.predict(X)).ravel() == y)
    assert after >= before - 0.15, line  # the columns are those of the labels


def test_a_gaussian_process_is_a_regression() -> None:
    y = np.sin(X[:, :1]).astype(np.float32)
    process = GaussianProcessRegressor(RBF(1.0), alpha=0.1).fit(X[:40], y[:40, 0])
    trainer = og.Trainer(to_onnx(process, X[:1], target_opset=18), lr=0.003)
    assert trainer.session.loss_name == "squared_error"
    assert trainer.session.scores_name == "GPmean"
    trainer.fit(X, y, epochs=4, verbose=0)
    assert trainer.history["train_loss"][-1] < trainer.history["train_loss"][0]


def test_several_labels_in_a_row() -> None:
    y = np.stack([LABELS["2"], X[:, 2] > 0], axis=1).astype(int)
    network = MLPClassifier((5,), max_iter=30, random_state=0).fit(X, y)
    model = to_onnx(network, X[:1], options={id(network): {"zipmap": False}}, target_opset=18)
    trainer = og.Trainer(model, optimizer="adam")
    assert trainer.session.loss_line.startswith("loss: binary cross-entropy on 'add_result1'")
    trainer.fit(X, y.astype(np.float32), epochs=4, verbose=0)
    assert trainer.history["train_loss"][-1] < trainer.history["train_loss"][0]


@pytest.mark.parametrize(
    ("name", "transform", "expected"),
    [
        ("lightgbm_classifier", None, SOFTMAX),
        ("lightgbm_classifier", "NONE", SOFTMAX),  # multi:softmax of XGBoost: raw scores
        ("xgboost_classifier", None, BCE),
    ],
)
def test_boosted_trees_of_onnxmltools(name: str, transform: str | None, expected: str) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(zoo.load(name))
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "post_transform" and transform is not None:
            attribute.s = transform.encode()
    data = zoo.stored(name)
    trainer = og.Trainer(model, lr=0.02, optimizer="adam", trainable=LEAVES)
    assert trainer.session.loss_name == expected
    trainer.fit({"X": data["in/X"]}, data["in/label"], epochs=5, verbose=0)
    assert trainer.history["train_loss"][-1] < trainer.history["train_loss"][0]
    trained = trainer.trained_model().SerializeToString()
    (labels, *_) = ort.InferenceSession(trained).run(None, {"X": data["in/X"]})
    np.testing.assert_array_equal(trainer.predict({"X": data["in/X"]}), labels)


def test_scores_that_labels_are_votes_of_are_no_scores_of_classes() -> None:
    """Three pairs of three classes: a column for each pair, not for each class."""
    pairs = SVC(decision_function_shape="ovo").fit(X, LABELS["3"])
    options = {id(pairs): {"zipmap": False, "raw_scores": True}}
    model = to_onnx(pairs, X[:1], options=options, target_opset=18)
    with pytest.raises(og.ModelError, match="several outputs could take the loss"):
        og.Trainer(model)
