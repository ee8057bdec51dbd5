"""check_gradients on right models, of which none is called wrong, and on wrong rules, all found.

`make fuzz-checks right=N wrong=N` tries N more of each, and the stored models.
"""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad as og
from reference_values import part
from wrong_rules import draw_right, draw_wrong, harm

FIRST = int(os.environ.get("ONNXGRAD_CHECKS_FIRST", "0"))
RIGHT = int(os.environ.get("ONNXGRAD_CHECKS_RIGHT", "16"))
WRONG = int(os.environ.get("ONNXGRAD_CHECKS_WRONG", "12"))
IS_LONG = "ONNXGRAD_CHECKS_RIGHT" in os.environ
BLOCK = 8
DATA = Path(__file__).resolve().parents[1] / "data"
SAMPLE = (
    "models/quantized_mlp.onnx",
    "models/sk_mlp_classifier_strings.onnx",
    "models/sk_scaler_logistic_regression.onnx",
    "models/vgg_small_batchnorm_loss.onnx",
    "models/scan_leaky_neurons_loss.onnx",
    "zoo/converted_to_float16.onnx",
)
STORED = [str(file.relative_to(DATA)) for file in sorted(DATA.rglob("*.onnx"))]


def blocks(count: int) -> list[range]:
    """Numbers for one test each."""
    ends = range(FIRST, FIRST + count, BLOCK)
    return [range(first, min(first + BLOCK, FIRST + count)) for first in ends]


@pytest.mark.parametrize("seeds", blocks(RIGHT), ids=lambda seeds: f"{seeds.start}")
def test_right_models_are_right(seeds: range) -> None:
    compared = checked = 0
    for seed in seeds:
        model, inputs = draw_right(seed)
        if all(node.op_type != "GroupNormalization" for node in model.graph.node):
            onnx.checker.check_model(model)  # which refuses its first version, as deprecated
        found = og.check_gradients(model, inputs, seed=seed, samples=8)
        assert found.ok, f"seed {seed}\n{found}"
        compared += sum(one.checked > 0 or 0 in one.shape for one in found.inputs)
        checked += len(found.inputs)
    assert compared >= 0.9 * checked


@pytest.mark.filterwarnings("ignore:the gradient of .* is zero")
@pytest.mark.parametrize("seeds", blocks(WRONG), ids=lambda seeds: f"{seeds.start}")
def test_wrong_rules_are_found(seeds: range) -> None:
    harmful = 0
    for seed in seeds:
        model, inputs, name, register = draw_wrong(seed)
        if harm(model, inputs, register) < 3e-3:  # as behind a Relu that is shut
            continue
        harmful += 1
        with register():
            found = og.check_gradients(model, inputs, seed=seed)
        assert not found.ok, f"seed {seed}: {name}\n{found}"
    assert harmful >= len(seeds) / 2


@pytest.mark.parametrize("name", STORED if IS_LONG else SAMPLE)
def test_stored_models_are_right(name: str) -> None:
    file = DATA / name
    arrays = DATA / name.replace("_loss.onnx", ".onnx").replace(".onnx", ".npz")
    inputs = [value.name for value in onnx.load(file).graph.input]
    stored = part(np.load(arrays), "in/") if arrays.exists() else {}
    feeds = {key: value for key, value in stored.items() if key in inputs}
    found = og.check_gradients(file, feeds, samples=4)
    assert found.ok, str(found)
