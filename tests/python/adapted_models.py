"""Models with adapters, and what stock onnxruntime computes with them."""

import numpy as np
import onnxruntime as ort

import onnxgrad as og
from onnx_tool import MODELS

GPT = MODELS / "gpt_learned_places_opset18.onnx"


def run(model, feeds):
    return ort.InferenceSession(model.SerializeToString()).run(None, feeds)


def disturbed(model, scale=0.2):
    """The model with other values in its adapter."""
    rng = np.random.default_rng(0)
    tensors = {
        name: (value + scale * rng.normal(size=value.shape)).astype(value.dtype)
        for name, value in og.adapters.state(model).items()
    }
    return og.adapters.set_state(model, tensors)


def assert_near(outputs, expected, tolerance=2e-5):
    for got, wanted in zip(outputs, expected, strict=True):
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * scale)
