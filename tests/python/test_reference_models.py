"""Exported models of tests/data/models: values and gradients against PyTorch's in float64.

Each gradient graph runs in our engine and in stock onnxruntime; both are compared with the stored
references by the rule of tests/data/models/README.md.
"""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxgrad as og
from onnx_tool import MODELS
from reference_values import assert_close, check_gradients, part

ROWS = {row["name"]: row for row in json.loads((MODELS / "index.json").read_text())}
WITH_LOSS = [name for name, row in ROWS.items() if row["loss"]]


def batches(name: str) -> list[dict[str, np.ndarray]]:
    """The stored arrays of each batch, without the batch's prefix."""
    with np.load(MODELS / f"{name}.npz", allow_pickle=False) as data:
        arrays = dict(data)
    first = {key: value for key, value in arrays.items() if not key.startswith("2/")}
    second = {key[2:]: value for key, value in arrays.items() if key.startswith("2/")}
    return [first, second] if second else [first]


@pytest.mark.parametrize("name", WITH_LOSS)
def test_loss_and_gradients(name: str) -> None:
    row = ROWS[name]
    model = onnx.load(MODELS / f"{name}_loss.onnx")
    weights = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer
    }
    wrt = row["trainable"] + row["input_gradients"]
    gradient = og.gradient(model, wrt, ["loss"], fill_grad=True, keep_outputs=True)
    session = og.InferenceSession(gradient)
    stock = ort.InferenceSession(gradient.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    for batch in batches(name):
        values = {**weights, **part(batch, "in/")}
        feeds = {value.name: values[value.name] for value in session.get_inputs()}
        for outputs in (session.run(None, feeds), stock.run(None, feeds)):
            results = dict(zip(names, outputs, strict=True))
            assert_close(results["loss"], batch["loss"], row["tolerance"], 1 + abs(batch["loss"]))
            got = {key.removesuffix("_grad"): value for key, value in results.items()}
            check_gradients(got, part(batch, "grad/"), row["tolerance"])


@pytest.mark.parametrize("name", ROWS)
def test_outputs(name: str) -> None:
    row = ROWS[name]
    session = og.InferenceSession(MODELS / f"{name}.onnx")
    names = [value.name for value in session.get_outputs()]
    for batch in batches(name):
        outputs = dict(zip(names, session.run(None, part_of_inputs(session, batch)), strict=True))
        for key, want in part(batch, "out/").items():
            got = outputs[key]
            if isinstance(got, list):  # ZipMap's dictionaries
                got = np.array([[line[label] for label in row["classes"]] for line in got])
            if want.dtype.kind != "f":
                np.testing.assert_array_equal(np.asarray(got).astype(want.dtype), want)
                continue
            floor = 1 + np.abs(want).max(initial=0)
            assert_close(np.asarray(got), want, row["tolerance"], floor)


def part_of_inputs(session: og.InferenceSession, batch: dict) -> dict[str, np.ndarray]:
    given = part(batch, "in/")
    return {value.name: given[value.name] for value in session.get_inputs()}


# Scores [N, T, C] with the classes last; a loss of ours wants them second, as ONNX has them.
CLASSES_LAST = {
    "encoder_decoder_attention",
    "gpt_learned_places_opset18",
    "gpt_learned_places_opset23",
}
WITH_IGNORED_LABELS = {"lstm_language_model"}


@pytest.mark.parametrize("name", sorted({*WITH_LOSS} - CLASSES_LAST))
def test_first_losses_of_a_training_session(name: str) -> None:
    """With a rate of 0 each batch has its stored loss."""
    row = ROWS[name]
    is_squares = row["loss"] == "mean squared error"
    kind = og.losses.SquaredError if is_squares else og.losses.SoftmaxCrossEntropy
    options = {"ignore_index": -100} if name in WITH_IGNORED_LABELS else {}
    loss = kind(output=next(iter(row["outputs"])), **options)
    session = og.TrainingSession(
        MODELS / f"{name}.onnx",
        loss=loss,
        optimizer="sgd",
        trainable=row["trainable"],
        training_mode=False,
    )
    session.lr = 0.0
    for batch in batches(name):
        want = float(batch["loss"])
        got = session.step(part(batch, "in/"))
        assert abs(float(got) - want) <= row["tolerance"] * (1 + abs(want))
