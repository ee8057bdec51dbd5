"""Five models trained for 20 steps beside PyTorch (tests/data/zoo): losses and all weights.

A tagger with an LSTM in both directions and lengths, a scripted decoder with a Loop, a U-Net with
Resize, a vision transformer with GridSample, a mixture of experts with TopK. In float64 the weights
are PyTorch's to 6 digits and more; in float32 they differ by what rounding does in 20 steps.
"""

import numpy as np
import onnxruntime as ort
import pytest

import onnxgrad as og
import zoo
from double_models import in_double
from reference_values import part

STORED = {"sgd": og.optimizers.SGD, "adam": og.optimizers.Adam}
NAMES = [name for name, row in zoo.ROWS.items() if "optimizers" in row]
STEPS = 20
# Relative errors of weights. Adam divides a gradient by its size: rounding of the smallest ones is
# part of a step. The files have some constants (1 / sqrt(2) of GELU) in float32.
BOUNDS = {"float32": {"sgd": 2e-5, "adam": 2e-3}, "float64": {"sgd": 1e-7, "adam": 1e-6}}


def case(name: str, dtype: str) -> tuple:
    """The model, the inputs with the label, and the stored arrays."""
    data = zoo.stored(name)
    model, feeds = zoo.load(name), part(data, "in/")
    if dtype == "float64":
        label = feeds.pop("label")
        model, feeds = in_double(model, feeds)
        feeds["label"] = label.astype(dtype) if label.dtype.kind == "f" else label
    return model, feeds, data


def assert_trained(found: dict, data: dict, optimizer: str, dtype: str) -> None:
    for weight, wanted in part(data, f"{optimizer}/").items():
        bound = BOUNDS[dtype][optimizer]
        np.testing.assert_allclose(found[weight], wanted, rtol=0, atol=bound, err_msg=weight)


def test_these_are_five() -> None:
    kinds = {operator for name in NAMES for operator in zoo.ROWS[name]["operators"]}
    assert len(NAMES) == 5
    assert {"LSTM", "Loop", "Resize", "GridSample", "TopK"} <= kinds


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", STORED)
@pytest.mark.parametrize("name", NAMES)
def test_session_gives_pytorchs_weights(name: str, optimizer: str, dtype: str) -> None:
    model, feeds, data = case(name, dtype)
    session = og.TrainingSession(
        model,
        zoo.loss_of(zoo.ROWS[name]),
        STORED[optimizer](lr=float(data[f"{optimizer}_rate"])),
        trainable=zoo.ROWS[name]["trainable"],
    )
    losses = [float(session.step(feeds)) for _ in range(STEPS)]
    wanted = data[f"{optimizer}_losses"]
    assert wanted[-1] < 0.995 * wanted[0]
    np.testing.assert_allclose(losses, wanted, rtol=1e-7 if dtype == "float64" else 1e-4)
    assert_trained(session.state(), data, optimizer, dtype)


@pytest.mark.parametrize("name", NAMES)
def test_step_file_gives_pytorchs_weights_in_stock_onnxruntime(name: str) -> None:
    """Adam as standard ONNX; the next state that it returns is fed back."""
    model, feeds, data = case(name, "float32")
    rate = float(data["adam_rate"])
    file = og.training_step(
        model,
        zoo.loss_of(zoo.ROWS[name]),
        og.optimizers.Adam(lr=rate),
        trainable=zoo.ROWS[name]["trainable"],
        inline=True,
    )
    stock = ort.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = [value.name for value in stock.get_outputs()]
    inputs = [value.name for value in stock.get_inputs()]
    state: dict[str, np.ndarray] = {}
    losses = []
    for _ in range(STEPS):
        values = {**feeds, "learning_rate": np.array(rate, np.float32), **state}
        values = {key: value for key, value in values.items() if key in inputs or key in state}
        results = dict(zip(outputs, stock.run(None, values), strict=True))
        losses.append(results["loss"])
        state = part(results, "next/")
    np.testing.assert_allclose(losses, data["adam_losses"], rtol=1e-4)
    assert_trained(state, data, "adam", "float32")
