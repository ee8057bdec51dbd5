"""onnxruntime-training's newer interface: artifacts, and training with them."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxgrad as og
from onnxgrad.compat.onnxruntime import OrtValue
from onnxgrad.compat.onnxruntime.training import artifacts
from onnxgrad.compat.onnxruntime.training.api import (
    CheckpointState,
    LinearLRScheduler,
    Module,
    Optimizer,
)

DATA = Path(__file__).resolve().parents[1] / "data" / "training_api"
LINEAR = """
<ir_version: 8, opset_import: ["" : 17]>
linear (float[N, 3] X) => (float[N, 2] Y)
<float[3, 2] coef = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6}, float[2] intercept = {0.5, -0.5}>
{ product = MatMul(X, coef)
  Y = Add(product, intercept) }
"""
CLASSIFIER = """
<ir_version: 8, opset_import: ["" : 17]>
classifier (float[N, 3] X) => (int64[N] label, float[N, 2] probabilities)
<float[3, 2] coef = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6}, float[2] intercept = {0.5, -0.5}>
{ product = MatMul(X, coef)
  scores = Add(product, intercept)
  probabilities = Softmax(scores)
  label = ArgMax <axis = 1, keepdims = 0> (probabilities) }
"""
BINARY = """
<ir_version: 8, opset_import: ["" : 17]>
binary (float[N, 3] X) => (float[N, 1] Y)
<float[3, 1] coef = {0.1, -0.2, 0.3}, float[1] intercept = {0.5}>
{ product = MatMul(X, coef)
  Y = Add(product, intercept) }
