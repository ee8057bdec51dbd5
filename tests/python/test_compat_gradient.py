"""Gradients and losses as graphs, with the numbers that the notebook prints."""

import numpy as np
import onnx
import pytest

from compat_models import POINTS, linear_regression, names, polynomial, run
from onnxgrad.compat.mlprodict.onnx_tools.onnx_manipulations import (
    onnx_rename_names,
    select_model_inputs_outputs,
)
from onnxgrad.compat.onnxcustom.training.grad_helper import DerivativeOptions, onnx_derivative
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import (
    add_loss_output,
    get_train_initializer,
    penalty_loss_onnx,
)
from onnxgrad.compat.onnxruntime import GradientGraphBuilder

WEIGHTS = ["init", "init_1", "init_b10"]
LABEL_OPTIONS = DerivativeOptions.FillGrad | DerivativeOptions.KeepOutputs


def test_inputs_and_outputs_of_the_gradient():
    grad = onnx_derivative(polynomial())
    assert names(grad.graph.input) == ["x", *WEIGHTS, "y_grad"]
    assert names(grad.graph.output) == ["x_grad", *(f"{name}_grad" for name in WEIGHTS)]
    assert {node.domain for node in grad.graph.node} == {""}
    assert not {*WEIGHTS} & {*names(grad.graph.initializer)}
    onnx.checker.check_model(grad, full_check=True)


def test_numbers_of_the_notebook():
    model = polynomial()
    y = run(model, {"x": POINTS})[0]
    np.testing.assert_allclose(
        y.ravel(), [-1, -2.5, 1.6666701, 0.16667008, 1.6666799], rtol=1e-6, atol=1e-6
    )
    loss = select_model_inputs_outputs(add_loss_output(model), outputs=["loss"])
    grad = onnx_rename_names(onnx_derivative(loss, options=LABEL_OPTIONS))
    assert names(grad.graph.input) == ["x", "label", *WEIGHTS]
    assert names(grad.graph.output) == [
        "x_grad", "label_grad", "init_grad", "init_1_grad", "init_b10_grad", "loss",
    ]  # fmt: skip
    feeds = {
        "x": POINTS,
        "label": y,
        "init": np.array([[2, 3]], np.float32),
        "init_1": np.array([[0.5, 0.33333]], np.float32),
        "init_b10": np.array([1], np.float32),
    }
    found = dict(zip(names(grad.graph.output), run(grad, feeds), strict=True))
    printed = {
        "loss": [[532.5546]],
        "init_grad": [[193.33316, 186.66649]],
        "init_1_grad": [[109.333244, 102.666565]],
        "init_b10_grad": [76.6666],
        "label_grad": [[-4], [-12], [-5.33332], [-13.333321], [-41.99996]],
        "x_grad": [
            [2, 1.33332],
            [54, 3.99996],
            [2.66666, 33.777676],
            [59.999943, 84.44432],
            [356.99966, 517.9994],
        ],
    }
    for name, value in printed.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6, err_msg=name)
        assert found[name].shape == np.shape(value)


def test_a_part_of_weights_and_inputs():
    grad = onnx_derivative(polynomial(), weights=["init_1"], inputs=[])
    assert names(grad.graph.output) == ["init_1_grad"]


def test_loss_option_keeps_the_loss_and_leaves_the_label_out(tmp_path):
    model = add_loss_output(polynomial())
    path = tmp_path / "grad.onnx"
    grad = onnx_derivative(
        model, options=DerivativeOptions.Loss, loss="loss", label="label", path_name=str(path)
    )
    assert names(grad.graph.output) == [
        "x_grad", "init_grad", "init_1_grad", "init_b10_grad", "loss",
    ]  # fmt: skip
    assert onnx.load(path) == grad
    with pytest.raises(ValueError, match="must be one of the outputs"):
        onnx_derivative(model, options=DerivativeOptions.Loss, loss="no")


def test_refused_options():
    with pytest.raises(NotImplementedError, match="YieldOp"):
        onnx_derivative(polynomial(), options=DerivativeOptions.KeepYieldOp)
    with pytest.raises(TypeError, match="DerivativeOptions"):
        onnx_derivative(polynomial(), options=4)


def test_loss_is_the_first_output_and_label_the_second_input():
    model = add_loss_output(polynomial())
    assert names(model.graph.input) == ["x", "label"]
    assert names(model.graph.output) == ["loss", "y"]
    assert [n.op_type for n in model.graph.node][-3:] == ["Sub", "Mul", "ReduceSum"]
    onnx.checker.check_model(model, full_check=True)
    label = np.zeros((5, 1), np.float32)
    loss, y = run(model, {"x": POINTS, "label": label})
    assert loss.shape == (1, 1)
    np.testing.assert_allclose(loss, [[np.sum(y**2)]], rtol=1e-6)


