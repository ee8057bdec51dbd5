"""TrainingSession of the detailed linear regression, with its printed numbers."""

import os

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import make_regression
from sklearn.linear_model import LinearRegression

from compat_models import linear_regression, polynomial, run
from onnxgrad.compat.onnxcustom.training.data_loader import OrtDataLoader
from onnxgrad.compat.onnxcustom.utils.onnx_helper import replace_initializers_into_onnx
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import add_loss_output
from onnxgrad.compat.onnxruntime import (
    InferenceSession,
    OrtValue,
    SessionOptions,
    TrainingParameters,
    TrainingSession,
    get_device,
)
from support import run_python

RATE = np.array([0.001], np.float32)


def make_session(model, weights=("coefs", "intercept"), optimizer="SGDOptimizer", **attributes):
    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.weights_to_train = set(weights)
    parameters.training_optimizer_name = optimizer
    parameters.optimizer_attributes_map = {name: dict(attributes) for name in weights}
    parameters.optimizer_int_attributes_map = {name: {} for name in weights}
    options = SessionOptions()
    options.use_deterministic_compute = True
    return TrainingSession(model.SerializeToString(), parameters, options)


def test_inputs_and_outputs_as_printed():
    session = make_session(linear_regression([1, 2], 3, with_loss=True))
    assert [f"{i.name} ({i.type}{i.shape})" for i in session.get_inputs()] == [
        "X (tensor(float)[None, 2])",
        "label (tensor(float)[None, 1])",
        "Learning_Rate (tensor(float)[1])",
    ]
    assert [f"{o.name} ({o.type}{o.shape})" for o in session.get_outputs()] == [
        "loss (tensor(float)[1, 1])",
        "Y (tensor(float)[None, 1])",
        "global_gradient_norm (tensor(float)[])",
    ]
    assert [*session.get_state()] == ["coefs", "intercept"]


def test_second_step_as_printed():
    coefs = [-1.9766996, -0.5457616]
    session = make_session(linear_regression(coefs, -0.8779792, with_loss=True))
    feeds = {
        "X": np.array([[-0.6122115, -1.2465174]], np.float32),
        "label": np.array([[-145.45398]], np.float32),
        "Learning_Rate": RATE,
    }
    loss, y, norm = session.run(None, feeds)
    assert (loss.shape, y.shape, norm.shape) == ((1, 1), (1, 1), ())
    np.testing.assert_allclose(loss, [[21452.424]], rtol=1e-4)
    np.testing.assert_allclose(y, [[1.01248]], rtol=1e-4)
    np.testing.assert_allclose(norm, 501.30127, rtol=1e-4)
    state = session.get_state()
    np.testing.assert_allclose(state["coefs"], [[-1.7973627], [-0.18061563]], rtol=1e-4)
    np.testing.assert_allclose(state["intercept"], [-1.1709121], rtol=1e-4)


def test_steps_are_those_of_numpy_on_batches_of_any_size():
    session = make_session(linear_regression([1, -1], 0.5, with_loss=True))
    w, b = np.array([[1.0], [-1.0]]), 0.5
    rng = np.random.default_rng(0)
    for rows in (1, 7, 3, 7, 20):
        X, label = rng.normal(size=(rows, 2)), rng.normal(size=(rows, 1))
        d = X @ w + b - label
        gradient = np.concatenate([2 * X.T @ d, [[2 * d.sum()]]])
        feeds = {"X": X.astype(np.float32), "label": label.astype(np.float32)}
        found = session.run(
            ["global_gradient_norm", "loss"],
            {**feeds, "Learning_Rate": OrtValue(np.array([0.02], np.float32))},
        )
        np.testing.assert_allclose(found[0], np.linalg.norm(gradient), rtol=1e-5)
        np.testing.assert_allclose(found[1].item(), np.sum(d**2), rtol=1e-5)
        w, b = w - 0.02 * gradient[:2], b - 0.02 * gradient[2, 0]
    np.testing.assert_allclose(session.get_state()["coefs"], w, rtol=1e-5)
    np.testing.assert_allclose(session.get_state()["intercept"], [b], rtol=1e-5)


