"""Class weights and sample weights where a row has several labels; estimators on such models.

The loss at position (b, t) has the weight w[b] c[label]; a mean is divided by the sum of the
weights. NumPy computes all expected values.
"""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

import onnxgrad as og
from onnxgrad.cli import app
from onnxgrad.sklearn import OnnxClassifier, OnnxRegressor
from test_class_axis import LABELS, SOFT, B, T, V, W, X, log_softmax, model

IGNORED = -100
CLASS_WEIGHT = {0: 0.5, 2: 3.0, 3: 0.25}
RNG = np.random.default_rng(11)
ROW_WEIGHTS = RNG.uniform(0.5, 2.0, size=B)
POSITION_WEIGHTS = RNG.uniform(0.5, 2.0, size=(B, T))
WITH_IGNORED = np.where(RNG.random((B, T)) < 0.3, IGNORED, LABELS)
LOSS = og.losses.SoftmaxCrossEntropy(ignore_index=IGNORED)


def weights_of(labels, class_weight):
    if class_weight == "balanced":
        classes, counts = np.unique(labels[labels != IGNORED], return_counts=True)
        share = counts.sum() / (len(classes) * counts)
        class_weight = dict(zip(classes.tolist(), share, strict=True))
    table = np.array([class_weight.get(label, 1.0) for label in range(V)])
    return np.where(labels == IGNORED, 0, table[np.where(labels == IGNORED, 0, labels)])


def after_a_step(labels, counts, rate, x=X):
    """W after one step of gradient descent on all rows, and the loss before it; in float64."""
    x = x.astype(float)
    log_p = log_softmax(x @ W.astype(float))
    number = np.where(labels == IGNORED, 0, labels)
    loss = -(np.take_along_axis(log_p, number[..., None], -1)[..., 0] * counts).sum()
    slope = np.exp(log_p) - np.eye(V)[number]
    gradient = np.einsum("btd,btv->dv", x, slope * counts[..., None])
    return W - rate * gradient / counts.sum(), loss / counts.sum()


def rows_weight(weight):
    return 1.0 if weight is None else weight if weight.ndim > 1 else weight[:, None]


@pytest.mark.parametrize(
    "weight", [None, ROW_WEIGHTS, POSITION_WEIGHTS], ids=["", "rows", "positions"]
)
@pytest.mark.parametrize("class_weight", [CLASS_WEIGHT, "balanced", None])
@pytest.mark.parametrize("labels", [LABELS, WITH_IGNORED], ids=["", "ignored"])
@pytest.mark.parametrize("axis", [1, 2])
def test_a_step_by_hand(axis, labels, class_weight, weight):
    counts = weights_of(labels, class_weight or {}) * rows_weight(weight)
    expected, loss = after_a_step(labels, counts, 0.5)
    trainer = og.Trainer(model(axis=axis), LOSS, "sgd", lr=0.5)
    trainer.fit(X, labels, weight, class_weight=class_weight, epochs=1, batch_size=B, verbose=0)
    np.testing.assert_allclose(trainer.session.state()["W"], expected, rtol=1e-4, atol=1e-5)
    assert trainer.history["train_loss"][0] == pytest.approx(loss, rel=1e-5)


def test_evaluation_by_hand():
    trainer = og.Trainer(model(), LOSS)
    counts = weights_of(WITH_IGNORED, {}) * POSITION_WEIGHTS
    found = trainer.evaluate(X, WITH_IGNORED, POSITION_WEIGHTS, metrics="f1")
    assert found.loss == pytest.approx(after_a_step(WITH_IGNORED, counts, 0)[1], rel=1e-5)
    right = (X @ W).argmax(-1) == WITH_IGNORED
    assert found.accuracy == pytest.approx((right * counts).sum() / counts.sum())
    from sklearn.metrics import f1_score

    known = WITH_IGNORED != IGNORED
    expected = f1_score(
        WITH_IGNORED[known],
        (X @ W).argmax(-1)[known],
        average="macro",
        sample_weight=POSITION_WEIGHTS[known],
    )
    assert found.metrics["f1"] == pytest.approx(expected)


@pytest.mark.parametrize("class_weight", [CLASS_WEIGHT, "balanced"])
def test_batches_and_pickles(class_weight):
    def batches():
        return iter([(X[i : i + 2], WITH_IGNORED[i : i + 2]) for i in range(0, B, 2)])

    options = {"class_weight": class_weight, "epochs": 2, "shuffle": False, "verbose": 0}
    arrays = og.Trainer(model(), LOSS, "adam", lr=0.1)
    arrays.fit(X, WITH_IGNORED, batch_size=2, **options)
    chunks = og.Trainer(model(), LOSS, "adam", lr=0.1).fit(batches, **options)
    for each in (chunks, pickle.loads(pickle.dumps(arrays))):
        np.testing.assert_array_equal(each.session.state()["W"], arrays.session.state()["W"])
    again = pickle.loads(pickle.dumps(arrays))
    for each in (arrays, again):
        each.fit(X, WITH_IGNORED, batch_size=2, **options)
    np.testing.assert_array_equal(again.session.state()["W"], arrays.session.state()["W"])


def test_a_fit_continues_with_weights_of_positions():
    """Rows first, then positions: weights and optimizer state are kept."""
    trainer = og.Trainer(model(), LOSS, "sgd", lr=0.5)
    trainer.fit(X, LABELS, ROW_WEIGHTS, epochs=1, batch_size=B, verbose=0)
    middle = trainer.session.state()["W"]
    trainer.fit(X, LABELS, POSITION_WEIGHTS, epochs=1, batch_size=B, verbose=0)
    np.testing.assert_allclose(
        middle, after_a_step(LABELS, np.ones((B, T)) * ROW_WEIGHTS[:, None], 0.5)[0], rtol=1e-4
    )
    assert trainer.session.steps == 2
    assert not np.array_equal(trainer.session.state()["W"], middle)