def elastic_loss(d, w, l1, l2):
    return np.sum(w * (l1 * np.abs(d) + l2 * d**2))


@pytest.mark.parametrize(
    ("score", "options", "l1", "l2"),
    [
        ("squared_error", {}, 0, 1),
        ("l2", {}, 0, 1),
        ("absolute_error", {}, 1, 0),
        ("l1", {}, 1, 0),
        ("elastic", {}, 0.5, 0.5),
        ("elastic", {"l1_weight": 0.1, "l2_weight": 0.9}, 0.1, 0.9),
    ],
)
@pytest.mark.parametrize(
    ("penalty", "added"),
    [
        (None, 0.0),
        ({"coefs": {"l2": 0.01}}, 0.01 * (9 + 4)),
        ({"coefs": {"l1": 0.2, "l2": 0.01}, "intercept": 0.5}, 0.2 * 5 + 0.13 + 0.5 * 4),
    ],
    ids=["none", "l2", "several"],
)
@pytest.mark.parametrize("weight", [None, "weight"])
def test_values_of_losses(score, options, l1, l2, penalty, added, weight):
    rng = np.random.default_rng(1)
    X, label = rng.normal(size=(6, 2)), rng.normal(size=(6, 1))
    w = rng.uniform(0.1, 2, 6) if weight else np.ones(6)
    expected = elastic_loss(X @ [[3], [-2]] + 2 - label, w[:, None], l1, l2) + added
    model = add_loss_output(
        linear_regression([3, -2], 2),
        score_name=score,
        weight_name=weight,
        penalty=penalty,
        **options,
    )
    onnx.checker.check_model(model, full_check=True)
    feeds = {"X": X, "label": label, **({"weight": w} if weight else {})}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    loss = run(model, feeds, ["loss"])[0]
    assert loss.shape == (1, 1)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-5)


@pytest.mark.parametrize("weight", [None, "weight"])
def test_log_loss(weight):
    from sklearn.metrics import log_loss

    rng = np.random.default_rng(2)
    X, label = rng.normal(size=(8, 2)).astype(np.float32), rng.integers(0, 2, (8, 1))
    w = rng.uniform(0.1, 2, 8).astype(np.float32)
    text = """
    <ir_version: 8, opset_import: ["" : 15]>
    m (float[N, 2] X) => (float[N, 2] p) <float[2, 2] A = {1, 2, -1, 0.5}>
    { s = MatMul(X, A)  p = Softmax(s) }
    """
    model = add_loss_output(onnx.parser.parse_model(text), "log", weight_name=weight)
    feeds = {"X": X, "label": label, **({"weight": w} if weight else {})}
    loss, p = run(model, feeds)
    rows = -np.log(p[np.arange(8), label.ravel()])
    if weight is None:
        np.testing.assert_allclose(loss.item(), log_loss(label.ravel(), p), rtol=1e-5)
    else:
        np.testing.assert_allclose(loss.item(), np.mean(rows * w), rtol=1e-5)


def test_errors_of_add_loss_output():
    model = linear_regression([3, -2], 2)
    with pytest.raises(ValueError, match="score_name"):
        add_loss_output(model, "no")
    with pytest.raises(ValueError, match="has no options"):
        add_loss_output(model, "l1", l1_weight=2)
    with pytest.raises(ValueError, match="Unable to find weight"):
        add_loss_output(model, penalty={"no": 1})
    with pytest.raises(ValueError, match="output_index"):
        add_loss_output(add_loss_output(model))
    twice = add_loss_output(add_loss_output(model), output_index="Y", loss_name="again")
    assert names(twice.graph.output) == ["again", "loss", "Y"]
    assert names(twice.graph.input) == ["X", "label", "label_2"]


def test_train_initializers_are_those_of_floating_type():
    found = get_train_initializer(polynomial())
    assert [*found] == WEIGHTS
    np.testing.assert_array_equal(found["init_1"][0], [[-2, 3]])
    assert found["init_1"][1].name == "init_1"


def test_penalty_needs_a_factor():
    with pytest.raises(ValueError, match="l1 and l2"):
        penalty_loss_onnx("w", np.float32)


def test_gradient_graph_builder(tmp_path):
    model = add_loss_output(polynomial())
    builder = GradientGraphBuilder(
        model.SerializeToString(), {"loss"}, {"x", "init_b10", "init_1"}, "loss"
    )
    with pytest.raises(RuntimeError, match="build"):
        builder.get_model()
    builder.build()
    builder.save(tmp_path / "grad.onnx")
    grad = onnx.load(tmp_path / "grad.onnx")
    assert names(grad.graph.output) == ["x_grad", "init_1_grad", "init_b10_grad", "loss"]