"""


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3)).astype(np.float32)
    y = (X @ rng.normal(size=(3, 2)) + 1).astype(np.float32)
    return X, y


def make(folder, text=LINEAR, prefix="", **options):
    """Artifacts and what trains with them."""
    options.setdefault("loss", artifacts.LossType.MSELoss)
    options.setdefault("optimizer", artifacts.OptimType.AdamW)
    options.setdefault("requires_grad", ["coef", "intercept"])
    artifacts.generate_artifacts(
        onnx.parser.parse_model(text), artifact_directory=folder, prefix=prefix, **options
    )
    return load(folder, prefix)


def load(folder, prefix="", checkpoint="checkpoint"):
    state = CheckpointState.load_checkpoint(folder / f"{prefix}{checkpoint}")
    module = Module(
        str(folder / f"{prefix}training_model.onnx"), state, folder / f"{prefix}eval_model.onnx"
    )
    return state, module, Optimizer(folder / f"{prefix}optimizer_model.onnx", module)


def mse(weights, X, y):
    """Loss and gradients in float64: the mean over all elements."""
    d = X.astype(np.float64) @ weights["coef"] + weights["intercept"] - y
    scaled = 2 * d / d.size
    return np.mean(d**2), {"coef": X.T @ scaled, "intercept": scaled.sum(axis=0)}


class AdamW:
    """The formulas of the paper (Loshchilov and Hutter, 2017, algorithm 2), in float64."""

    def __init__(self, weights, lr=1e-3, betas=(0.9, 0.999), eps=1e-6):
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.lr, self.betas, self.eps, self.t = lr, betas, eps, 0
        self.m = dict.fromkeys(weights, 0.0)
        self.v = dict.fromkeys(weights, 0.0)

    def step(self, gradients):
        self.t += 1
        for name, g in gradients.items():
            b1, b2 = self.betas
            self.m[name] = b1 * self.m[name] + (1 - b1) * g
            self.v[name] = b2 * self.v[name] + (1 - b2) * g**2
            m, v = self.m[name] / (1 - b1**self.t), self.v[name] / (1 - b2**self.t)
            self.weights[name] = self.weights[name] - self.lr * m / (np.sqrt(v) + self.eps)


def values(state):
    return {name: parameter.data for name, parameter in state.parameters}


def test_training_with_adamw_follows_the_formulas(tmp_path, data):
    X, y = data
    state, module, optimizer = make(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint", "eval_model.onnx", "optimizer_model.onnx", "training_model.onnx",
    ]  # fmt: skip
    assert module.input_names() == ["X", "target"]
    expected = AdamW(values(state))
    assert optimizer.get_learning_rate() == pytest.approx(1e-3)
    for _ in range(20):
        loss = module.train()(X, y)
        wanted, gradients = mse(expected.weights, X, y)
        assert loss.shape == ()
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(state.parameters[name].grad, gradient, rtol=1e-4, atol=1e-6)
        optimizer.step()
        module.lazy_reset_grad()
        expected.step(gradients)
        for name, value in values(state).items():
            np.testing.assert_allclose(value, expected.weights[name], rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(module.eval()(X, y), mse(expected.weights, X, y)[0], rtol=1e-5)


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
@pytest.mark.parametrize("loss", ["MSELoss", "L1Loss", "CrossEntropyLoss", "BCEWithLogitsLoss"])
def test_values_of_onnxruntime_training(tmp_path, loss, optimizer):
    """Compare with onnxruntime-training 1.19.2, run by tests/data/training_api/make_values.py."""
    with np.load(DATA / "values.npz") as stored:
        X, y, labels = stored["X"], stored["y"], stored["labels"]
        expected = stored[f"{loss}_{optimizer}"]
    target = {"CrossEntropyLoss": labels, "BCEWithLogitsLoss": (y > 0).astype(np.float32)}
    target = target.get(loss, y)
    adamw = og.optimizers.AdamW(1e-3, epsilon=1e-12, weight_decay=0.0)
    kind = {"SGD": artifacts.OptimType.SGD, "AdamW": adamw}
    state, module, update = make(tmp_path, loss=artifacts.LossType[loss], optimizer=kind[optimizer])
    assert update.get_learning_rate() == pytest.approx(1e-3)
    for step, row in enumerate(expected):
        rate = update.get_learning_rate()
        module.train()
        losses = [module(X[part], target[part]) for part in (slice(0, 8), slice(8, 16))]
        update.step()
        update.set_learning_rate(0.02 * (step + 1))
        module.lazy_reset_grad()
        module.eval()
        parameters = [state.parameters[name].data.ravel() for name in ("coef", "intercept")]
        found = np.concatenate([[rate], losses, [module(X, target)], *parameters])
        np.testing.assert_allclose(found, row, rtol=3e-5, atol=2e-6)


def test_double_precision(tmp_path, data):
    X, y = (array.astype(np.float64) for array in data)
    state, module, optimizer = make(tmp_path, LINEAR.replace("float[", "double["))
    expected = AdamW(values(state))
    for _ in range(5):
        module.lazy_reset_grad()
        loss = module(X, y)
        wanted, gradients = mse(expected.weights, X, y)
        np.testing.assert_allclose(loss, wanted, rtol=1e-12)
        optimizer.step()
        expected.step(gradients)
        for name, value in values(state).items():
            np.testing.assert_allclose(value, expected.weights[name], rtol=1e-9)


def test_gradients_add_up_until_they_are_reset(tmp_path, data):
    X, y = data
    state, module, optimizer = make(tmp_path, optimizer=artifacts.OptimType.SGD)
    first = values(state)
    one, other = (mse(first, X[rows], y[rows])[1] for rows in (slice(0, 10), slice(10, 20)))
    module(X[:10], y[:10])
    module(X[10:], y[10:])
    module.eval()(X, y)  # changes nothing
    np.testing.assert_allclose(
        state.parameters["coef"].grad, one["coef"] + other["coef"], rtol=1e-5, atol=1e-7
    )
    optimizer.set_learning_rate(0.1)
    optimizer.step()
    np.testing.assert_allclose(
        state.parameters["coef"].data, first["coef"] - 0.1 * (one["coef"] + other["coef"]),
        rtol=1e-5,
    )  # fmt: skip
    now = values(state)
    module.lazy_reset_grad()
    module.train()(X[:10], y[:10])
    np.testing.assert_allclose(
        state.parameters["coef"].grad, mse(now, X[:10], y[:10])[1]["coef"], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("loss", "formula"),
    [
        (artifacts.LossType.L1Loss, lambda s, t: np.mean(np.abs(s - t))),
        (
            artifacts.LossType.BCEWithLogitsLoss,
            lambda s, t: np.mean(np.log1p(np.exp(s)) - t * s),
        ),
        (og.losses.Huber(), None),
    ],
    ids=["L1Loss", "BCEWithLogitsLoss", "a loss of onnxgrad"],
)
def test_losses(tmp_path, data, loss, formula):
    X, y = data
    t = (y[:, :1] > 0).astype(np.float32)
    _, module, optimizer = make(tmp_path, BINARY, loss=loss)
    scores = X @ np.array([[0.1], [-0.2], [0.3]]) + 0.5
    first = module(X, t)
    if formula is not None:
        np.testing.assert_allclose(first, formula(scores, t), rtol=1e-5)
    optimizer.set_learning_rate(0.05)
    for _ in range(50):
        module.lazy_reset_grad()
        module(X, t)
        optimizer.step()
    assert module.eval()(X, t) < 0.9 * first


def test_a_classifier_is_trained_on_its_scores_and_exported_as_it_was(tmp_path, data):
    X, y = data
    labels = (y[:, 0] > y[:, 1]).astype(np.int64)
    state, module, optimizer = make(
        tmp_path, CLASSIFIER, loss=artifacts.LossType.CrossEntropyLoss,
        additional_output_names=["probabilities"],
    )  # fmt: skip
    assert module.input_names() == ["X", "labels"]
    assert module.output_names()[1] == "probabilities"
    loss, probabilities = module(X, labels)
    weights = values(state)
    scores = X.astype(np.float64) @ weights["coef"] + weights["intercept"]
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(p[np.arange(len(X)), labels]).mean(), rtol=1e-5)
    np.testing.assert_allclose(probabilities, p, rtol=1e-5)
    optimizer.set_learning_rate(0.1)
    for _ in range(100):
        module.lazy_reset_grad()
        module(X, labels)
        optimizer.step()
    module.export_model_for_inferencing(tmp_path / "trained.onnx", ["label", "probabilities"])
    trained = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(trained, full_check=True)
    assert [value.name for value in trained.graph.input] == ["X"]
    session = onnxruntime.InferenceSession(
        tmp_path / "trained.onnx", providers=["CPUExecutionProvider"]
    )
    found, p = session.run(None, {"X": X})
    assert (found == labels).mean() > 0.9
    np.testing.assert_allclose(p, module.eval()(X, labels)[1], rtol=1e-5)


def test_a_checkpoint_resumes_to_the_last_bit(tmp_path, data):
    X, y = data
    state, module, optimizer = make(tmp_path)
    state.properties["epoch"] = 3
    state.properties["name"] = "linear"

    def train(module, optimizer, steps):
        for _ in range(steps):
            module.lazy_reset_grad()
            module(X, y)
            optimizer.step()

    optimizer.set_learning_rate(0.02)
    train(module, optimizer, 5)
    CheckpointState.save_checkpoint(state, tmp_path / "later", include_optimizer_state=True)
    CheckpointState.save_checkpoint(state, tmp_path / "bare")
    train(module, optimizer, 5)
    again, *both = load(tmp_path, checkpoint="later")
    assert dict(iter(again.properties)) == {"epoch": 3, "name": "linear"}
    assert both[1].get_learning_rate() == pytest.approx(0.02)
    train(*both, 5)
    bare, *others = load(tmp_path, checkpoint="bare")
    others[1].set_learning_rate(0.02)
    train(*others, 5)
    for name, value in values(state).items():
        np.testing.assert_array_equal(values(again)[name], value)
        assert not np.array_equal(values(bare)[name], value)
    assert not list(tmp_path.glob("*.part"))


def test_linear_schedule(tmp_path, data):
    X, y = data
    _, module, optimizer = make(tmp_path, optimizer=artifacts.OptimType.SGD)
    scheduler = LinearLRScheduler(optimizer, 2, 6, 0.1)
    rates = [optimizer.get_learning_rate()]
    for _ in range(7):
        module.lazy_reset_grad()
        module(X, y)
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    np.testing.assert_allclose(rates, [0, 0.05, 0.1, 0.075, 0.05, 0.025, 0, 0], atol=1e-9)


def test_parameters_can_be_set_one_by_one_and_all_together(tmp_path, data):
    X, y = data
    state, module, optimizer = make(
        tmp_path, requires_grad=["coef"], frozen_params=["intercept"],
        optimizer=og.optimizers.SGD(0.5),
    )  # fmt: skip
    assert [name for name, _ in state.parameters] == ["coef", "intercept"]
    assert not state.parameters["intercept"].requires_grad
    assert len(state.parameters) == 2
    assert "coef" in state.parameters
    assert (module.get_parameters_size(), module.get_parameters_size(False)) == (6, 8)
    new = {"coef": np.full((3, 2), 0.25, np.float32), "intercept": np.float32([1, 2])}
    for name, value in new.items():
        state.parameters[name] = value
    np.testing.assert_allclose(module(X, y), mse(new, X, y)[0], rtol=1e-5)
    optimizer.step()
    wanted = new["coef"] - 0.5 * mse(new, X, y)[1]["coef"]
    np.testing.assert_allclose(state.parameters["coef"].data, wanted, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(state.parameters["intercept"].data, [1, 2])

    buffer = module.get_contiguous_parameters(trainable_only=False)
    np.testing.assert_allclose(buffer.numpy()[:6], wanted.ravel(), rtol=1e-5, atol=1e-7)
    module.copy_buffer_to_parameters(OrtValue(np.arange(6, dtype=np.float32)))
    np.testing.assert_array_equal(state.parameters["coef"].data, [[0, 1], [2, 3], [4, 5]])
    now = values(state)
    module.lazy_reset_grad()
    np.testing.assert_allclose(module(X, y), mse(now, X, y)[0], rtol=1e-5)
    with pytest.raises(ValueError, match="has 5 elements"):
        module.copy_buffer_to_parameters(np.zeros(5, np.float32))
    with pytest.raises(ValueError, match=r"float32 \[2\]"):
        state.parameters["intercept"] = np.zeros(3, np.float32)
    for array in (state.parameters["coef"].data, state.parameters["coef"].grad):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    with pytest.raises(KeyError, match="intercpt"):
        state.parameters["intercpt"]
    with pytest.raises(TypeError, match="property"):
        state.properties["list"] = [1]


def test_ort_values_give_ort_values(tmp_path, data):
    X, y = data
    _, module, _ = make(tmp_path)
    loss = module(OrtValue(X), onnxruntime.OrtValue.ortvalue_from_numpy(y))
    assert isinstance(loss, OrtValue)
    np.testing.assert_allclose(loss.numpy(), module(X, y), rtol=1e-6)


def test_the_optimizer_model_is_an_update_for_any_runtime(tmp_path, data):
    X, y = data
    state, module, optimizer = make(tmp_path, prefix="my_")
    module(X, y)
    session = onnxruntime.InferenceSession(
        tmp_path / "my_optimizer_model.onnx", providers=["CPUExecutionProvider"]
    )
    feeds = {}
    for value in session.get_inputs():
        if value.name.endswith(".gradient"):
            feeds[value.name] = state.parameters[value.name.removesuffix(".gradient")].grad
        elif value.name == "learning_rate":
            feeds[value.name] = np.array(1e-3, np.float32)
        elif value.name in ("label", "target"):
            feeds[value.name] = np.zeros((1, 1), np.float32)
    outputs = [value.name for value in session.get_outputs()]
    results = dict(zip(outputs, session.run(None, feeds), strict=True))
    optimizer.step()
    for name in ("coef", "intercept"):
        np.testing.assert_allclose(results[f"next/{name}"], state.parameters[name].data, rtol=1e-6)


def test_a_loss_of_the_model_itself(tmp_path, data):
    X, y = data
    model = og.add_loss(onnx.parser.parse_model(LINEAR), "squared_error", target="t")
    onnx.save(model, tmp_path / "with_loss.onnx")
    artifacts.generate_artifacts(
        str(tmp_path / "with_loss.onnx"), requires_grad=["coef"],
        optimizer=artifacts.OptimType.SGD, artifact_directory=tmp_path, nominal_checkpoint=True,
    )  # fmt: skip
    state, module, _ = load(tmp_path, checkpoint="nominal_checkpoint")
    assert module.input_names() == ["X", "t"]
    with pytest.raises(RuntimeError, match="load the model parameters first"):
        module(X, y)
    module.copy_buffer_to_parameters(np.arange(6, dtype=np.float32))
    weights = {"coef": state.parameters["coef"].data, "intercept": np.array([0.5, -0.5])}
    np.testing.assert_allclose(module(X, y), mse(weights, X, y)[0], rtol=1e-5)


def test_what_is_refused(tmp_path, data):
    X, y = data
    with pytest.raises(RuntimeError, match=r"\['coef'\]"):
        make(tmp_path, frozen_params=["coef"])
    with pytest.raises(RuntimeError, match="Unknown loss"):
        make(tmp_path, loss="mse")
    with pytest.raises(TypeError, match="Unknown optimizer"):
        make(tmp_path, optimizer="adam")
    with pytest.raises(RuntimeError, match="must be a list"):
        make(tmp_path, additional_output_names="Y")
    with pytest.raises(RuntimeError, match="'Z' is not an output"):
        make(tmp_path, additional_output_names=["Z"])
    with pytest.raises(RuntimeError, match="one output"):
        make(tmp_path, loss_input_names=["Y", "Z"])
    for name in ("ort_format", "custom_op_library"):
        with pytest.raises(NotImplementedError, match=name):
            make(tmp_path, **{name: True})
    state, module, optimizer = make(tmp_path)
    with pytest.raises(RuntimeError, match="training mode first"):
        optimizer.step()
    with pytest.raises(ValueError, match="1 inputs were given"):
        module(X)
    only_training = Module(tmp_path / "training_model.onnx", state)
    with pytest.raises(RuntimeError, match="eval_model_uri"):
        only_training.eval()(X, y)
    onnx.save(onnx.parser.parse_model(LINEAR), tmp_path / "plain.onnx")
    with pytest.raises(ValueError, match="generate_artifacts"):
        Module(tmp_path / "plain.onnx", state)
    with pytest.raises(RuntimeError, match="cuda"):
        Module(tmp_path / "training_model.onnx", state, device="cuda")


def test_import_path_of_programs():
    import onnxgrad.compat.onnxruntime as ort

    assert ort.training.artifacts is artifacts
    assert ort.training.api.Module is Module
