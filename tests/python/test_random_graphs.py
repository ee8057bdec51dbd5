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
from random_graphs import MORE_STEPS, draw_inputs, draw_model, weight_names, with_any_outputs

FIRST = int(os.environ.get("ONNXGRAD_FUZZ_FIRST", "0"))
COUNT = int(os.environ.get("ONNXGRAD_FUZZ_GRAPHS", "80"))
SEEDS = range(FIRST, FIRST + COUNT)
BLOCKS = [SEEDS[i : i + 20] for i in range(0, COUNT, 20)]
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
TOLERANCE = {np.float32: 2e-4, np.float64: 1e-8}

ort.set_default_logger_severity(4)


class Runtime:
    """Stock onnxruntime."""

    def __init__(self, model):
        options = ort.SessionOptions()  # without its optimizers: some keep float32 constants
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        model = with_float_inputs(model)
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._model = model
        self.inputs = [i.name for i in model.graph.input]
        self.outputs = [o.name for o in model.graph.output]
        self._defaults = {w.name: w for w in model.graph.initializer}

    def run(self, feeds):
        """Return the outputs by name; what is no input is left out of `feeds`."""
        given = {name: np.asarray(v) for name, v in feeds.items() if name in self.inputs}
        results = self._session.run(None, given)
        return dict(zip(self.outputs, results, strict=True))

    def spread(self, feeds):
        """Return how far each output moves when all numbers that go in change by a last digit.

        So much is rounding: a result that cancels to nothing moves by the last digits of the terms
        that it is the sum of, and a jump (Greater, Max) that rounding decides goes either way.
        """
        rng = np.random.default_rng(0)
        given = {n: onnx.numpy_helper.to_array(w) for n, w in self._defaults.items()} | feeds
        first = self.run(given)
        widest = dict.fromkeys(self.outputs, 0.0)
        for _ in range(16):
            results = self.run({name: shaken(value, rng) for name, value in given.items()})
            for name, value in results.items():
                move = np.abs(value.astype(np.float64) - first[name])
                widest[name] = max(widest[name], float(np.max(move, initial=0)))
        return widest

    def margin(self, name, feeds):
        """Return how far apart the numbers are whose comparison is `name`, or None if none is."""
        makers = [n for n in self._model.graph.node if name in n.output]
        if not makers or makers[0].op_type not in COMPARISONS:
            return None
        operands = onnx.ModelProto()
        operands.CopyFrom(self._model)
        del operands.graph.output[:]
        operands.graph.output.extend(onnx.ValueInfoProto(name=n) for n in makers[0].input)
        a, b = Runtime(operands).run(feeds).values()
        return np.abs(a.astype(np.float64) - b)


