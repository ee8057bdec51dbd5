"""Every way to give the same rows: arrays with DLPack alone, text labels, sparse rows."""

import numpy as np
import onnx.parser
import pytest

import onnxgrad as og
from support import TWO_HEADS, DLPackOnly, initializers, mlp_proto

TWO_LOSSES = {"price": "mse", "kind": "cross_entropy"}
NAMES = np.array(["ash", "birch", "cedar"])


def two_heads():
    return og.Trainer(onnx.parser.parse_model(TWO_HEADS), TWO_LOSSES, "sgd", lr=0.1)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(3)
    kind = rng.integers(0, 3, 90)
    X = (rng.normal(size=(90, 2)) + kind[:, None]).astype(np.float32)
    return X, rng.normal(size=90).astype(np.float32), kind


def assert_same_weights(found, expected):
    expected = initializers(expected.trained_model())
    for name, value in initializers(found.trained_model()).items():
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 2.0, 1: 0.5}])
def test_dlpack_alone_with_class_and_sample_weights(class_weight, rows):
    X, weight, kind = rows
    weight = np.abs(weight)
    make = lambda: og.Trainer(mlp_proto([2, 3], head="Softmax"), optimizer="sgd", lr=0.1)  # noqa: E731
    options = {"class_weight": class_weight, "epochs": 2, "verbose": 0}
    expected = make().fit(X, kind, weight, validation=(X, kind), **options)
    held_out = (DLPackOnly(X), DLPackOnly(kind))
    found = make().fit(
        DLPackOnly(X), DLPackOnly(kind), DLPackOnly(weight), validation=held_out, **options
    )
    assert found.history["train_loss"] == expected.history["train_loss"]
    assert found.history["val_loss"] == expected.history["val_loss"]
    assert_same_weights(found, expected)
    np.testing.assert_array_equal(found.predict(DLPackOnly(X)), expected.predict(X))
    given = (DLPackOnly(X), DLPackOnly(kind), DLPackOnly(weight))
    assert found.evaluate(*given) == expected.evaluate(X, kind, weight)


def test_dlpack_alone_in_a_metric():
    y, p = np.array([0.0, 1.0, 3.0]), np.array([0.5, 1.0, 2.0])
    weight = np.array([2.0, 1.0, 1.0])
    found = og.metrics.compute("mae", DLPackOnly(y), DLPackOnly(p), DLPackOnly(weight))
    assert found == pytest.approx(np.average(np.abs(y - p), weights=weight))


def test_the_name_of_a_column_of_an_array(rows):
    with pytest.raises(og.DataError, match="y is the string 'k', but X has no named columns"):
        two_heads().fit(rows[0], "k", verbose=0)


def test_text_labels_of_one_of_several_targets(rows):
    X, price, kind = rows
    numbers = {"price": price, "kind": kind}
    texts = {"price": price, "kind": NAMES[kind]}
    options = {"epochs": 2, "batch_size": 16, "verbose": 0}
    expected = two_heads().fit(X, numbers, validation=(X, numbers), **options)
    found = two_heads().fit(X, texts, validation=(X, texts), **options)
    assert found.history["val_loss"] == expected.history["val_loss"]
    assert_same_weights(found, expected)
    assert found.evaluate(X, texts).loss == expected.evaluate(X, numbers).loss
    unknown = {"price": price[:2], "kind": ["ash", "elm"]}
    with pytest.raises(og.DataError, match="label 'elm' in row 1 of 'kind' is not one of the"):
        found.evaluate(X[:2], unknown)
    with pytest.raises(og.DataError, match="of 'kind' are strings, but the model does not list"):
        two_heads().evaluate(X, texts)
    many = {"price": price[:4], "kind": list("abcd")}
    with pytest.raises(og.DataError, match="4 different labels of 'kind', but the model has 3"):
        two_heads().fit(X[:4], many, verbose=0)


def test_text_labels_in_a_step_name_encode_target(rows):
    X, _, kind = rows
    session = og.TrainingSession(mlp_proto([2, 3], head="Softmax"))
    with pytest.raises(og.DataError, match="encode_target"):
        session.step({"X": X, "label": NAMES[kind]})
