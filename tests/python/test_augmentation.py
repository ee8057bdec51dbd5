"""Changes of training rows: what they are, and that they depend on seed, epoch and row alone."""

import itertools
import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

import onnxgrad as og
from command_line import run
from onnxgrad.data import augment
from pairwise import pairwise
from support import initializers, mlp_proto

N, SIZE = 64, 6


def images(channels_last=False, dtype=np.float32):
    """Every pixel of every image has its own number, above 0."""
    X = 1 + np.arange(N * 2 * SIZE * SIZE, dtype=dtype).reshape(N, 2, SIZE, SIZE)
    return np.ascontiguousarray(X.transpose(0, 2, 3, 1)) if channels_last else X


def first(X, channels_last):
    """Images with the channels first."""
    return X.transpose(0, 3, 1, 2) if channels_last else X


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("vertical", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_flips_mirror_half_of_the_images(channels_last, vertical, dtype):
    X = images(channels_last).astype(dtype)
    flip = og.data.Flip(vertical=vertical, channels_last=channels_last)
    found = first(augment(X, augment=flip, seed=5)[0], channels_last)
    given = first(X, channels_last)
    mirrored = given[:, :, ::-1] if vertical else given[:, :, :, ::-1]
    changed = 0
    for one, same, other in zip(found, given, mirrored, strict=True):
        is_mirrored = np.array_equal(one, other)
        assert is_mirrored or np.array_equal(one, same)
        changed += is_mirrored
    assert 0.25 * N < changed < 0.75 * N


@pytest.mark.parametrize("channels_last", [False, True])
def test_crops_are_windows_of_padded_images(channels_last):
    X = images(channels_last)
    crop = og.data.Crop(padding=2, channels_last=channels_last)
    found = first(augment(X, augment=crop)[0], channels_last)
    padded = np.pad(first(X, channels_last), ((0, 0), (0, 0), (2, 2), (2, 2)))
    places = set()
    for one, whole in zip(found, padded, strict=True):
        windows = {
            (y, x): whole[:, y : y + SIZE, x : x + SIZE]
            for y, x in itertools.product(range(5), range(5))
        }
        matches = [at for at, window in windows.items() if np.array_equal(one, window)]
        assert len(matches) == 1
        places |= {*matches}
    assert len(places) > 15


def test_noise_is_normal():
    X = np.zeros((200, 50))
    found, _ = augment(X, augment="noise:scale=0.5")
    assert found.mean() == pytest.approx(0, abs=0.02)
    assert found.std() == pytest.approx(0.5, rel=0.03)
    assert np.mean(np.abs(found) < 0.5) == pytest.approx(0.6827, abs=0.02)
    assert len(np.unique(found)) == found.size


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_mixes_rows_and_targets_alike(alpha):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 3)), rng.integers(0, 4, 400)
    found, target = augment(X, y, og.data.Mixup(alpha=alpha))
    assert target.shape == (400, 4)
    np.testing.assert_allclose(target.sum(1), 1, 1e-6)
    shares = []
    for row, label, mixed, probabilities in zip(X, y, found, target, strict=True):
        # The other row: mixed = l x + (1 - l) x' for one l in all elements and the target.
        with np.errstate(divide="ignore", invalid="ignore"):
            share = 1 - (mixed - row)[:, None] / (X - row).T
        share = np.where(np.isfinite(share), share, np.nan)
        spread = np.fmax.reduce(share) - np.fmin.reduce(share)  # NaN for the row itself
        other = int(np.nanargmin(spread))
        part = float(np.nanmean(share[:, other]))
        if not np.allclose(mixed, row):
            assert spread[other] < 1e-6
            expected = np.zeros(4)
            expected[label] += part
            expected[y[other]] += 1 - part
            np.testing.assert_allclose(probabilities, expected, atol=1e-5)
            shares.append(part)
    mean = np.mean(shares)
    assert mean == pytest.approx(0.5, abs=0.06)
    variance = 1 / (4 * (2 * alpha + 1))  # of Beta(alpha, alpha)
    if alpha >= 1:
        assert np.var(shares) == pytest.approx(variance, rel=0.2)