def with_float_inputs(model):
    """Return `model` with all initializers of floating type as inputs with a default."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    inputs = {i.name for i in model.graph.input}
    for weight in model.graph.initializer:
        is_float = weight.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
        if is_float and weight.name not in inputs:
            as_input(changed, weight.name)
    return changed


def shaken(value, rng):
    """Return `value` with each number up to two units in the last place higher or lower."""
    value = np.asarray(value)
    if not np.issubdtype(value.dtype, np.floating):
        return value
    units = rng.integers(-2, 3, size=value.shape)
    return (value + value * units * np.finfo(value.dtype).eps).astype(value.dtype)


def assert_close(ours, theirs, dtype, what, spread=None):
    """Equal up to the tolerance beside the largest element, or up to rounding.

    `spread` is called for how far rounding may carry `theirs`, if the tolerance is not kept.
    """
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), what
    scale = max(1.0, float(np.max(np.abs(theirs), initial=0)))
    bound = TOLERANCE[dtype] * scale
    difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    if np.all(difference <= bound):
        return
    if spread is not None:
        bound += 8 * spread()
    np.testing.assert_allclose(
        ours.astype(np.float64), theirs.astype(np.float64), rtol=0, atol=bound, err_msg=what
    )


def check_values(model, seed, dtype):
    ours, theirs = og.InferenceSession(model), Runtime(model)
    for rows in (3, 1, 6):
        feeds = draw_inputs(seed, rows, dtype)
        del feeds["label"]
        compare(ours.run(None, feeds), theirs, feeds, dtype, f"seed {seed}, {rows} rows")


def compare(ours, theirs, feeds, dtype, what):
    """Outputs, in the order of the model, and those of stock onnxruntime."""
    expected = theirs.run(feeds)
    for name, value in zip(theirs.outputs, ours, strict=True):
        spread = lambda name=name: theirs.spread(feeds)[name]  # noqa: E731
        margin = theirs.margin(name, feeds) if value.dtype == np.bool_ else None
        if margin is not None:  # rounding decides where both sides are nearly equal
            value, spread = np.where(margin <= TOLERANCE[dtype], expected[name], value), None
        assert_close(value, expected[name], dtype, f"{what}: {name}", spread)


def gradient_file(model):
    """The squared error of Y, and its gradient for all weights as a file."""
    with_loss = og.add_loss(model, "squared_error")
    wrt = weight_names(model)
    return with_loss, og.gradient(with_loss, wrt=wrt, outputs=["loss"], fill_grad=True)


def slope(forward, feeds, weights, direction, size):
    """Return the slope of the loss by central differences."""
    ends = [
        forward.run(
            {**feeds, **{n: np.asarray(w + step * direction[n]) for n, w in weights.items()}}
        )["loss"]
        for step in (size, -size)
    ]
    return float(ends[0] - ends[1]) / (2 * size)


def check_gradient(model, seed, change=None):
    """Against finite differences in float64, along random directions in all weights at once.

    `change`, if given, spoils the file of the gradient. Returns how many of three directions could
    be compared.
    """
    feeds = draw_inputs(seed, 3, np.float64)
    weights = {name: initial(model, name) for name in weight_names(model)}
    with_loss, gradient = gradient_file(model)
    if change is not None:
        change(gradient)
    forward = Runtime(with_loss)
    found = Runtime(gradient).run({**feeds, **weights})
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


def check_step(model, seed, dtype, change=None):
    """One compiled step of plain gradient descent, by the gradient's file (`change` spoils it)."""
    names = weight_names(model)
    session = og.TrainingSession(
        model, "squared_error", og.optimizers.SGD(lr=0.01), trainable=names, training_mode=False
    )
    before = session.state()
    file = gradient_file(model)[1]
    if change is not None:
        change(file)
    gradient = Runtime(file)
    for rows in (3, 5):
        feeds = {**before, **draw_inputs(seed, rows, dtype)}
        expected = gradient.run(feeds)
        session.step({name: feeds[name] for name in ("X", "Z", "label")})
        after = session.state()
        for name in names:
            assert_close(
                (before[name] - after[name]) / 0.01,
                expected[f"{name}_grad"],
                dtype,
                f"seed {seed}, weight {name}, {rows} rows",
                lambda name=name, feeds=feeds: gradient.spread(feeds)[f"{name}_grad"],
            )
        session.reset()


OPTIMIZERS = (
    og.optimizers.SGD(lr=0.05),
    og.optimizers.SGD(lr=0.05, momentum=0.9),
    og.optimizers.SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    og.optimizers.Adam(lr=0.05),
    og.optimizers.AdamW(lr=0.05, weight_decay=0.01),
    og.optimizers.RMSProp(lr=0.05),
    og.optimizers.Adagrad(lr=0.05),
    og.optimizers.Lion(lr=0.05),
)


def check_any_outputs(model, feeds, seed, dtype, what):
    """`model` with any of its values as outputs."""
    shown = with_any_outputs(model, seed)
    theirs = Runtime(shown)
    session = og.InferenceSession(shown, threads=1 + seed % 2)
    given = {i.name: feeds[i.name] for i in session.get_inputs() if i.name in feeds}
    compare(session.run(None, given), theirs, feeds, dtype, f"seed {seed}, {what}")


def check_files(model, seed, dtype):
    """The model, its gradient and a training step, each with any of its values as outputs."""
    feeds = draw_inputs(seed, (3, 1, 6)[seed % 3], dtype)
    feeds |= {name: initial(model, name) for name in weight_names(model)}
    check_any_outputs(model, feeds, seed, dtype, "the model")
    check_any_outputs(gradient_file(model)[1], feeds, seed, dtype, "its gradient")
    optimizer = OPTIMIZERS[seed % len(OPTIMIZERS)]
    names = weight_names(model)
    step = og.training_step(model, "squared_error", optimizer, trainable=names, gradients=True)
    feeds |= {"learning_rate": np.array(0.05, dtype)}
    feeds |= {w.name: onnx.numpy_helper.to_array(w) for w in step.graph.initializer}
    check_any_outputs(step, feeds, seed, dtype, f"a step of {optimizer}")


