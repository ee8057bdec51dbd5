"""Calls that read and write the state of a training, on the simulated device: bits of the CPU."""

import numpy as np
import pytest

import onnxgrad as og
from onnxgrad import devices
from support import PLUGIN, mlp_proto, needs_plugin

pytestmark = needs_plugin

DEVICES = ("cpu", "simulated")


@pytest.fixture(scope="module", autouse=True)
def plugin():
    devices.load_plugin(PLUGIN)


@pytest.fixture(scope="module")
def rows(iris):
    order = np.random.default_rng(2).permutation(150)
    return iris[0][order], iris[1][order]


def make(device, optimizer, **options):
    return og.Trainer(
        mlp_proto((4, 6, 3)),
        loss="softmax_cross_entropy",
        optimizer=optimizer,
        seed=5,
        device=device,
        **options,
    )


def fit(trainer, rows, epochs=2, **options):
    if type(trainer.session.optimizer).__name__ != "LBFGS":
        options = {"batch_size": 32, **options}
    trainer.fit(*rows, epochs=epochs, verbose=0, **options)
    return trainer


def resume(device, optimizer, rows, folder):
    keeper = og.callbacks.Checkpoint(folder / device, every="epoch", best=True)
    options = {"validation": 0.2, "callbacks": [keeper]}
    first = fit(make(device, optimizer), rows, **options)
    second = fit(make(device, optimizer), rows, epochs=4, resume=True, **options)
    assert second.history["epoch"] == [1, 2, 3, 4]
    return [second, first]


def save_and_load(device, optimizer, rows, folder):
    first = fit(make(device, optimizer), rows)
    path = folder / f"{device}.safetensors"
    first.session.save(path)
    second = make(device, optimizer)
    second.session.load(path)
    third = make(device, optimizer)
    third.session.load_state(first.session.state())
    return [fit(second, rows), third]


def best_epoch(device, optimizer, rows, _folder):
    stopping = og.callbacks.EarlyStopping(patience=1, min_delta=10.0)
    return [fit(make(device, optimizer), rows, epochs=4, validation=0.3, early_stopping=stopping)]


def average(device, optimizer, rows, folder):
    trainer = fit(make(device, optimizer, average="ema:decay=0.9"), rows)
    for kind in ("average", "trained"):
        trainer.save(folder / f"{device}-{kind}.onnx", weights=kind)
    written = [(folder / f"{device}-{kind}.onnx").read_bytes() for kind in ("average", "trained")]
    assert written[0] != written[1]
    return [trainer, *written]


def freeze(device, optimizer, rows, _folder):
    trainer = fit(make(device, optimizer), rows)
    trainer.freeze("W0")
    fit(trainer, rows, epochs=1)
    trainer.unfreeze("W0")
    return [fit(trainer, rows, epochs=1)]


def federated(device, optimizer, rows, _folder):
    clients = [fit(make(device, optimizer), (rows[0][i::2], rows[1][i::2])) for i in range(2)]
    pairs = zip(*(client.get_weights() for client in clients), strict=True)
    mean = [(a + b) / 2 for a, b in pairs]
    clients[0].set_weights(mean)
    for now, wanted in zip(clients[0].get_weights(), mean, strict=True):
        np.testing.assert_array_equal(now, wanted)
    return [fit(clients[0], rows, epochs=1)]


def evaluate(device, optimizer, rows, _folder):
    trainer = fit(make(device, optimizer), rows, sample_weight=np.linspace(0.5, 2, 150))
    found = trainer.evaluate(*rows, metrics=["f1"])
    before = trainer.session.weights  # a copy there, a view here
    assert all(not array.flags.writeable for array in before.values())
    trainer.reset()
    return [fit(trainer, rows), str(found)]


def non_finite(device, optimizer, rows, _folder):
    trainer = make(device, optimizer)
    X = rows[0].copy()
    X[70, 1] = np.inf
    with pytest.raises(og.ConvergenceError) as error:
        fit(trainer, (X, rows[1]), allow_nan=True)
    return [trainer, str(error.value)]


FEATURES = (
    resume,
    save_and_load,
    best_epoch,
    average,
    freeze,
    federated,
    evaluate,
    non_finite,
)
OPTIMIZERS = ("sgd", "sgd:momentum=0.9", "adam", "lbfgs", "muon", "adafactor")
# Every feature with every third optimizer, and L-BFGS, which keeps numbers on the host, with all.
CASES = [
    (feature, optimizer)
    for i, feature in enumerate(FEATURES)
    for j, optimizer in enumerate(OPTIMIZERS)
    if (i + j) % 3 == 0 or optimizer == "lbfgs"
    if not (optimizer == "lbfgs" and feature is average)  # it takes none
]


@pytest.mark.parametrize(("feature", "optimizer"), CASES)
def test_same_bits(feature, optimizer, rows, tmp_path):
    here, there = (feature(device, optimizer, rows, tmp_path) for device in DEVICES)
    for one, other in zip(here, there, strict=True):
        if not isinstance(one, og.Trainer):
            assert one == other
            continue
        states = one.session.state(), other.session.state()
        assert states[0].keys() == states[1].keys()
        for name, value in states[0].items():
            np.testing.assert_array_equal(states[1][name], value, err_msg=name)
        for column in ("train_loss", "val_loss"):
            assert one.history.get(column) == other.history.get(column)
        models = (trainer.trained_model().SerializeToString() for trainer in (one, other))
        assert next(models) == next(models)