def test_cutmix_pastes_a_box():
    X = images()
    y = np.arange(N) % 3
    found, target = augment(X, y, "cutmix")
    boxes = 0
    for i in range(N):
        is_other = found[i] != X[i]
        rows, columns = np.where(is_other.any(0).any(1))[0], np.where(is_other.any(0).any(0))[0]
        if len(rows) == 0:
            assert target[i, y[i]] == 1
            continue
        boxes += 1
        box = np.zeros((SIZE, SIZE), bool)
        box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
        assert np.array_equal(is_other, np.broadcast_to(box, is_other.shape))
        other = int(found[i, 0, rows[0], columns[0]] - 1) // (2 * SIZE * SIZE)
        np.testing.assert_array_equal(found[i][:, box], X[other][:, box])
        expected = np.zeros(3)
        expected[y[i]] += 1 - box.mean()
        expected[y[other]] += box.mean()
        np.testing.assert_allclose(target[i], expected, atol=1e-6)
    assert boxes > N / 3


CHANGES = ["flip", "crop:padding=1", "noise", "mixup", "cutmix"]


def test_a_row_depends_on_seed_epoch_and_row_alone():
    X = images()
    for changes in itertools.combinations(CHANGES[:3], 2):
        found, _ = augment(X, augment=changes, seed=3, epoch=2)
        np.testing.assert_array_equal(found, augment(X, augment=changes, seed=3, epoch=2)[0])
        np.testing.assert_array_equal(
            found[:10], augment(X[:10], None, changes, seed=3, epoch=2)[0]
        )
        for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 3}):
            assert not np.array_equal(found, augment(X, augment=changes, **other)[0])


def test_mixed_rows_have_their_own_changes():
    """The rows that are mixed are those after the changes before."""
    X = images()
    flipped, _ = augment(X, augment="flip", seed=1)
    flipped_first, _ = augment(X, augment=["flip", "mixup"], seed=1)
    candidates = flipped.reshape(N, -1)
    for one, own in zip(flipped_first.reshape(N, -1), candidates, strict=True):
        difference = one - own
        if np.allclose(difference, 0, atol=1):
            continue
        directions = candidates - own
        with np.errstate(invalid="ignore", divide="ignore"):
            cosine = directions @ difference / np.linalg.norm(directions, axis=1)
        assert np.nanmax(cosine) == pytest.approx(np.linalg.norm(difference), rel=1e-4)