def test_adam_obeys_its_attributes():
    """Two steps of Adam by its formulas, with attributes that are not the defaults."""
    attributes = {"alpha": 0.8, "beta": 0.9, "epsilon": 1e-3, "lambda": 0.0}
    model = linear_regression([1, -1], 0.5, with_loss=True)
    session = make_session(model, optimizer="AdamOptimizer", **attributes)
    w, m, v = np.array([1.0, -1.0, 0.5]), np.zeros(3), np.zeros(3)
    X, label = np.array([[1.0, 2.0], [0.5, -1.0]]), np.array([[1.0], [2.0]])
    ones = np.column_stack([X, np.ones(2)])
    for t in (1, 2):
        feeds = {"X": X.astype(np.float32), "label": label.astype(np.float32)}
        session.run(None, {**feeds, "Learning_Rate": np.array([0.1], np.float32)})
        g = 2 * ones.T @ (ones @ w - label.ravel())
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        size = np.sqrt(v / (1 - 0.9**t)) + 1e-3
        w = w - 0.1 * m / (1 - 0.8**t) / size
    state = session.get_state()
    found = np.append(state["coefs"].ravel(), state["intercept"])
    np.testing.assert_allclose(found, w, rtol=1e-5)


def parameters_of(weights=("coefs", "intercept"), **fields):
    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.weights_to_train = set(weights)
    for name, value in fields.items():
        setattr(parameters, name, value)
    return parameters


FEEDS = {
    "X": np.array([[1, 2], [0.5, -1]], np.float32),
    "label": np.array([[1], [2]], np.float32),
    "Learning_Rate": np.array([0.1], np.float32),
}


def test_attributes_may_differ_between_weights():
    """Three steps of Adam by NumPy, each weight with its own alpha, beta and epsilon."""
    attributes = {
        "coefs": {"alpha": 0.8, "beta": 0.95, "epsilon": 1e-3},
        "intercept": {"alpha": 0.5, "lambda": 0.25},
        "not trained": {"alpha": 0.1},
    }
    parameters = parameters_of(
        training_optimizer_name="AdamOptimizer", optimizer_attributes_map=attributes
    )
    session = TrainingSession(linear_regression([1, -1], 0.5, with_loss=True), parameters)
    w = {"coefs": np.array([[1.0], [-1.0]]), "intercept": np.array([0.5])}
    m, v = ({name: np.zeros_like(value) for name, value in w.items()} for _ in range(2))
    for step in (1, 2, 3):
        session.run(None, FEEDS)
        d = FEEDS["X"] @ w["coefs"] + w["intercept"] - FEEDS["label"]
        gradients = {"coefs": 2 * FEEDS["X"].T @ d, "intercept": 2 * d.sum(axis=0)}
        for name, g in gradients.items():
            given = {"beta": 0.999, "epsilon": 1e-8, "lambda": 0.0, **attributes[name]}
            m[name] = given["alpha"] * m[name] + (1 - given["alpha"]) * g
            v[name] = given["beta"] * v[name] + (1 - given["beta"]) * g**2
            rate = 0.1 / (1 - given["alpha"] ** step)
            root = np.sqrt(v[name] / (1 - given["beta"] ** step)) + given["epsilon"]
            w[name] = w[name] * (1 - 0.1 * given["lambda"]) - rate * m[name] / root
    for name, value in session.get_state().items():
        np.testing.assert_allclose(value, w[name], rtol=1e-5)
    parameters.optimizer_attributes_map = {"coefs": {"gamma": 1}}
    with pytest.raises(NotImplementedError, match="no attribute gamma=1"):
        TrainingSession(linear_regression([1, -1], 0.5, with_loss=True), parameters)