def test_wrong_weights_are_refused():
    trainer = og.Trainer(model(), LOSS)
    with pytest.raises(og.DataError, match="18 sample weights for 6 rows") as info:
        trainer.fit(X, LABELS, POSITION_WEIGHTS[:, :3], epochs=1, verbose=0)
    assert "or for each label" in str(info.value)
    with pytest.raises(og.DataError, match="weight of row 1 is -1"):
        trainer.fit(X, LABELS, np.where(np.arange(B * T) == T, -1, 1).reshape(B, T), verbose=0)
    with pytest.raises(og.OptionError, match="class_weight"):
        trainer.fit(X, LABELS, class_weight="even", verbose=0)
    soft = og.Trainer(model(), og.losses.SoftmaxCrossEntropy(one_hot=True, axis=-1))
    with pytest.raises(og.DataError, match="one class for each row"):
        soft.fit(X, SOFT, class_weight=CLASS_WEIGHT, verbose=0)


def test_the_command_line(tmp_path):
    (tmp_path / "m.onnx").write_bytes(model().SerializeToString())
    np.savez(tmp_path / "rows.npz", X=X, label=WITH_IGNORED)
    loss = f"cross_entropy:ignore_index={IGNORED}"
    arguments = ["train", "m.onnx", "--data", "rows.npz", "--target", "label", "--loss", loss]
    arguments += ["--class-weight", "0=0.5,2=3,3=0.25", "--optimizer", "sgd", "--lr", "0.5"]
    arguments += ["--epochs", "1", "--batch-size", str(B), "-o", "o.onnx"]
    expected, _ = after_a_step(WITH_IGNORED, weights_of(WITH_IGNORED, CLASS_WEIGHT), 0.5)
    for how in ([], ["--stream"]):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            done = CliRunner().invoke(app, [*arguments, *how])
        assert done.exit_code == 0, done.output
        found = og.InferenceSession(str(tmp_path / "o.onnx")).run(
            None, {"X": np.eye(3)[None].astype(np.float32)}
        )
        np.testing.assert_allclose(found[0][0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("class_weight", [None, CLASS_WEIGHT, "balanced"])
def test_a_classifier_of_positions(axis, class_weight):
    estimator = OnnxClassifier(
        model(axis=axis).SerializeToString(),
        optimizer="sgd",
        lr=0.5,
        max_iter=1,
        class_weight=class_weight,
        random_state=0,
    )
    clone(estimator).fit(X, LABELS, ROW_WEIGHTS)
    estimator.fit(X, LABELS, ROW_WEIGHTS)
    counts = weights_of(LABELS, class_weight or {}) * ROW_WEIGHTS[:, None]
    trained, _ = after_a_step(LABELS, counts, 0.5)
    scores = X @ trained
    np.testing.assert_allclose(
        estimator.predict_proba(X), np.exp(log_softmax(scores)), rtol=1e-3, atol=1e-5
    )
    np.testing.assert_array_equal(estimator.predict(X), scores.argmax(-1))
    np.testing.assert_array_equal(estimator.classes_, range(V))
    assert estimator.score(X, LABELS) == pytest.approx((scores.argmax(-1) == LABELS).mean())


def test_a_classifier_with_strings_and_with_labels_left_out():
    names = np.array(["dog", "ant", "cat", "bee"])
    estimator = OnnxClassifier(model().SerializeToString(), max_iter=300, lr=0.1, random_state=0)
    estimator.fit(X, names[LABELS])
    assert list(estimator.classes_) == ["ant", "bee", "cat", "dog"]
    assert estimator.predict(X).shape == (B, T)
    assert estimator.score(X, names[LABELS]) > 0.5
    left_out = OnnxClassifier(model().SerializeToString(), loss=LOSS, max_iter=2, random_state=0)
    left_out.fit(X, WITH_IGNORED)
    right = left_out.predict(X) == WITH_IGNORED
    expected = right.sum() / (WITH_IGNORED != IGNORED).sum()
    assert left_out.score(X, WITH_IGNORED) == pytest.approx(expected)
    with pytest.raises(ValueError, match="must contain only 0 and 1"):
        OnnxClassifier(max_iter=1).fit(X[:, 0], LABELS)


def test_two_classes_of_positions_are_not_several_labels():
    """y of 0 and 1 [N, T] could be T labels per row if the model had T columns."""
    labels = (LABELS > 1).astype(int)
    estimator = OnnxClassifier(model().SerializeToString(), max_iter=1, random_state=0)
    assert estimator.fit(X, labels).predict_proba(X).shape == (B, T, V)


@pytest.mark.parametrize("shape", [(B, T, V), (B, T * V)])
def test_a_regressor_of_positions(shape):
    wanted = RNG.normal(size=(B, T, V)).astype(np.float32)
    estimator = OnnxRegressor(
        model().SerializeToString(), optimizer="sgd", lr=0.5, max_iter=1, random_state=0
    )
    if shape != (B, T, V):
        with pytest.raises(ValueError, match="shape"):
            estimator.fit(X, wanted.reshape(shape))
        return
    estimator.fit(X, wanted)
    slope = np.einsum("btd,btv->dv", X, 2 * (X @ W - wanted)) / wanted.size
    trained = W - 0.5 * slope
    np.testing.assert_allclose(estimator.predict(X), X @ trained, rtol=1e-3, atol=1e-4)
    from sklearn.metrics import r2_score

    flat = wanted.reshape(B, -1)
    expected = r2_score(flat, (X @ trained).reshape(B, -1))
    assert estimator.score(X, wanted) == pytest.approx(expected, rel=1e-3)
