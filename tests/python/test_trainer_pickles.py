"""Trainers can be pickled and copied: what comes back continues bit for bit."""

import copy
import pickle
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

import onnxgrad as og
from support import initializers, mlp_proto

OPTIONS = {"batch_size": 16, "verbose": 0}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 4)).astype(np.float32)
    return X, np.argmax(X[:, :3], axis=1)


def assert_same(first, second):
    for name, value in initializers(first.trained_model()).items():
        np.testing.assert_array_equal(initializers(second.trained_model())[name], value)
    for name, value in first.session.state().items():
        np.testing.assert_array_equal(second.session.state()[name], value)


TRAINERS = {
    "adam": {"optimizer": "adam", "lr": 0.01, "schedule": "cosine"},
    "frozen": {"optimizer": "momentum", "frozen": "W0", "clip_norm": 1.0, "accumulate": 2},
    "groups": {"groups": og.optimizers.ParameterGroup("b*", lr=0.1), "seed": 3},
    "penalty": {"penalty": {"W*": {"l2": 0.1}}, "loss": og.losses.SoftmaxCrossEntropy()},
    "lbfgs": {"optimizer": "lbfgs"},
}


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("way", ["pickle", "copy"])
def test_continues_bit_for_bit(rows, name, way):
    fit = {**OPTIONS, "batch_size": None} if name == "lbfgs" else OPTIONS
    trainer = og.Trainer(mlp_proto([4, 5, 3], head="Softmax"), **TRAINERS[name])
    trainer.fit(*rows, epochs=2, **fit)
    again = pickle.loads(pickle.dumps(trainer)) if way == "pickle" else copy.deepcopy(trainer)
    assert_same(trainer, again)
    assert again.history == trainer.history
    assert (again.session.steps, again.session.lr) == (trainer.session.steps, trainer.session.lr)
    assert [one.name for one in again.session.trained_weights] == [
        one.name for one in trainer.session.trained_weights
    ]
    for one in (trainer, again):
        one.fit(*rows, epochs=2, **fit)
    assert_same(trainer, again)
    assert again.history["train_loss"] == trainer.history["train_loss"]


def test_choices_of_fit_are_kept(rows):
    """Sample weights, a loss chosen by integer labels, weights that were frozen later."""
    trainer = og.Trainer(mlp_proto([4, 5, 3]), "auto", "adam")
    trainer.freeze("b1")
    trainer.fit(*rows, np.linspace(0, 1, 80), epochs=2, **OPTIONS)
    assert trainer.session.loss_name == "softmax_cross_entropy"
    again = pickle.loads(pickle.dumps(trainer))
    assert again.session.loss_line == trainer.session.loss_line
    for one in (trainer, again):
        one.fit(*rows, np.linspace(0, 1, 80), epochs=2, **OPTIONS)
    assert_same(trainer, again)
    trainer.reset()
    again.reset()
    assert_same(trainer, again)


def test_around_a_session(rows):
    model = mlp_proto([4, 5, 3], head="Softmax")
    session = og.TrainingSession(model, optimizer="adam", sample_weight="w", target="kind")
    trainer = og.Trainer(session).fit(*rows, np.linspace(0, 1, 80), epochs=2, **OPTIONS)
    again = pickle.loads(pickle.dumps(trainer))
    assert again.session.target_name == "kind"
    for one in (trainer, again):
        one.fit(*rows, np.linspace(0, 1, 80), epochs=1, **OPTIONS)
    assert_same(trainer, again)


def test_text_labels(rows):
    names = np.array(["c", "a", "b"])[rows[1]]
    trainer = og.Trainer(mlp_proto([4, 5, 3]), "softmax_cross_entropy")
    trainer.fit(rows[0], names, epochs=1, **OPTIONS)
    again = pickle.loads(pickle.dumps(trainer))
    assert again.evaluate(rows[0], names) == trainer.evaluate(rows[0], names)


def test_in_another_process(rows, tmp_path):
    trainer = og.Trainer(mlp_proto([4, 5, 3], head="Softmax")).fit(*rows, epochs=1, **OPTIONS)
    (tmp_path / "trainer.pkl").write_bytes(pickle.dumps(trainer))
    code = (
        "import pickle, sys, pathlib; folder = pathlib.Path(sys.argv[1])\n"
        "trainer = pickle.loads((folder / 'trainer.pkl').read_bytes())\n"
        "trainer.save(folder / 'out.onnx'); print(trainer)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == repr(trainer)
    for name, value in initializers(onnx.load(tmp_path / "out.onnx")).items():
        np.testing.assert_array_equal(initializers(trainer.trained_model())[name], value)


def test_sessions_are_not_pickled(linear_proto):
    for session in (og.TrainingSession(linear_proto), og.InferenceSession(linear_proto)):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(session)


def test_a_trainer_in_a_notebook(rows):
    trainer = og.Trainer(mlp_proto([4, *[5] * 12, 3], head="Softmax"))
    page = ElementTree.fromstring(f"<div>{trainer.fit(*rows, **OPTIONS)._repr_html_()}</div>")
    cells = {row[0].text: row[1].text for row in page.iter("tr") if len(row) == 2}
    assert cells["loss"].startswith("softmax cross-entropy on 'scores'")
    assert float(cells["last train_loss"]) > 0
    assert cells["W0"] == "[4, 5]"
    assert "and 6 more" in [cell.text for cell in page.iter("td")]


def test_what_objects_show(linear_proto):
    session = og.TrainingSession(linear_proto, optimizer="lion")
    text = repr(session)
    assert text.startswith("TrainingSession(squared_error on 'Y', Lion(lr=0.0001, ")
    assert text.endswith("trains coef, intercept, 0 steps done)")
    assert repr(og.Trainer(session)) == "Trainer" + text.removeprefix("TrainingSession")
    shown = repr(og.InferenceSession(linear_proto))
    assert shown == "InferenceSession(inputs=['X'], outputs=['Y'])"
    shown = repr(og.data.CsvFile("rows.csv", "price", ignored="id"))
    assert shown == "CsvFile('rows.csv', target='price', ignored=['id'])"
    shown = repr(og.data.NpyFiles("X.npy", "y.npy"))
    assert shown == "NpyFiles('X.npy', 'y.npy')"
    shown = repr(og.callbacks.EarlyStopping(patience=3))
    assert shown == "EarlyStopping(patience=3, min_delta=0.0001, restore_best=True)"
    shown = repr(og.callbacks.Checkpoint("run"))
    assert shown == "Checkpoint('run', every='epoch', keep=3, best=True)"