def test_weight_decay_may_differ_between_weights():
    """The first step of Adam is one of size lr; the decay lr * lambda * w comes to one weight."""
    parameters = parameters_of(
        training_optimizer_name="AdamOptimizer",
        optimizer_attributes_map={"coefs": {"lambda": 0.5, "epsilon": 0.0}},
    )
    parameters.optimizer_attributes_map["intercept"] = {"epsilon": 0.0}
    model = linear_regression([1, -1], 0.5, with_loss=True)
    for decays in ((0.5, 0.0), (0.0, 0.5)):
        for name, decay in zip(("coefs", "intercept"), decays, strict=True):
            parameters.optimizer_attributes_map[name]["lambda"] = decay
        session = TrainingSession(model, parameters)
        session.run(None, FEEDS)
        # Errors -1.5 and 0: gradients -3, -6 and -3.
        coefs = np.array([[1.0], [-1.0]])
        state = session.get_state()
        np.testing.assert_allclose(state["coefs"], coefs * (1 - 0.1 * decays[0]) + 0.1, rtol=1e-5)
        np.testing.assert_allclose(state["intercept"], [0.5 * (1 - 0.1 * decays[1]) + 0.1], 1e-5)


def test_gradients_are_clipped_to_a_norm_of_one():
    model = linear_regression([1, -1], 0.5, with_loss=True)
    session = TrainingSession(model, parameters_of(enable_grad_norm_clip=True))
    norm = session.run(["global_gradient_norm"], FEEDS)[0]
    X, label = FEEDS["X"].astype(float), FEEDS["label"].ravel()
    ones = np.column_stack([X, np.ones(2)])
    gradient = 2 * ones.T @ (ones @ [1, -1, 0.5] - label)
    np.testing.assert_allclose(norm, np.linalg.norm(gradient), rtol=1e-5)
    state = session.get_state()
    found = np.append(state["coefs"].ravel(), state["intercept"])
    expected = np.array([1, -1, 0.5]) - 0.1 * gradient / np.linalg.norm(gradient)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_mixed_precision", True),
        ("gradient_accumulation_steps", 4),
        ("set_gradients_as_graph_outputs", True),
        ("world_size", 2),
        ("model_with_gradient_graph_path", "gradient.onnx"),
        ("model_with_training_graph_path", "training.onnx"),
    ],
)
def test_unsupported_parameters_are_refused_by_name(name, value):
    model = linear_regression([1, -1], 0.5, with_loss=True)
    with pytest.raises(NotImplementedError, match=f"{name}={value!r}"):
        TrainingSession(model, parameters_of(**{name: value}))


def test_run_options_that_change_a_run_are_refused_by_name():
    session = make_session(linear_regression([1, -1], 0.5, with_loss=True))
    for name in ("terminate", "only_execute_path_to_fetches"):
        options = onnxruntime.RunOptions()
        setattr(options, name, True)
        with pytest.raises(NotImplementedError, match=f"run_options.{name}=True"):
            session.run(None, FEEDS, options)
        with pytest.raises(NotImplementedError, match=f"run_options.{name}=True"):
            session.run_with_iobinding(session.io_binding(), options)
    np.testing.assert_array_equal(session.get_state()["intercept"], [0.5])
    options = onnxruntime.RunOptions()
    options.log_severity_level, options.logid = 4, "quiet"
    session.run(None, FEEDS, options)
    assert session.get_state()["intercept"] != 0.5


def test_states_are_set_and_only_wanted_weights_move():
    session = make_session(linear_regression([1, -1], 0.5, with_loss=True), ["intercept"])
    session.load_state({"intercept": np.array([4], np.float32)})
    feeds = {
        "X": np.ones((2, 2), np.float32),
        "label": np.zeros((2, 1), np.float32),
        "Learning_Rate": RATE,
    }
    y = session.run(["Y"], feeds)[0]
    np.testing.assert_allclose(y, [[4], [4]])
    assert [*session.get_state()] == ["intercept"]
    np.testing.assert_allclose(session.get_state()["intercept"], [4 - 0.001 * 16], rtol=1e-6)
    trained = session.trained_model()
    np.testing.assert_allclose(
        run(trained, {"X": feeds["X"], "label": feeds["label"]}, ["Y"])[0],
        np.full((2, 1), 4 - 0.016),
        rtol=1e-6,
    )


