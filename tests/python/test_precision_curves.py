"""Losses with each `precision` beside PyTorch's autocast, step by step on the same data."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxgrad as og
import precision_models as models

STORED = json.loads((Path(__file__).parents[1] / "data/precision/curves.json").read_text())


def curve(name, precision):
    text, weights, batches = models.TRAININGS[name]
    model = onnx.parser.parse_model(text())
    for key, value in weights().items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, key))
    session = og.TrainingSession(
        model, "softmax_cross_entropy", og.optimizers.Adam(models.RATE), precision=precision
    )
    return np.array([session.step({"X": x, "label": labels}) for x, labels in batches()])


@pytest.mark.parametrize("name", list(models.TRAININGS))
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_curves_are_those_of_autocast(name, precision):
    found = curve(name, precision)
    stored = np.array(STORED[name]["bf16" if precision in ("bf16", "fp16") else "float32"])
    # Early, before the roundings of two programs have led them apart, and on average.
    assert found[:20] == pytest.approx(stored[:20], rel=0.004)
    assert np.abs(found - stored).mean() < 0.008 * stored.mean()
    assert found[-20:].mean() == pytest.approx(stored[-20:].mean(), rel=0.01)
