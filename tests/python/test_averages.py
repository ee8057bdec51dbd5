"""Averages of weights against NumPy: in steps, fits, files, evaluation, checkpoints."""

import json
import pickle
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from command_line import run
from support import initializers, mlp_proto

WEIGHTS = ("W0", "b0", "W1", "b1")

WITH_NORM = """
<ir_version: 10, opset_import: ["" : 21]>
net (float[N, 3] X) => (float[N, 1] Y)
<float[3, 4] w = {0.1, -0.2, 0.3, 0.4, 0.5, -0.6, 0.7, 0.8, -0.9, 0.1, 0.2, 0.3},
 float[4] s = {1, 1, 1, 1}, float[4] b = {0, 0, 0, 0}, float[4] mean = {0, 0, 0, 0},
 float[4] var = {1, 1, 1, 1}, float[4, 1] v = {0.5, -0.5, 0.25, 1}>
{ h = MatMul(X, w)  n = BatchNormalization(h, s, b, mean, var)  Y = MatMul(n, v) }
"""


def rows(count=48, columns=3, outputs=1, dtype=np.float64, seed=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, columns)).astype(dtype)
    return X, np.sin(X @ rng.normal(size=(columns, outputs))).astype(dtype)


class NumpyAverage:
    """The average of a sequence of weights, by the formulas of docs/training.md."""

    def __init__(self, kind, decay=0.999, warm_up=True, start=0, every=1):
        self.kind, self.decay, self.warm_up = kind, decay, warm_up
        self.start, self.every = start, every
        self.updates = self.count = 0
        self.value = None

    def add(self, weights):
        self.updates += 1
        place = self.updates - self.start - 1
        if place >= 0 and place % self.every:
            return
        share = 1.0
        if place >= 0:
            n = self.count
            decay = min(self.decay, (1 + n) / (10 + n)) if self.warm_up else self.decay
            share = 1 / (n + 1) if self.kind == "swa" else (1.0 if n == 0 else 1 - decay)
            self.count += 1
        old = self.value if self.value is not None else weights
        self.value = {name: (1 - share) * old[name] + share * weights[name] for name in weights}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ema", {"decay": 0.9}),
        ("ema", {"decay": 0.9, "warm_up": False}),
        ("ema", {"decay": 0.8, "start": 3, "every": 2}),
        ("swa", {}),
        ("swa", {"start": 2, "every": 3}),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_average_as_numpy_does(kind, options, accumulate):
    model = mlp_proto([3, 5, 1], dtype=np.float64)
    session = og.TrainingSession(
        model, "squared_error", "adam", average={kind: options}, accumulate=accumulate
    )
    expected = NumpyAverage(kind, **options)
    X, y = rows()
    for step in range(24):
        at = slice(step % 6 * 8, step % 6 * 8 + 8)
        session.step({"X": X[at], "label": y[at]})
        if (step + 1) % accumulate == 0:
            expected.add({name: value.copy() for name, value in session.weights.items()})
        state = session.state()
        for name in WEIGHTS:
            known = expected.value or {name: initializers(model)[name]}
            np.testing.assert_allclose(state[f"average/{name}"], known[name], 1e-12, 1e-14)


def test_what_reads_the_average(tmp_path):
    model = mlp_proto([3, 5, 1], dtype=np.float64)
    X, y = rows()
    trainer = og.Trainer(model, "squared_error", "adam", lr=0.05, average="ema:decay=0.7")
    trainer.fit(X, y, epochs=2, batch_size=16, verbose=0)
    state = trainer.session.state()
    trainer.save(tmp_path / "both.onnx", weights="both")
    trainer.save(tmp_path / "default.onnx")
    averaged = initializers(onnx.load(tmp_path / "both.onnx"))
    trained = initializers(onnx.load(tmp_path / "both.trained.onnx"))
    for name in WEIGHTS:
        np.testing.assert_array_equal(averaged[name], state[f"average/{name}"])
        np.testing.assert_array_equal(trained[name], state[name])
    assert (tmp_path / "default.onnx").read_bytes() == (tmp_path / "both.onnx").read_bytes()
    stock = onnxruntime.InferenceSession(tmp_path / "both.onnx")
    expected = stock.run(None, {"X": X})[0]
    np.testing.assert_allclose(trainer.predict(X), expected, 1e-10)
    assert trainer.evaluate(X, y).loss == pytest.approx(np.mean((expected - y) ** 2), 1e-10)
    trainer.session.uses_average = False
    stock = onnxruntime.InferenceSession(tmp_path / "both.trained.onnx")
    np.testing.assert_allclose(trainer.predict(X), stock.run(None, {"X": X})[0], 1e-10)
    assert not np.allclose(trainer.predict(X), expected, 1e-4)
    again = pickle.loads(pickle.dumps(trainer))
    assert (again.session.has_average, again.session.uses_average) == (True, False)
    without = og.Trainer(model, average={"ema": {"evaluates": False}})
    assert (without.session.has_average, without.session.uses_average) == (True, False)