@pytest.mark.skipif(
    os.environ.get("ONNXGRAD_DEVICE") == "cuda", reason="the default device is a card"
)
def test_errors():
    model = linear_regression([1, -1], 0.5, with_loss=True)
    with pytest.raises(ValueError, match="no weights"):
        make_session(model, ["no"])
    with pytest.raises(ValueError, match="no output 'loss'"):
        make_session(linear_regression([1, -1], 0.5))
    with pytest.raises(NotImplementedError, match="training_optimizer_name='no'"):
        make_session(model, optimizer="no")
    with pytest.raises(NotImplementedError, match="no attribute gamma"):
        make_session(model, optimizer="AdamOptimizer", gamma=1)
    session = make_session(model)
    with pytest.raises(ValueError, match="Learning_Rate"):
        session.run(None, {})
    with pytest.raises(ValueError, match="Expected the weights"):
        session.load_state({"no": RATE})
    parameters = TrainingParameters()
    parameters.loss_output_name, parameters.weights_to_train = "loss", {"coefs"}
    with pytest.raises(RuntimeError, match="cuda"):
        TrainingSession(model, parameters, providers=["CUDAExecutionProvider"])


def train_recipe(seed):
    """The document's whole recipe: 10 epochs of batches of 10, rates 0.01 / (t + 1)^0.25."""
    np.random.seed(seed)  # noqa: NPY002
    X, y = make_regression(n_features=2, bias=2, random_state=seed)
    X, y = X.astype(np.float32), y.astype(np.float32)
    reference = LinearRegression().fit(X, y)
    start = np.random.randn(3)  # noqa: NPY002
    session = make_session(linear_regression(start[:2], start[2], with_loss=True))
    loader = OrtDataLoader(X, y, batch_size=10)
    rate, losses = 0.01, []
    for epoch in range(10):
        found = []
        for data, target in loader:
            feeds = {"X": data, "label": target, "Learning_Rate": np.array([rate], np.float32)}
            found.append(session.run(["loss"], feeds)[0].item())
        losses.append(np.mean(found))
        rate = 0.01 / (epoch + 1) ** 0.25
    state = session.get_state()
    found = np.append(state["coefs"].ravel(), state["intercept"])
    expected = np.append(reference.coef_, reference.intercept_)
    return losses, np.abs(found - expected).max(), state, X


def test_recipe_over_twenty_seeds():
    results = [train_recipe(seed)[:2] for seed in range(20)]
    assert np.median([losses[-1] for losses, _ in results]) < 1e-5
    assert np.median([error for _, error in results]) < 1e-3


def test_weights_go_back_into_the_first_model():
    _, error, state, X = train_recipe(0)
    assert error < 1
    model = linear_regression([0, 0], 0)
    trained = replace_initializers_into_onnx(model, state)
    session = InferenceSession(trained.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        session.run(None, {"X": X[:5]})[0],
        X[:5] @ state["coefs"] + state["intercept"],
        rtol=1e-4,
        atol=1e-4,
    )
    assert get_device() in ("CPU", "GPU")


