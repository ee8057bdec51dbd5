"""Gradients of Attention in stock onnxruntime, beside differences of ONNX's evaluator.

The models are ONNX's node tests in float64; test_node_suite.py has those of all operators in our
engine.
"""

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort
import pytest

import onnxgrad as og
from double_models import in_double
from node_suite import cases_by_operator

STEP = 1e-5


def run_stock(model: onnx.ModelProto, feeds: dict[str, np.ndarray], level: str) -> list:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)


@pytest.mark.parametrize("case", cases_by_operator()["Attention"], ids=lambda case: case.name)
def test_attention(case) -> None:
    model, feeds = in_double(case.model, case.feeds())
    names = [output.name for output in model.graph.output]
    evaluator = onnx.reference.ReferenceEvaluator(model)
    with np.errstate(all="ignore"):
        expected = evaluator.run(None, feeds)
    for given, wanted in zip(og.InferenceSession(model).run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(given, wanted, rtol=1e-6, atol=1e-6)

    # A masked score of -inf is an output of some; nothing is asked of its gradient.
    rng = np.random.default_rng(0)
    seeds = {
        f"{name}_grad": np.where(np.isfinite(value), rng.uniform(-1, 1, value.shape), 0.0)
        for name, value in zip(names, expected, strict=True)
    }

    def objective(moved: dict[str, np.ndarray]) -> float:
        with np.errstate(all="ignore"):
            values = evaluator.run(None, moved)
        return sum(
            float(np.sum(seed[seed != 0] * value[seed != 0]))
            for value, seed in zip(values, seeds.values(), strict=True)
        )

    wrt = [name for name, array in feeds.items() if array.dtype == np.float64]
    gradient = og.gradient(model, wrt, names)
    inputs = {value.name for value in gradient.graph.input}
    fed = {name: array for name, array in {**feeds, **seeds}.items() if name in inputs}
    ours = og.InferenceSession(gradient).run(None, fed)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        for given, stock in zip(ours, run_stock(gradient, fed, level), strict=True):
            # The definition computes the scale in float32.
            np.testing.assert_allclose(stock, given, rtol=1e-6, atol=1e-6)
    for name, given in zip(wrt, ours, strict=True):
        assert np.isfinite(given).all(), f"{name}: {given}"
        direction = rng.normal(size=given.shape)
        sides = [
            objective({**feeds, name: feeds[name] + sign * STEP * direction}) for sign in (1, -1)
        ]
        numeric = (sides[0] - sides[1]) / (2 * STEP)
        np.testing.assert_allclose(np.sum(given * direction), numeric, 1e-6, 1e-6)