def test_running_statistics_are_averaged():
    session = og.TrainingSession(
        onnx.parser.parse_model(WITH_NORM), "squared_error", "sgd", average="ema:decay=0.5"
    )
    X, y = rows(dtype=np.float32)
    expected = NumpyAverage("ema", 0.5)
    for step in range(6):
        at = slice(step * 8, step * 8 + 8)
        session.step({"X": X[at], "label": y[at]})
        state = session.state()
        expected.add({name: state[name].astype(np.float64) for name in ("mean", "var", "w")})
    for name, value in expected.value.items():
        np.testing.assert_allclose(session.state()[f"average/{name}"], value, 1e-5, 1e-6)
    model = session.trained_model()
    np.testing.assert_allclose(initializers(model)["mean"], expected.value["mean"], 1e-5, 1e-6)


def test_swa_begins_with_its_epoch():
    model = mlp_proto([3, 5, 1], dtype=np.float64)
    X, y = rows()
    seen = []

    def keep(trainer, _logs):
        seen.append({name: value.copy() for name, value in trainer.session.weights.items()})

    trainer = og.Trainer(model, "squared_error", "sgd", average={"swa": {"start_epoch": 3}})
    trainer.fit(X, y, epochs=5, batch_size=48, callbacks=[keep], verbose=0)  # a step each
    state = trainer.session.state()
    for name in WEIGHTS:
        mean = np.mean([weights[name] for weights in seen[2:]], axis=0)
        np.testing.assert_allclose(state[f"average/{name}"], mean, 1e-12)


@pytest.mark.parametrize("average", ["ema:decay=0.8,warm_up=false", {"swa": {"start_epoch": 2}}])
def test_a_resumed_fit_continues_bit_for_bit(average, tmp_path):
    X, y = rows(dtype=np.float32)

    def train(folder, epochs, resume):
        trainer = og.Trainer(mlp_proto([3, 5, 1]), "squared_error", "adam", average=average)
        checkpoint = og.callbacks.Checkpoint(tmp_path / folder)
        options = {"batch_size": 16, "validation": 0.25, "verbose": 0, "early_stopping": True}
        trainer.fit(X, y, epochs=epochs, callbacks=[checkpoint], resume=resume, **options)
        return trainer

    train("part", 2, resume=False)
    resumed, whole = train("part", 4, resume=True), train("whole", 4, resume=False)
    for name, value in whole.session.state().items():
        np.testing.assert_array_equal(resumed.session.state()[name], value, err_msg=name)
    assert resumed.history["val_loss"] == whole.history["val_loss"]


@pytest.mark.parametrize(
    "options", [{"average": "ema:warm_up=false"}, {"optimizer": "schedule_free"}]
)
def test_an_average_continues_from_weights_that_are_set(options):
    session = og.TrainingSession(mlp_proto([3, 5, 1]), "squared_error", **options)
    X, y = rows(dtype=np.float32)
    for _ in range(3):
        session.step({"X": X, "label": y})
    given = [2 * weight for weight in session.get_weights()]
    session.set_weights(given)
    found = initializers(session.trained_model())
    for name, value in zip(session.weight_names, given, strict=True):
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(session.weights[name], value)
    session.step({"X": X, "label": y})
    for name, value in zip(session.weight_names, given, strict=True):
        np.testing.assert_allclose(initializers(session.trained_model())[name], value, atol=0.05)