def test_penalties_and_weights_of_rows_are_part_of_the_gradient():
    model = add_loss_output(
        linear_regression([3, -2], 1),
        weight_name="weight",
        score_name="elastic",
        l1_weight=0.1,
        l2_weight=0.9,
        penalty={"coefs": {"l2": 0.01}},
    )
    session = make_session(model)
    rng = np.random.default_rng(0)
    X, label, w = rng.normal(size=(9, 2)), rng.normal(size=(9, 1)), rng.uniform(1, 2, 9)
    feeds = {"X": X, "label": label, "weight": w, "Learning_Rate": RATE}
    session.run(None, {name: value.astype(np.float32) for name, value in feeds.items()})
    d = X @ [[3], [-2]] + 1 - label
    back = w[:, None] * (0.1 * np.sign(d) + 1.8 * d)
    coefs = np.array([[3], [-2]])
    expected = coefs - 0.001 * (X.T @ back + 0.02 * coefs)
    np.testing.assert_allclose(session.get_state()["coefs"], expected, rtol=1e-6)


WITHOUT_ONNXRUNTIME = """
import sys
sys.modules["onnxruntime"] = None
import numpy as np
from onnxgrad.compat import onnxruntime as ort
from onnxgrad.compat.mlprodict.onnxrt import OnnxInference
x = {"X": np.ones((1, 2), np.float32)}
session = ort.InferenceSession(sys.argv[1], ort.SessionOptions(), providers=["CPU"])
options = ort.RunOptions()
options.log_severity_level = 4
print(session.run(None, x, options)[0].item())
print(OnnxInference(sys.argv[1], runtime="onnxruntime1").run(x)["Y"])
print(ort.get_device(), ort.__version__, session.get_providers())
try:
    ort.IOBinding
except AttributeError as error:
    print(error)
"""


@pytest.mark.skipif(
    os.environ.get("ONNXGRAD_DEVICE") == "cuda", reason="the default device is a card"
)
def test_everything_works_without_stock_onnxruntime(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(linear_regression([2, 3], 1).SerializeToString())
    done = run_python(WITHOUT_ONNXRUNTIME, path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["6.0", "[[6.]]"]
    assert lines[2].startswith("CPU ")
    assert "stock onnxruntime, which is not installed" in lines[3]


def test_bound_inputs_and_outputs_are_those_of_run():
    model = linear_regression([1, -1], 0.5, with_loss=True)
    plain, bound = make_session(model), make_session(model)
    rng = np.random.default_rng(0)
    binding = bound.io_binding()
    norm = OrtValue(np.zeros((), np.float32))
    rate = onnxruntime.OrtValue.ortvalue_from_numpy(np.array([0.02], np.float32))
    for _ in range(3):
        X, label = rng.normal(size=(2, 4, 2)).astype(np.float32)
        label = np.ascontiguousarray(label[:, :1])
        feeds = {"X": X, "label": label, "Learning_Rate": np.array([0.02], np.float32)}
        expected = plain.run(["loss", "global_gradient_norm"], feeds)
        binding.bind_input("X", "cpu", 0, np.float32, X.shape, X.ctypes.data)
        binding.bind_cpu_input("label", label)
        binding.bind_ortvalue_input("Learning_Rate", rate)
        binding.bind_output("loss", "cpu")
        binding.bind_ortvalue_output("global_gradient_norm", norm)
        bound._sess.run_with_iobinding(binding._iobinding)
        for found, value in zip(binding.copy_outputs_to_cpu(), expected, strict=True):
            np.testing.assert_array_equal(found, value)
        assert binding.get_outputs()[1] is norm
    np.testing.assert_array_equal(bound.get_state()["coefs"], plain.get_state()["coefs"])
    with pytest.raises(ValueError, match="no output 'no'"):
        binding.bind_output("no")
    with pytest.raises(RuntimeError, match="not available"):
        binding.bind_input("X", "cuda", 0, np.float32, [1], 0)
    binding.clear_binding_inputs()
    with pytest.raises(ValueError, match="Learning_Rate"):
        bound.run_with_iobinding(binding)


def test_models_without_names_of_dimensions_and_other_weights():
    session = make_session(add_loss_output(polynomial()), ["init_b10", "init"])
    assert [*session.get_state()] == ["init", "init_b10"]