def test_a_fit_trains_on_what_augment_returns():
    """A whole batch of each epoch: the steps of a session on the rows of `augment`."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3)).astype(np.float32), rng.integers(0, 3, 20)
    changes = ["noise", "mixup:alpha=0.5"]
    trainer = og.Trainer(mlp_proto([3, 5, 3]), "cross_entropy", "sgd", lr=0.1, seed=7)
    trainer.fit(X, y, epochs=3, batch_size=20, shuffle=False, augment=changes, verbose=0)
    soft = og.losses.SoftmaxCrossEntropy(one_hot=True)
    session = og.TrainingSession(mlp_proto([3, 5, 3]), soft, og.optimizers.SGD(lr=0.1))
    for epoch in (1, 2, 3):
        changed, target = augment(X, y, changes, seed=7, epoch=epoch)
        session.step({"X": changed, "label": target})
    for name, value in session.weights.items():
        np.testing.assert_allclose(trainer.session.weights[name], value, 1e-5, 1e-7)
    assert trainer.evaluate(X, y).accuracy is not None  # of class numbers, as before
    assert trainer.session.step({"X": X, "label": y}) > 0


def test_class_numbers_of_a_binary_loss_are_mixed():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(24, 3)).astype(np.float32), rng.integers(0, 2, 24)
    trainer = og.Trainer(mlp_proto([3, 1]), "binary_cross_entropy", "sgd", lr=0.1)
    trainer.fit(X, y, epochs=2, batch_size=24, shuffle=False, augment="mixup:alpha=2", verbose=0)
    w = initializers(mlp_proto([3, 1]))
    weight, bias = w["W0"].astype(np.float64), w["b0"].astype(np.float64)
    for epoch in (1, 2):
        changed, target = augment(X, y, "mixup:alpha=2", epoch=epoch)
        p = 1 / (1 + np.exp(-(changed @ weight + bias)))
        error = (p - target[:, 1:]) / 24
        weight, bias = weight - 0.1 * changed.T @ error, bias - 0.1 * error.sum(0)
    np.testing.assert_allclose(trainer.session.weights["W0"], weight, 1e-4, 1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("flop", "flip"),
        ("crop:padding=0", "padding"),
        ("flip", "images"),
        ("mixup:alpha=0", "alpha"),
        (["noise", 3], "int"),
    ],
)
def test_errors(changes, message):
    X, y = np.zeros((8, 3), np.float32), np.zeros(8, np.int64)
    with pytest.raises(og.OptionError, match=message):
        og.Trainer(mlp_proto([3, 2]), "cross_entropy").fit(X, y, augment=changes, verbose=0)


def test_a_loss_that_cannot_be_mixed():
    X, y = np.zeros((8, 3), np.float32), np.zeros(8, np.int64)
    trainer = og.Trainer(mlp_proto([3, 2]), og.losses.SoftmaxCrossEntropy(ignore_index=1))
    with pytest.raises(og.OptionError, match="ignores a class"):
        trainer.fit(X, y, augment="mixup", verbose=0)


def test_command_line(tmp_path):
    onnx.save(mlp_proto([2, 3]), tmp_path / "net.onnx")
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(30, 2)).round(5).astype(np.float32), rng.integers(0, 3, 30)
    table = np.column_stack([X, y])
    np.savetxt(tmp_path / "d.csv", table, "%.5f", ",", header="a,b,y", comments="")
    command = ["train", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "d.csv")]
    command += ["--target", "y", "--loss", "cross_entropy", "--epochs", "2", "-q"]
    command += ["--augment", "noise:scale=0.2", "--augment", "mixup", "--sampling", "balanced"]
    run(*command, "-o", tmp_path / "out.onnx")
    trainer = og.Trainer(mlp_proto([2, 3]), "cross_entropy")
    changes = ["noise:scale=0.2", "mixup"]
    trainer.fit(X, y, epochs=2, augment=changes, sampling="balanced", verbose=0)
    found = initializers(onnx.load(tmp_path / "out.onnx"))
    np.testing.assert_array_equal(found["W0"], trainer.session.weights["W0"])


# ---------------------------------------------------------------------------------- combinations

PARAMETERS = {
    "average": [None, "ema:decay=0.9", "swa"],
    "optimizer": ["sgd", "adam", "adafactor", "schedule_free_adamw", "muon"],
    "precision": ["float32", "bf16", "fp16"],
    "accumulate": [1, 2],
    "sam": [None, 0.05],
    "sampling": ["rows", "balanced", "weighted"],
    "augment": [(), ("noise",), ("noise", "mixup")],
    "threads": [1, 2],
    "resume": [False, True],
    "workers": [1, 2],
}


def is_valid(row):
    return row.get("average") is None or row.get("optimizer") != "schedule_free_adamw"


CASES = pairwise(PARAMETERS, is_valid)

SCRIPT = """
import json, sys
import numpy as np
import onnxgrad as og
folder, case = sys.argv[1], json.loads(sys.argv[2])
rng = np.random.default_rng(5)
X = rng.normal(size=(60, 3)).astype(np.float32)
y = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.5)
fit = {name: case.pop(name) for name in ("sampling", "augment")}
if fit["sampling"] == "weighted":
    fit["row_weights"] = np.arange(60.0)
stages = [2, 4] if case.pop("resume") else [4]
case.pop("workers")
for epochs in stages:
    trainer = og.Trainer(folder + "/net.onnx", "cross_entropy", lr=0.02, seed=1, **case)
    checkpoint = og.callbacks.Checkpoint(folder + "/checkpoints")
    trainer.fit(X, y, epochs=epochs, batch_size=16, verbose=0, callbacks=[checkpoint],
                validation=0.2, resume=epochs > 2 and len(stages) > 1, **fit)
workers = trainer.session._data_parallel
if workers is None or workers.is_first:
    predicted = trainer.predict(X).tolist()
    open(folder + "/result.json", "w").write(json.dumps([predicted, trainer.history["val_loss"]]))
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_combinations_give_what_one_run_of_one_worker_gives(case, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    plain = {**case, "workers": 1, "resume": False, "threads": 1}
    found = []
    for number, given in enumerate((plain, case)):
        folder = tmp_path / str(number)
        folder.mkdir()
        onnx.save(mlp_proto([3, 8, 3]), folder / "net.onnx")
        command = [str(tmp_path / "script.py"), str(folder), json.dumps(given)]
        if given["workers"] > 1:
            command = ["-m", "onnxgrad", "launch", "-n", "2", "--transport", "tcp", *command]
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads((folder / "result.json").read_text()))
    tolerance = 1e-3 if case["precision"] == "float32" else 0.05
    np.testing.assert_allclose(found[1][0], found[0][0], tolerance, tolerance)
    np.testing.assert_allclose(found[1][1], found[0][1], tolerance, tolerance)