def test_frozen_weights_keep_their_average():
    session = og.TrainingSession(mlp_proto([3, 5, 1]), "squared_error", "adam", average="ema")
    X, y = rows(dtype=np.float32)
    feeds = {"X": X, "label": y}
    session.step(feeds)
    session.step(feeds)
    before = session.state()["average/W0"]
    session.freeze("W0")
    session.step(feeds)
    np.testing.assert_array_equal(session.state()["average/W0"], before)
    np.testing.assert_array_equal(initializers(session.trained_model())["W0"], before)
    session.unfreeze("W0")
    session.step(feeds)
    assert not np.array_equal(session.state()["average/W0"], before)


def test_the_step_as_a_file_averages_in_stock_onnxruntime():
    model = mlp_proto([3, 4, 1])
    step = og.training_step(model, "squared_error", "sgd", average="ema:decay=0.5", inline=True)
    stock = onnxruntime.InferenceSession(step.SerializeToString())
    names = [output.name for output in stock.get_outputs()]
    state = {}
    session = og.TrainingSession(model, "squared_error", "sgd", average="ema:decay=0.5")
    X, y = rows(dtype=np.float32)
    for _ in range(4):
        rate = np.array(session.lr, np.float32)
        session.step({"X": X, "label": y})
        feeds = {"X": X, "label": y, "learning_rate": rate, **state}
        found = dict(zip(names, stock.run(None, feeds), strict=True))
        state = {name[5:]: value for name, value in found.items() if name.startswith("next/")}
    for name, value in session.state().items():
        np.testing.assert_allclose(state[name], value, 1e-5, 1e-6, err_msg=name)


class NumpyScheduleFree:
    """Schedule-free AdamW (Defazio et al., 2024, algorithm 1, as in the authors' package)."""

    def __init__(self, weights, lr, decay, warm_up):
        self.x = {name: value.copy() for name, value in weights.items()}
        self.y = {name: value.copy() for name, value in weights.items()}
        self.z = {name: value.copy() for name, value in weights.items()}
        self.v = {name: np.zeros_like(value) for name, value in weights.items()}
        self.lr, self.decay, self.warm_up = lr, decay, warm_up
        self.t, self.sum, self.largest = 0, 0.0, 0.0

    def step(self, gradients):
        self.t += 1
        rate = self.lr * min(1, self.t / self.warm_up)
        self.largest = max(self.largest, rate)
        weight = self.largest**2
        self.sum += weight
        c = weight / self.sum
        for name, g in gradients.items():
            self.v[name] = 0.999 * self.v[name] + 0.001 * g**2
            u = g / (np.sqrt(self.v[name] / (1 - 0.999**self.t)) + 1e-8)
            u = u + self.decay * self.y[name]
            self.z[name] = self.z[name] - rate * u
            self.x[name] = (1 - c) * self.x[name] + c * self.z[name]
            self.y[name] = 0.1 * self.z[name] + 0.9 * self.x[name]


def test_schedule_free_adamw_against_numpy():
    model = mlp_proto([3, 5, 1], dtype=np.float64)
    optimizer = og.optimizers.ScheduleFreeAdamW(lr=0.02, weight_decay=0.1, warm_up=4)
    session = og.TrainingSession(
        model, "squared_error", optimizer, outputs=[f"{name}_grad" for name in WEIGHTS]
    )
    expected = NumpyScheduleFree({n: initializers(model)[n] for n in WEIGHTS}, 0.02, 0.1, 4)
    X, y = rows()
    for _ in range(12):
        _, gradients = session.step({"X": X, "label": y})
        expected.step(dict(zip(WEIGHTS, gradients, strict=True)))
    trained = initializers(session.trained_model(weights="trained"))
    averaged = initializers(session.trained_model())
    for name in WEIGHTS:
        np.testing.assert_allclose(trained[name], expected.y[name], 1e-9)
        np.testing.assert_allclose(averaged[name], expected.x[name], 1e-9)
    assert session.uses_average


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average": "emaa"}, "ema"),
        ({"average": {"ema": {"decays": 0.5}}}, "decays"),
        ({"average": {"ema": {}, "swa": {}}}, "one name"),
        ({"average": "ema:decay=1.5"}, "decay"),
        ({"average": "ema", "optimizer": "schedule_free_adamw"}, "of its own"),
        ({"average": "ema", "optimizer": "lbfgs"}, "L-BFGS"),
    ],
)
def test_errors(options, message):
    with pytest.raises(og.Error, match=message):
        og.TrainingSession(mlp_proto([3, 4, 1]), "squared_error", **options)


