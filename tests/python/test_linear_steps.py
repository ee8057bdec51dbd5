"""Steps of linear models in one kernel, compared with NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

import onnxgrad as og

GENERATOR = np.random.default_rng(11)
RATE = 0.03


def linear(features: int, dtype: type, form: str, has_bias: bool = True) -> bytes:
    """`form`: "matmul", or "gemm" with the weight as PyTorch exports it, or "scaled" gemm."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weight = GENERATOR.standard_normal((features, 1)).astype(dtype)
    constants = {"W": weight if form == "matmul" else np.ascontiguousarray(weight.T)}
    if has_bias:
        constants["B"] = GENERATOR.standard_normal(1).astype(dtype)
    if form == "matmul":
        nodes = [helper.make_node("MatMul", ["X", "W"], ["m" if has_bias else "Y"])]
        if has_bias:
            nodes.append(helper.make_node("Add", ["m", "B"], ["Y"]))
    else:
        scales = {"alpha": 0.5, "beta": 2.0} if form == "scaled" else {}
        nodes = [helper.make_node("Gemm", ["X", *constants], ["Y"], transB=1, **scales)]
    graph = helper.make_graph(
        nodes, "linear", [helper.make_tensor_value_info("X", kind, ["N", features])],
        [helper.make_tensor_value_info("Y", kind, ["N", 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def trained(session: og.TrainingSession) -> list[np.ndarray]:
    state = session.state()
    return [state[weight.name].astype(np.float64) for weight in session.trained_weights]


def expected(
    model: bytes, x: np.ndarray, y: np.ndarray, batch: int, epochs: int, mean: bool, scaled: bool
) -> tuple[list[np.ndarray], list[float]]:
    """Weights of plain gradient descent in float64, and the mean loss of each epoch."""
    weights = trained(og.TrainingSession(model, "squared_error"))
    alpha, beta = (0.5, 2.0) if scaled else (1.0, 1.0)
    losses = []
    for _ in range(epochs):
        total = 0.0
        for begin in range(0, len(x), batch):
            rows, target = x[begin : begin + batch], y[begin : begin + batch]
            w = weights[0].reshape(-1, 1)
            z = alpha * (rows @ w) - target
            if len(weights) > 1:
                z = z + beta * weights[1]
            share = 1 / len(rows) if mean else 1
            total += share * float((z**2).sum()) * (len(rows) if mean else 1)
            weights[0] -= RATE * 2 * share * alpha * (rows.T @ z).reshape(weights[0].shape)
            if len(weights) > 1:
                weights[1] -= RATE * 2 * share * beta * z.sum()
        losses.append(total / len(x))
    return weights, losses


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", ["matmul", "gemm", "scaled"])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("batch", "features"), [(1, 1), (1, 2), (4, 1), (5, 2), (7, 9), (1, 40)])
def test_training(dtype: type, form: str, has_bias: bool, batch: int, features: int) -> None:
    model = linear(features, dtype, form, has_bias)
    x = GENERATOR.standard_normal((23, features)) / np.sqrt(features)  # a smaller last batch
    y = GENERATOR.standard_normal((23, 1))
    trainer = og.Trainer(model, "squared_error", og.optimizers.SGD(RATE), threads=1)
    trainer.fit(
        x.astype(dtype), y.astype(dtype), epochs=3, batch_size=batch, shuffle=False, verbose=0
    )
    if features > 1 or form != "scaled":
        assert "LinearStep" in trainer.session.plan_summary()
    weights, losses = expected(model, x, y, batch, 3, mean=True, scaled=form == "scaled")
    tolerance = 1e-12 if dtype is np.float64 else 2e-5
    for ours, theirs in zip(trained(trainer.session), weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(trainer.history["train_loss"], losses, rtol=30 * tolerance)


@pytest.mark.parametrize(
    ("options", "is_one_kernel"),
    [
        ({"optimizer": og.optimizers.SGD(RATE)}, True),
        ({"optimizer": og.optimizers.SGD(RATE, momentum=0.9)}, False),
        ({"optimizer": og.optimizers.Adam(RATE)}, False),
        ({"optimizer": og.optimizers.SGD(RATE), "clip_norm": 1.0}, False),
        ({"optimizer": og.optimizers.SGD(RATE), "accumulate": 2}, False),
        ({"optimizer": og.optimizers.SGD(RATE), "frozen": "B"}, True),
        ({"optimizer": og.optimizers.SGD(RATE), "frozen": "W"}, False),
        ({"optimizer": og.optimizers.SGD(RATE), "penalty": og.losses.Penalty(l2=0.1)}, False),
        ({"optimizer": og.optimizers.SGD(RATE, weight_decay=0.1)}, False),
    ],
)
def test_only_what_is_one_is_taken_for_one(options: dict, is_one_kernel: bool) -> None:
    """And all train as they do with the order of the rows changed, which no kernel knows of."""
    model = linear(3, np.float64, "matmul")
    x, y = GENERATOR.standard_normal((8, 3)), GENERATOR.standard_normal((8, 1))
    results = []
    for order in (np.arange(8), np.arange(8)[::-1]):
        session = og.TrainingSession(model, "squared_error", **options)
        losses = [session.step({"X": x[order], "label": y[order]}) for _ in range(4)]
        results.append([losses, *trained(session)])
        assert ("LinearStep" in session.plan_summary()) == is_one_kernel
    for first, second in zip(*results, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-12)
