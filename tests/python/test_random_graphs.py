"""Random models: values, gradients and training steps against stock onnxruntime.

A failure names its seed; `make fuzz-graphs graphs=N` tries N more, in turn from `first`.
"""

import os

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime as ort
import pytest

import onnxgrad as og
from random_graphs import draw_inputs, draw_model, weight_names

FIRST = int(os.environ.get("ONNXGRAD_FUZZ_FIRST", "0"))
COUNT = int(os.environ.get("ONNXGRAD_FUZZ_GRAPHS", "120"))
SEEDS = range(FIRST, FIRST + COUNT)
BLOCKS = [SEEDS[i : i + 20] for i in range(0, COUNT, 20)]
TOLERANCE = {np.float32: 2e-4, np.float64: 1e-8}

ort.set_default_logger_severity(4)


class Runtime:
    """Stock onnxruntime."""

    def __init__(self, model):
        options = ort.SessionOptions()  # without its optimizers: some keep float32 constants
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [i.name for i in model.graph.input]
        self.outputs = [o.name for o in model.graph.output]

    def run(self, feeds):
        """Return the outputs by name; what is no input is left out of `feeds`."""
        given = {name: value for name, value in feeds.items() if name in self.inputs}
        results = self._session.run(None, given)
        return dict(zip(self.outputs, results, strict=True))


def assert_close(ours, theirs, dtype, what):
    """Equal up to the tolerance, beside the largest element."""
    scale = max(1.0, float(np.max(np.abs(theirs), initial=0)))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=what)


def check_values(model, seed, dtype):
    ours, theirs = og.InferenceSession(model), Runtime(model)
    for rows in (3, 1, 6):
        feeds = draw_inputs(seed, rows, dtype)
        del feeds["label"]
        expected = theirs.run(feeds)["Y"]
        assert_close(ours.run(None, feeds)[0], expected, dtype, f"seed {seed}, {rows} rows")


def gradient_file(model):
    """The squared error of Y, and its gradient for all weights as a file."""
    with_loss = og.add_loss(model, "squared_error")
    wrt = weight_names(model)
    return with_loss, Runtime(og.gradient(with_loss, wrt=wrt, outputs=["loss"], fill_grad=True))


def slope(forward, feeds, weights, direction, size):
    """Of the loss, by central differences."""
    ends = [
        forward.run(
            {**feeds, **{n: np.asarray(w + step * direction[n]) for n, w in weights.items()}}
        )["loss"]
        for step in (size, -size)
    ]
    return float(ends[0] - ends[1]) / (2 * size)


def check_gradient(model, seed):
    """Against finite differences in float64, along random directions in all weights at once.

    Returns how many of three directions could be compared.
    """
    feeds = draw_inputs(seed, 3, np.float64)
    weights = {name: initial(model, name) for name in weight_names(model)}
    with_loss, gradient = gradient_file(model)
    for name in weights:
        as_input(with_loss, name)
    forward = Runtime(with_loss)
    found = gradient.run({**feeds, **weights})
    rng = np.random.default_rng(seed)
    compared = 0
    for _ in range(3):
        direction = {name: rng.normal(size=w.shape) for name, w in weights.items()}
        coarse, fine = (slope(forward, feeds, weights, direction, size) for size in (1e-5, 1e-6))
        if abs(coarse - fine) > 1e-5 * max(1, abs(fine)):
            continue  # a kink of Relu, Max or Clip lies between
        ours = sum(np.sum(found[f"{name}_grad"] * direction[name]) for name in weights)
        assert ours == pytest.approx(fine, rel=1e-5, abs=1e-6), f"seed {seed}"
        compared += 1
    return compared


def initial(model, name):
    weight = next(w for w in model.graph.initializer if w.name == name)
    return onnx.numpy_helper.to_array(weight)


def as_input(model, name):
    """Let `name` be fed beside its default."""
    weight = next(w for w in model.graph.initializer if w.name == name)
    model.graph.input.append(
        onnx.helper.make_tensor_value_info(name, weight.data_type, list(weight.dims))
    )


def check_step(model, seed, dtype):
    """One compiled step of plain gradient descent, by the gradient's file."""
    names = weight_names(model)
    session = og.TrainingSession(
        model, "squared_error", og.optimizers.SGD(lr=0.01), trainable=names, training_mode=False
    )
    before = session.state()
    _, gradient = gradient_file(model)
    for rows in (3, 5):
        feeds = draw_inputs(seed, rows, dtype)
        expected = gradient.run({**before, **feeds})
        session.step(feeds)
        after = session.state()
        for name in names:
            assert_close(
                (before[name] - after[name]) / 0.01,
                expected[f"{name}_grad"],
                dtype,
                f"seed {seed}, weight {name}, {rows} rows",
            )
        session.reset()


@pytest.mark.parametrize("seeds", BLOCKS, ids=lambda seeds: f"{seeds.start}")
def test_random_graphs(seeds):
    compared = 0
    for seed in seeds:
        model = draw_model(seed, np.float64)
        check_values(model, seed, np.float64)
        compared += check_gradient(model, seed)
        check_step(model, seed, np.float64)
        single = draw_model(seed, np.float32)
        check_values(single, seed, np.float32)
        check_step(single, seed, np.float32)
    assert compared >= 2 * len(seeds)
