"""Models whose weights lie beside them: every function gives back a model that is whole."""

import pickle

import numpy as np
import onnx
import pytest

import onnxgrad as og
from support import initializers, mlp_proto

SIZES = [6, 8, 3]
X = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)


@pytest.fixture
def path(tmp_path):
    """All weights in weights.bin beside the model."""
    folder = tmp_path / "export"
    folder.mkdir()
    model = mlp_proto(SIZES)
    onnx.save(
        model,
        folder / "m.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return folder / "m.onnx"


def feeds():
    return {"X": X, "label": Y}


def trained(path, **options):
    trainer = og.Trainer(path, "mse", **options)
    trainer.fit(X, Y, epochs=1, verbose=0)
    return trainer


def stepped(path):
    session = og.TrainingSession(path, "mse", frozen="W1")
    session.step(feeds())
    return session


def module(path):
    both = og.ForwardBackward(path)
    both.weights = {"W0": np.ones((6, 8), np.float32)}
    return both


RESULTS = {
    "set_weights": lambda path: og.set_weights(path, {"b0": np.ones(8, np.float32)}),
    "set_weights of nothing": lambda path: og.set_weights(path, {}),
    "initialize": lambda path: og.initialize(path, seed=1),
    "TrainingSession": lambda path: stepped(path).trained_model(),
    "Trainer": lambda path: trained(path).trained_model(),
    "Trainer with frozen weights": lambda path: trained(path, frozen="W*").trained_model(),
    "ForwardBackward": lambda path: module(path).trained_model(),
    "add_loss": lambda path: og.add_loss(path, "mse"),
    "gradient": lambda path: og.gradient(path, "X", fill_grad=True, keep_outputs=True),
    "training_step": lambda path: og.training_step(path, "mse"),
    "a pickled trainer": lambda path: pickle.loads(pickle.dumps(trained(path))).trained_model(),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("is_relative", [False, True])
def test_results_are_whole(path, tmp_path, monkeypatch, name, is_relative):
    monkeypatch.chdir(path.parent)
    result = RESULTS[name](path.name if is_relative else path)
    assert all(one.data_location == onnx.TensorProto.DEFAULT for one in result.graph.initializer)
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    onnx.save(result, "m.onnx")
    (path.parent / "weights.bin").unlink()
    again = onnx.load("m.onnx")
    values, expected = initializers(again), initializers(result)
    assert set(values) >= {"W1", "b1"}
    for weight, value in expected.items():
        np.testing.assert_array_equal(values[weight], value)
    og.InferenceSession("m.onnx")


def test_a_working_folder_that_changes(path, tmp_path, monkeypatch):
    monkeypatch.chdir(path.parent)
    session = og.TrainingSession(path.name, "mse", frozen="W1")
    monkeypatch.chdir(tmp_path)
    session.step(feeds())
    values = initializers(session.trained_model())
    np.testing.assert_array_equal(values["W0"], session.state()["W0"])
    np.testing.assert_array_equal(values["W1"], initializers(mlp_proto(SIZES))["W1"])


def test_estimators(path):
    from onnxgrad.sklearn import OnnxRegressor

    found = OnnxRegressor(path, loss="mse", max_iter=1).fit(X, Y)
    (path.parent / "weights.bin").unlink()
    proto = found.to_onnx()
    onnx.checker.check_model(proto, full_check=True)
    assert len(initializers(proto)["W1"]) == 8