def check_forward_backward(model, seed, dtype):
    """Gradients of any outputs, against the file that takes gradients of these as inputs."""
    rng = np.random.default_rng(seed)
    shown = with_any_outputs(model, seed, twice=False)
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    if all(output.type.tensor_type.elem_type != element for output in shown.graph.output):
        return
    wrt = [*weight_names(model), "X", "Z"]
    feeds = draw_inputs(seed, 3, dtype)
    layer = og.ForwardBackward(shown, weights=wrt[:-2], training_mode=False, threads=1 + seed % 2)
    outputs = layer.forward({"X": feeds["X"], "Z": feeds["Z"]})
    seeds = {
        output.name: rng.normal(size=value.shape).astype(dtype)
        for output, value in zip(shown.graph.output, outputs, strict=True)
        if value.dtype == dtype
    }
    found = layer.backward(seeds)
    file = Runtime(og.gradient(shown, wrt=wrt, outputs=list(seeds)))
    feeds |= {name: initial(model, name) for name in wrt[:-2]}
    feeds |= {f"{name}_grad": value for name, value in seeds.items()}
    results = {**found.weights, **found.inputs}
    compare([results[name] for name in wrt], file, feeds, dtype, f"seed {seed}")


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


@pytest.mark.filterwarnings("ignore:the gradient of .* is zero")
@pytest.mark.parametrize("seeds", BLOCKS, ids=lambda seeds: f"{seeds.start}")
def test_any_values_are_outputs(seeds):
    for seed in seeds:
        dtype = (np.float32, np.float64)[seed // 2 % 2]
        model = draw_model(seed, dtype, MORE_STEPS)
        check_files(model, seed, dtype)
        check_forward_backward(model, seed, dtype)


SPOILED = {"Mul": "Add", "Add": "Sub", "Sub": "Add", "Neg": "Identity", "Greater": "Less"}


def spoil(gradient):
    """Change one operator of the backward part of a gradient."""
    nodes = [node for node in gradient.graph.node if node.op_type in SPOILED and not node.domain]
    nodes[-1].op_type = SPOILED[nodes[-1].op_type]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wrong_gradients_are_found(dtype):
    found = 0
    for seed in range(20):
        model = draw_model(seed, dtype)
        try:
            if dtype == np.float64:
                check_gradient(model, seed, spoil)
            else:
                check_step(model, seed, dtype, spoil)
        except AssertionError:
            found += 1
    assert found >= 18


def test_rounding_is_distinguished_from_a_wrong_result():
    """A sum that cancels to nothing: its last digits pass, a thousandth of one term does not."""
    rng = np.random.default_rng(0)
    a = rng.uniform(5e3, 2e4, 100).astype(np.float32)
    weights = [onnx.numpy_helper.from_array(x, n) for n, x in (("a", a), ("b", a[::-1].copy()))]
    nodes = [
        onnx.helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0),
        onnx.helper.make_node("ReduceSum", ["b"], ["t"], keepdims=0),
        onnx.helper.make_node("Sub", ["s", "t"], ["y"]),
    ]
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])
    graph = onnx.helper.make_graph(nodes, "cancels", [], [y], weights)
    runtime = Runtime(
        onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8
        )
    )
    spread = runtime.spread({})["y"]
    for error, passes in ((0.0, True), (0.01, True), (5.0, False), (np.nan, False)):
        ours = np.array(error, np.float32)
        try:
            assert_close(ours, np.zeros((), np.float32), np.float32, "y", lambda: spread)
        except AssertionError:
            assert not passes, f"{error} beside a spread of {spread}"
        else:
            assert passes, f"{error} beside a spread of {spread}"


def test_a_comparison_that_rounding_decides():
    """The sum of 0.1, 0.2 and -0.3 is zero or not; that of 1 and -0.9 is not."""
    nodes = [
        onnx.helper.make_node("Add", ["a", "b"], ["s"]),
        onnx.helper.make_node("Equal", ["s", "zero"], ["y"]),
    ]
    inputs = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.DOUBLE, [2]) for n in "ab"]
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.BOOL, [2])
    zero = onnx.numpy_helper.from_array(np.zeros(1), "zero")
    graph = onnx.helper.make_graph(nodes, "ties", inputs, [y], [zero])
    runtime = Runtime(
        onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8
        )
    )
    feeds = {"a": np.array([0.1 + 0.2, 1.0]), "b": np.array([-0.3, -0.9])}
    assert not runtime.run(feeds)["y"].any()
    compare([np.array([True, False])], runtime, feeds, np.float64, "ties")
    with pytest.raises(AssertionError):
        compare([np.array([False, True])], runtime, feeds, np.float64, "ties")
