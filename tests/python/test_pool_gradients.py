"""Gradients through pools: what plans make of them, beside the same gradient as a file of standard
operators that onnxruntime runs. Numbers are small integers, so that sums in any order are the same
and windows have several largest elements."""

import numpy as np
import onnx
import onnx.helper
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxgrad as og
from pairwise import pairwise

WINDOWS = {
    "2x2": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "3x3 overlapping": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "2x4 dense": {"kernel_shape": [2, 4], "strides": [1, 1]},
    "dilated": {"kernel_shape": [2, 2], "strides": [2, 1], "dilations": [2, 3]},
    "ceil": {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
}
CHANNELS = 5


class Network:
    def __init__(self, dtype):
        self.dtype = np.dtype(dtype)
        self.generator = np.random.default_rng(11)
        self.nodes, self.initializers = [], {}

    def __call__(self, operator, *inputs, **attributes):
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def integers(self, name, *shape):
        self.initializers[name] = self.generator.integers(-2, 3, shape).astype(self.dtype)
        return name

    def build(self, pool, window, activation, second, size):
        """Twice convolution, activation and pool; `second`: what else reads the activation."""
        h = self("Conv", "X", self.integers("w0", CHANNELS, 2, 3, 3), self.integers("b0", CHANNELS))
        h = self.activate(h, activation)
        first = h
        h = self(pool, h, **window)
        # A convolution of one row and column: its input gradient has zeros at many places.
        h = self("Conv", h, self.integers("w1", 3, CHANNELS, 1, 1), self.integers("b1", 3))
        h = self.activate(h, activation)
        h = self(pool, h, kernel_shape=[2, 2], strides=[2, 2])
        outputs = [self("ReduceSum", h, self.axes("axes"), keepdims=0)]
        if second == "read":  # also read the input of the pool
            outputs.append(self("ReduceSum", first, "axes", keepdims=0))
        elif second == "squared":
            outputs.append(self("ReduceSum", self("Mul", first, first), "axes", keepdims=0))
        kind = onnx.helper.np_dtype_to_tensor_dtype(self.dtype)
        info = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            self.nodes, "network", [info("X", kind, ["N", 2, *size])],
            [info(name, kind, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.initializers.items()],
        )  # fmt: skip
        opsets = [onnx.helper.make_opsetid("", 18)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return onnx.shape_inference.infer_shapes(model), outputs

    def axes(self, name):
        self.initializers[name] = np.array([2, 3])
        return name

    def activate(self, value, activation):
        if activation == "two":  # the mask of one of them is not that of the pool's input
            return self("Add", self("Relu", value), self("Relu", self("Neg", value)))
        if activation == "none":
            return value
        options = {"alpha": 0.5} if activation == "LeakyRelu" else {}
        return self(activation, value, **options)


CASES = pairwise(
    {
        "pool": ["MaxPool", "AveragePool"],
        "window": list(WINDOWS),
        "activation": ["Relu", "LeakyRelu", "none", "two"],
        "second": ["none", "read", "squared"],
        "dtype": ["float32", "float64"],
        "threads": [1, 2],
        "size": [(16, 16), (15, 18), (9, 36)],
        "wrt": ["weights", "input", "bias"],
    },
    # Opset 18 has no dilated averages; those of nine numbers are rounded, perhaps to another sign.
    lambda row: (
        row.get("pool") != "AveragePool"
        or (row.get("window") != "dilated" and row.get("window") != "3x3 overlapping")
        or (row.get("window") == "3x3 overlapping" and row.get("activation") in (None, "none"))
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_gradients_are_those_of_the_file(case):
    dtype, size = case["dtype"], case["size"]
    wrt = {"weights": ["w0", "b0", "w1", "b1"], "input": ["X"], "bias": ["b0"]}[case["wrt"]]
    names = [f"{name}_grad" for name in wrt]

    def file(of):
        model, outputs = Network(of).build(
            case["pool"], WINDOWS[case["window"]], case["activation"], case["second"], size
        )
        weights = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
        return og.gradient(model, wrt, outputs), outputs, weights

    # onnxruntime has no convolutions of float64: the numbers are integers in float32 too.
    narrow, outputs, weights = file("float32")
    generator = np.random.default_rng(2)
    feeds = {"X": generator.integers(-3, 4, (4, 2, *size)).astype("float32")}
    for output in outputs:
        shape = (4, 3) if output == outputs[0] else (4, CHANNELS)
        feeds[f"{output}_grad"] = generator.integers(-2, 3, shape).astype("float32")
    feeds |= {name: weights[name] for name in wrt if name != "X"}
    reference = onnxruntime.InferenceSession(narrow.SerializeToString())
    expected = reference.run(names, feeds)
    session = og.InferenceSession(file(dtype)[0], threads=case["threads"])
    found = session.run(names, {name: value.astype(dtype) for name, value in feeds.items()})
    # Windows of averages have sums that are no integers.
    tolerance = {} if case["pool"] == "MaxPool" else {"rtol": 1e-5, "atol": 1e-4}
    for name, ours, theirs in zip(names, found, expected, strict=True):
        if tolerance:
            np.testing.assert_allclose(ours, theirs, err_msg=name, **tolerance)
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


def network_of_classes():
    model, outputs = Network("float32").build("MaxPool", WINDOWS["2x2"], "Relu", "none", (32, 32))
    del model.graph.output[1:]
    return model, outputs[0]


def test_training_keeps_no_activations_for_the_pool():
    """Only pooled values and their positions are kept of a convolution, Relu and pool."""
    model, _ = network_of_classes()
    x = np.random.default_rng(0).standard_normal((16, 2, 32, 32)).astype(np.float32)
    session = og.TrainingSession(model, "softmax_cross_entropy", og.optimizers.SGD(lr=1e-3))
    session.step({"X": x, session.target_name: np.arange(16) % 3})
    kernels = session.plan_summary().splitlines()
    masks = [kernel for kernel in kernels if "select(gt(" in kernel]
    assert len(masks) == 2
    assert not any("[16, 5, 30, 30]" in kernel for kernel in masks)
    readers = [kernel for kernel in kernels if " relu_1 float32" in kernel.partition("->")[0]]
    assert len(readers) == 1
    assert " MaxPool [" in readers[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_training_with_nan_and_zeros(optimizer, precision, threads):
    """Rows of zeros, whose activations are all at the edge of Relu, train as the same rows do in
    float64; one NaN is reported, as without a pool."""
    model, _ = network_of_classes()
    x = np.random.default_rng(1).standard_normal((16, 2, 32, 32)).astype(np.float32)
    x[::2] = 0
    labels = np.arange(16) % 3
    found = og.Trainer(
        model, "softmax_cross_entropy", optimizer, lr=1e-3, precision=precision, threads=threads
    )
    found.fit(x, labels, epochs=2, batch_size=8, shuffle=False, verbose=0)
    double, _ = Network("float64").build("MaxPool", WINDOWS["2x2"], "Relu", "none", (32, 32))
    wide = og.Trainer(double, "softmax_cross_entropy", optimizer, lr=1e-3, threads=threads)
    wide.fit(x.astype(np.float64), labels, epochs=2, batch_size=8, shuffle=False, verbose=0)
    tolerance = 2e-4 if precision == "float32" else 2e-2
    np.testing.assert_allclose(
        found.history["train_loss"], wide.history["train_loss"], rtol=tolerance
    )
    x[3, 0, 5, 5] = np.nan
    with pytest.raises(og.DataError):
        found.fit(x, labels, epochs=1, batch_size=8, verbose=0)