def test_without_an_average():
    session = og.TrainingSession(mlp_proto([3, 4, 1]), "squared_error")
    assert not session.has_average
    with pytest.raises(og.OptionError, match="no average"):
        session.trained_model(weights="average")
    with pytest.raises(og.OptionError, match="no average"):
        session.uses_average = True
    with pytest.raises(og.OptionError, match="weights"):
        session.trained_model(weights="averaged")


def test_command_line(tmp_path):
    onnx.save(mlp_proto([2, 3, 1]), tmp_path / "net.onnx")
    X, y = rows(32, 2, dtype=np.float32)
    table = np.column_stack([X, y])
    np.savetxt(tmp_path / "d.csv", table, "%.6f", ",", header="a,b,y", comments="")
    output = tmp_path / "out.onnx"
    names = ["--average", "ema:decay=0.5", "--save-weights", "both", "-o", str(output)]
    command = ["train", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "d.csv")]
    command += ["--target", "y", "--epochs", "2", "-q", *names]
    run(*command)
    trainer = og.Trainer(mlp_proto([2, 3, 1]), average="ema:decay=0.5")
    trainer.fit(table[:, :2].round(6), table[:, 2:].round(6), epochs=2, verbose=0)
    found = initializers(onnx.load(output))
    other = initializers(onnx.load(tmp_path / "out.trained.onnx"))
    for name in WEIGHTS:
        np.testing.assert_allclose(found[name], initializers(trainer.trained_model())[name], 1e-4)
        assert not np.array_equal(found[name], other[name])


SCRIPT = """
import json, sys
import numpy as np
import onnxgrad as og
case = json.loads(sys.argv[2])
rng = np.random.default_rng(5)
X = rng.normal(size=(45, 3)).astype(np.float32)
y = (X[:, 0] > 0).astype(np.int64)
if case.pop("zero", False):
    case["dist"] = og.distributed.DataParallel(zero=1)
trainer = og.Trainer(sys.argv[1] + "/net.onnx", "cross_entropy", lr=0.05, threads=1, **case)
trainer.fit(X, y, epochs=3, batch_size=16, validation=0.2, verbose=0)
workers = trainer.session._data_parallel
rank = workers.workers.rank if workers else 0
found = {n: v.tolist() for n, v in trainer.session.state().items() if n.startswith("average/")}
result = [found, trainer.history["val_loss"]]
open(sys.argv[1] + f"/rank-{rank}.json", "w").write(json.dumps(result))
"""


@pytest.mark.parametrize(
    "case",
    [
        {"average": "ema:decay=0.8", "optimizer": "adam", "accumulate": 2},
        {"average": "swa", "optimizer": "adam", "zero": True},
        {"optimizer": "schedule_free_adamw", "sam": 0.05, "accumulate": 2},
        {"average": "ema:decay=0.8", "optimizer": "adafactor", "sam": 0.1},
    ],
    ids=["accumulate", "zero", "schedule_free", "adafactor"],
)
def test_workers_average_as_one_does(case, tmp_path):
    onnx.save(mlp_proto([3, 8, 2]), tmp_path / "net.onnx")
    (tmp_path / "script.py").write_text(SCRIPT)
    script = [str(tmp_path / "script.py"), str(tmp_path)]
    launch = ["-m", "onnxgrad", "launch", "-n", "2", "--transport", "tcp"]
    results = []
    for command, given in ((script, {**case, "zero": False}), ([*launch, *script], case)):
        subprocess.run([sys.executable, *command, json.dumps(given)], check=True, timeout=120)
        results.append(json.loads((tmp_path / "rank-0.json").read_text()))
    (one, one_loss), (several, loss) = results
    np.testing.assert_allclose(loss, one_loss, 1e-4)
    assert set(one) == set(several)
    for name, value in one.items():
        np.testing.assert_allclose(several[name], value, 2e-3, 2e-5, err_msg=name)


def test_flags_are_truth_values():
    assert not og.optimizers.as_average("ema:evaluates=no").evaluates
    with pytest.raises(og.OptionError, match="evaluates: 'maybe' is neither True nor False"):
        og.optimizers.as_average("ema:evaluates=maybe")
