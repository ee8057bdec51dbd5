"""Memory of activations with `precision=`, beside float32: small models of each kind."""

import os

import numpy as np
import pytest

import onnxgrad as og
from precision_kinds import MODELS

DEVICE = os.environ.get("ONNXGRAD_DEVICE", "cpu")
CONVOLUTIONS = ("relu_network", "clip_network")  # all of whose kernels read and write halves


def activations_of(model, feeds, classes, precision):
    feeds = {"X": np.random.default_rng(3).normal(size=feeds["X"].shape).astype(np.float32)}
    feeds["label"] = np.arange(len(feeds["X"])) % classes
    # Plain gradient descent: the weights' gradients are not stored.
    session = og.TrainingSession(
        model, "softmax_cross_entropy", "sgd", precision=precision, threads=1
    )
    loss = session.step(feeds)
    return session.memory().activations, loss


@pytest.mark.parametrize("name", list(MODELS))
def test_activations_take_about_half(name):
    model, feeds, classes = MODELS[name]()
    whole, loss = activations_of(model, feeds, classes, "float32")
    half, found = activations_of(model, feeds, classes, "bf16")
    most = 0.53 if name in CONVOLUTIONS else 0.57
    if DEVICE != "cpu":  # inputs are copied as they are, and values of several streams share less
        most = 0.65
    assert half <= most * whole
    assert found == pytest.approx(loss, rel=0.02)
