"""Random networks for `check_gradients`: kinks, ties, statistics, old operator sets, own types.

`draw_network(seed)` returns a model in float32 as exporters write them, with inputs. About a third
of the inputs lie on a grid, so that convolutions have ties and many values are exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = np.float32


@dataclass
class Network:
    """A model under construction; `value` is what came last, of shape `shape`."""

    rng: np.random.Generator
    opset: int
    value: str = "x"
    shape: tuple[int, ...] = ()
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    domains: dict[str, int] = field(default_factory=dict)
    defaults: list[str] = field(default_factory=list)

    def weight(self, *shape: int, scale: float = 0.4, add: float = 0.0) -> str:
        return self.constant(self.rng.normal(size=shape).astype(FLOAT) * FLOAT(scale) + FLOAT(add))

    def constant(self, array) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def op(self, op_type: str, *inputs: str, shape=None, outputs: int = 1, **attributes) -> str:
        """Append a node; its first output is the value, if `shape` is given."""
        names = [f"v{len(self.nodes)}" + "abc"[i] for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        if shape is not None:
            self.value, self.shape = names[0], tuple(shape)
        return names[0]

    def choice(self, options):
        return options[int(self.rng.integers(len(options)))]

    def model(self) -> onnx.ModelProto:
        def info(name, array):
            return helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )

        ir = 6 if self.opset < 14 else 8
        listed = [name for name in self.weights if self.opset < 14 and name in self.defaults]
        graph = helper.make_graph(
            self.nodes,
            "network",
            [info(n, a) for n, a in self.inputs.items()]
            + [info(n, self.weights[n]) for n in listed],
            [helper.make_tensor_value_info(self.value, TensorProto.FLOAT, self.shape)],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(*domain) for domain in self.domains.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def activation(net: Network) -> None:
    kinds: list[tuple[str, dict]] = [
        *[("Relu", {})] * 4,
        ("LeakyRelu", {"alpha": 0.1}),
        ("Elu", {}),
        ("Selu", {}),
        ("Softplus", {}),
        ("Softsign", {}),
        ("HardSigmoid", {"alpha": 0.3}),
        ("ThresholdedRelu", {"alpha": 0.25}),
        ("Shrink", {"lambd": 0.125, "bias": 0.0625}),
        ("Sigmoid", {}),
        ("Tanh", {}),
        ("Abs", {}),
        ("Sin", {}),
        ("Celu", {"alpha": 1.5}),
    ]
    if net.opset >= 14:
        kinds.append(("HardSwish", {}))
    if net.opset >= 20:
        kinds.append(("Gelu", {}))
    kind, attributes = net.choice(kinds)
    draw = net.rng.random()
    if draw < 0.1:
        slope = net.weight(*net.shape[1:2], *[1] * (len(net.shape) - 2))
        net.op("PRelu", net.value, slope, shape=net.shape)
    elif draw < 0.2:
        low, high = net.constant(FLOAT(-0.5)), net.constant(FLOAT(0.75))
        net.op("Clip", net.value, low, high, shape=net.shape)
    else:
        net.op(kind, net.value, shape=net.shape, **attributes)


def step(net: Network) -> None:
    """A value that jumps, beside one that does not."""
    kind = net.choice(["Floor", "Ceil", "Round", "Sign", "Greater", "Where"])
    x = net.value
    if kind == "Greater":
        found = net.op("Greater", x, net.constant(FLOAT(0.1)))
        found = net.op("Cast", found, to=TensorProto.FLOAT)
    elif kind == "Where":
        found = net.op("Less", x, net.constant(FLOAT(0)))
        found = net.op("Where", found, net.op("Neg", x), net.op("Mul", x, x))
    else:
        found = net.op(kind, x)
    net.op("Add", x, net.op("Mul", found, net.constant(FLOAT(0.3))), shape=net.shape)


def convolution(net: Network) -> None:
    batch, channels, height, width = net.shape
    filters, size = net.choice([2, 4, 6]), net.choice([1, 2, 3])
    bias = net.weight(filters, scale=net.choice([0.0, 0.0, 0.2]))
    if net.rng.random() < 0.2:
        kernel = net.weight(channels, filters, size, size)
        shape = (batch, filters, height + size - 1, width + size - 1)
        net.op("ConvTranspose", net.value, kernel, bias, shape=shape)
        return
    group = 2 if channels % 2 == 0 and net.rng.random() < 0.2 else 1
    kernel = net.weight(filters, channels // group, size, size)
    pads = [0, 0, size - 1, size - 1]
    shape = (batch, filters, height, width)
    net.op("Conv", net.value, kernel, bias, shape=shape, pads=pads, group=group)


def normalization(net: Network) -> None:
    channels = net.shape[1]
    kind = net.choice(["Batch", "Instance", "Group", "Layer", "LRN", "Lp", "None"])
    scale, bias = net.weight(channels, add=1.0), net.weight(channels)
    if kind == "Batch":
        mean = net.weight(channels)
        variance = net.constant(net.rng.uniform(0.5, 2, channels).astype(FLOAT))
        net.op("BatchNormalization", net.value, scale, bias, mean, variance, shape=net.shape)
    elif kind == "Instance":
        net.op("InstanceNormalization", net.value, scale, bias, shape=net.shape, epsilon=0.01)
    elif kind == "Group" and (net.opset == 18 or net.opset > 20):
        count = 2 if net.opset < 21 else channels
        scale, bias = net.weight(count, add=1.0), net.weight(count)
        inputs = (net.value, scale, bias)
        net.op("GroupNormalization", *inputs, shape=net.shape, num_groups=2, epsilon=0.01)
    elif kind == "Layer" and net.opset >= 17:
        scale, bias = net.weight(*net.shape[2:], add=1.0), net.weight(*net.shape[2:])
        net.op("LayerNormalization", net.value, scale, bias, shape=net.shape, axis=2)
    elif kind == "LRN":
        net.op("LRN", net.value, shape=net.shape, size=3, alpha=0.5)
    elif kind == "Lp":
        net.op("LpNormalization", net.value, shape=net.shape, axis=1, p=net.choice([1, 2]))


def resampling(net: Network) -> None:
    batch, channels, height, width = net.shape
    kind = net.choice(["Max", "Average", "Resize", "Resize", "Pad", "Depth", "Lp"])
    if kind in ("Max", "Average", "Lp") and min(height, width) > 2:
        pool = (net.op, f"{kind}Pool", net.value)
        shape = (batch, channels, (height - 2) // 2 + 1, (width - 2) // 2 + 1)
        attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
        pool[0](*pool[1:], shape=shape, **attributes)
    elif kind == "Resize" and height * width < 100:
        scales = net.constant(np.array([1, 1, 2, net.choice([1, 2])], FLOAT))
        roi = net.constant(np.zeros(0, FLOAT)) if net.opset < 13 else ""
        mode = net.choice(["nearest", "linear", "cubic"])
        wide = width * int(net.weights[scales][3])
        net.op(
            "Resize", net.value, roi, scales, shape=(batch, channels, 2 * height, wide), mode=mode
        )
        net.defaults += [name for name in (scales, roi) if name]
    elif kind == "Pad":
        pads = net.ints(0, 0, 1, 0, 0, 0, 0, 1)
        net.defaults.append(pads)
        mode = net.choice(["constant", "edge", "reflect"])
        shape = (batch, channels, height + 1, width + 1)
        net.op("Pad", net.value, pads, shape=shape, mode=mode if min(height, width) > 1 else "edge")
    elif kind == "Depth" and channels % 4 == 0:
        shape = (batch, channels // 4, 2 * height, 2 * width)
        net.op("DepthToSpace", net.value, shape=shape, blocksize=2)


def dense(net: Network) -> None:
    batch, size = net.shape
    columns = net.choice([3, 5, 8])
    bias = net.weight(columns, scale=net.choice([0.0, 0.3]))
    net.op("Gemm", net.value, net.weight(size, columns), bias, shape=(batch, columns))


def selection(net: Network) -> None:
    """Operators that choose among values: a maximum, the largest ones, rows in an order."""
    batch, size = net.shape
    kind = net.choice(["Max", "TopK", "ReduceMax", "ArgMax", "Min"])
    if kind in ("Max", "Min"):
        net.op(kind, net.value, net.weight(size), shape=net.shape)
    elif kind == "TopK":
        count = net.ints(2)
        net.defaults.append(count)
        net.op("TopK", net.value, count, shape=(batch, 2), outputs=2)
    elif kind == "ArgMax":
        place = net.op("ArgMax", net.value, axis=0, keepdims=0)
        net.op("Gather", net.value, place, shape=(size, size), axis=0)
    elif net.opset >= 18:
        best = net.op("ReduceMax", net.value, net.ints(1), keepdims=1)
        net.op("Sub", net.value, best, shape=net.shape)


def sequence(net: Network) -> None:
    """Words, a recurrent layer, its last state."""
    words = net.rng.integers(0, 7, (5, 2))
    net.inputs = {"x": words}
    net.op("Gather", net.weight(7, 4), "x", shape=(5, 2, 4))
    kind = net.choice(["LSTM", "GRU", "RNN"])
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    both = net.choice([1, 2])
    weights = [
        net.weight(both, gates * 3, 4),
        net.weight(both, gates * 3, 3),
        net.weight(both, gates * 6),
    ]
    attributes = {"direction": ["forward", "bidirectional"][both - 1], "hidden_size": 3}
    if kind == "RNN":
        attributes["activations"] = [net.choice(["Tanh", "Relu"])] * both
    states = net.op(kind, net.value, *weights, shape=(5, both, 2, 3), **attributes)
    net.op("Transpose", states, shape=(2, 5, both, 3), perm=[2, 0, 1, 3])
    net.op("Flatten", net.value, shape=(2, 15 * both), axis=1)


def attention(net: Network) -> None:
    x = net.rng.normal(size=(2, 4, 6)).astype(FLOAT)
    net.inputs = {"x": x}
    query, key, value = (net.op("MatMul", "x", net.weight(6, 6)) for _ in range(3))
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 2, 1]))
    mask = np.triu(np.full((4, 4), -1e9, FLOAT), 1)
    scores = net.op("Softmax", net.op("Add", scores, net.constant(mask)), axis=-1)
    mixed = net.op("Add", "x", net.op("MatMul", scores, value))
    if net.opset >= 17:
        inputs = (mixed, net.weight(6, add=1.0), net.weight(6))
        mixed = net.op("LayerNormalization", *inputs, axis=-1)
    net.op("Flatten", mixed, shape=(2, 24), axis=1)


def picture(net: Network) -> None:
    size = net.choice([4, 6, 9])
    x = net.rng.normal(size=(2, 3, size, size)).astype(FLOAT)
    if net.rng.random() < 0.35:  # ties, and zeros
        x = np.round(np.clip(x, 0, 1) * 2) / 2
    net.inputs, net.shape = {"x": x.astype(FLOAT)}, x.shape
    for _ in range(int(net.rng.integers(1, 5))):
        convolution(net)
        if net.rng.random() < 0.5:
            normalization(net)
        activation(net)
        if net.rng.random() < 0.5:
            resampling(net)
        if net.rng.random() < 0.1:
            step(net)
    if net.rng.random() < 0.5:
        net.op(
            net.choice(["GlobalAveragePool", "GlobalMaxPool"]),
            net.value,
            shape=(*net.shape[:2], 1, 1),
        )
    net.op("Flatten", net.value, shape=(2, int(np.prod(net.shape[1:]))), axis=1)


def table(net: Network) -> None:
    """Columns, perhaps scaled as by scikit-learn."""
    x = net.rng.normal(size=(6, 4)).astype(FLOAT)
    if net.rng.random() < 0.3:
        x = np.round(x)
    net.inputs, net.shape = {"x": x.astype(FLOAT)}, x.shape
    kind = net.choice(["Scaler", "Normalizer", "Imputer", "None", "None"])
    if kind != "None":
        net.domains["ai.onnx.ml"] = 3
    if kind == "Scaler":
        given = {"offset": [0.5, 0.0, -1.0, 2.0], "scale": [0.5, 1.0, 2.0, 0.25]}
        net.op(kind, net.value, shape=x.shape, domain="ai.onnx.ml", **given)
    elif kind == "Normalizer":
        net.op(kind, net.value, shape=x.shape, domain="ai.onnx.ml", norm=net.choice(["L1", "L2"]))
    elif kind == "Imputer":
        given = {"imputed_value_floats": [0.5] * 4, "replaced_value_float": float("nan")}
        net.op(kind, net.value, shape=x.shape, domain="ai.onnx.ml", **given)


STARTS: tuple[Callable[[Network], None], ...] = (picture, picture, picture, table, table)
STARTS = (*STARTS, sequence, attention)


def draw_network(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a random model and its inputs."""
    rng = np.random.default_rng([seed, 5])
    net = Network(rng, int(rng.choice([12, 13, 15, 17, 18, 20, 21, 23])))
    net.choice(STARTS)(net)
    for _ in range(int(rng.integers(1, 4))):
        dense(net)
        net.choice([activation, activation, activation, selection, step])(net)
    dense(net)
    if rng.random() < 0.5:
        net.op(net.choice(["Softmax", "LogSoftmax", "Sigmoid"]), net.value, shape=net.shape)
    return net.model(), net.inputs
