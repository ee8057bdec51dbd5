"""The exported models of tests/data/zoo: their stored values, losses and gradient graphs."""

import functools
import json
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import onnxgrad as og
from onnx_tool import ROOT
from reference_values import part

ZOO = ROOT / "tests/data/zoo"
ROWS: dict[str, dict[str, Any]] = {
    row["name"]: row for row in json.loads((ZOO / "index.json").read_text())
}
# Models that this version cannot run yet, with the reason; their tests are expected to fail.
WAITING: dict[str, str] = {}


@functools.cache
def load(name: str) -> onnx.ModelProto:
    return onnx.load(ZOO / f"{name}.onnx")


def stored(name: str) -> dict[str, np.ndarray]:
    """All stored arrays; those of bfloat16 are in the file as float32."""
    with np.load(ZOO / f"{name}.npz", allow_pickle=False) as data:
        arrays = {key: a.astype(object) if a.dtype.kind == "U" else a for key, a in data.items()}
    for key, (kind, _) in ROWS[name]["inputs"].items():
        if kind == "bfloat16":
            arrays[f"in/{key}"] = arrays[f"in/{key}"].astype(bfloat16())
    return arrays


def bfloat16() -> np.dtype:
    return onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)


def loss_of(row: dict[str, Any]) -> og.losses.Loss | str:
    """The loss whose gradients are stored, or the one that the model's head asks for."""
    if row["loss"] is None:
        return "auto"
    if row["loss"] == "mse":
        return og.losses.SquaredError(output=row["loss_output"])
    if row["loss"] == "nll":
        return og.losses.NegativeLogLikelihood(output=row["loss_output"])
    return og.losses.SoftmaxCrossEntropy(output=row["loss_output"], axis=row["loss"][1])


def derivative_of_loss(name: str) -> np.ndarray:
    """Return the derivative of the exporter's loss by the first output."""
    data, loss = stored(name), ROWS[name]["loss"]
    y, label = data[f"out/{next(iter(ROWS[name]['outputs']))}"], data["in/label"]
    if loss == "mse":
        return 2 * (y - label) / y.size
    axis = loss[1]
    e = np.exp(y - y.max(axis, keepdims=True))
    hot = np.moveaxis(np.eye(y.shape[axis])[label], -1, axis)
    return (e / e.sum(axis, keepdims=True) - hot) / label.size


def gradient_model(name: str) -> onnx.ModelProto:
    """Loss, outputs and the gradients that are stored, as one model with the weights as inputs."""
    row = ROWS[name]
    with_loss = og.add_loss(load(name), loss_of(row))
    wrt = row["trainable"] + row["input_gradients"]
    return og.gradient(with_loss, wrt, ["loss"], fill_grad=True, keep_outputs=True)


def values(name: str) -> dict[str, np.ndarray]:
    """Weights, inputs and label by name."""
    weights = {t.name: numpy_helper.to_array(t) for t in load(name).graph.initializer}
    return {**weights, **part(stored(name), "in/")}


def joined(row: dict[str, Any], gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A weight that the file holds more than once has the sum of their gradients."""
    sums = dict(gradients)
    for names in row["tied"]:
        first = sums[names[0]]
        for name in names[1:]:
            first = first + (sums[name] if sums[name].shape == first.shape else sums[name].T)
        for name in names:
            sums[name] = first if first.shape == sums[name].shape else first.T
    return sums


def weights_to_train(name: str) -> list[str]:
    """The weights with a stored gradient that is not zero, or all where none is stored."""
    row = ROWS[name]
    gradients = part(stored(name), "grad/")
    return [w for w in row["trainable"] if w not in gradients or gradients[w].any()]
