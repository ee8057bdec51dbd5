"""Known models as exporters write them, with random weights of full size."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """Nodes and weights of a model that is being written."""

    def __init__(self) -> None:
        """Start an empty graph."""
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Add a node; return its output."""
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """Add a random weight."""
        array = self._random.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
        self.weights.append(numpy_helper.from_array(array, f"weight_{len(self.weights)}"))
        return self.weights[-1].name

    def constant(self, array: object) -> str:
        """Add a constant."""
        return self.op("Constant", value=numpy_helper.from_array(np.asarray(array)))

    def numbers(self, name: str, array: np.ndarray) -> str:
        """Add an initializer with these numbers."""
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def normalized(self, x: str, channels: int) -> str:
        """Add a BatchNormalization as it is before training."""
        ones, zeros = np.ones(channels), np.zeros(channels)
        kinds = {"scale": ones, "bias": zeros, "running_mean": zeros, "running_var": ones}
        number = len(self.weights)
        inputs = [self.numbers(f"{kind}_{number}", array) for kind, array in kinds.items()]
        return self.op("BatchNormalization", x, *inputs)

    def model(self, inputs: list[onnx.ValueInfoProto], output: str) -> onnx.ModelProto:
        """Return the model."""
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "main", inputs, [result], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resnet(blocks: tuple[int, ...], deep: bool, size: int = 224) -> onnx.ModelProto:
    """ResNet for images of `size` by `size`; `deep` blocks have three convolutions, others two."""
    g = Graph()

    def conv(x: str, channels: tuple[int, int], size: int, stride: int, relu: bool = True) -> str:
        pads = [size // 2] * 4
        y = g.op("Conv", x, g.weight(channels[1], channels[0], size, size),
                 kernel_shape=[size, size], pads=pads, strides=[stride, stride])  # fmt: skip
        y = g.normalized(y, channels[1])
        return g.op("Relu", y) if relu else y

    y = conv("x", (3, 64), 7, 2)
    y = g.op("MaxPool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    before = 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        after = 4 * width if deep else width
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            if deep:
                inner = conv(y, (before, width), 1, 1)
                inner = conv(inner, (width, width), 3, stride)
                inner = conv(inner, (width, after), 1, 1, relu=False)
            else:
                inner = conv(y, (before, width), 3, stride)
                inner = conv(inner, (width, width), 3, 1, relu=False)
            if block == 0 and (stride > 1 or before != after):
                y = conv(y, (before, after), 1, stride, relu=False)
            y = g.op("Relu", g.op("Add", inner, y))
            before = after
    y = g.op("Flatten", g.op("GlobalAveragePool", y))
    y = g.op("Gemm", y, g.weight(1000, before), g.weight(1000), transB=1)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, size, size])
    return g.model([x], y)


def resnet18(size: int = 224) -> onnx.ModelProto:
    """ResNet-18: 11.7 million parameters."""
    return resnet((2, 2, 2, 2), deep=False, size=size)


def resnet50(size: int = 224) -> onnx.ModelProto:
    """ResNet-50: 25.6 million parameters."""
    return resnet((3, 4, 6, 3), deep=True, size=size)


def lenet() -> onnx.ModelProto:
    """LeNet-5 for digits of 28 by 28, with Tanh and averages: 62 thousand parameters."""
    g = Graph()
    y = "x"
    for before, after, pad in ((1, 6, 2), (6, 16, 0)):
        y = g.op("Conv", y, g.weight(after, before, 5, 5), g.weight(after),
                 kernel_shape=[5, 5], pads=[pad] * 4)  # fmt: skip
        y = g.op("AveragePool", g.op("Tanh", y), kernel_shape=[2, 2], strides=[2, 2])
    y = g.op("Flatten", y)
    for before, after in ((400, 120), (120, 84), (84, 10)):
        y = g.op("Tanh", y) if before < 400 else y
        y = g.op("Gemm", y, g.weight(after, before), g.weight(after), transB=1)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 28, 28])
    return g.model([x], y)


def bert(layers: int = 12, width: int = 768, heads: int = 12) -> onnx.ModelProto:
    """BERT base, with the normalisations and Gelu written out, as torch exported it for long."""
    g = Graph()
    shape = g.constant(np.array([0, 0, heads, width // heads]))
    merged = g.constant(np.array([0, 0, width]))
    one, two, half = (g.constant(np.float32(number)) for number in (1, 2, 0.5))
    root, small = g.constant(np.float32(np.sqrt(2))), g.constant(np.float32(1e-12))
    scale = g.constant(np.float32(np.sqrt(width // heads)))

    def linear(x: str, rows: int, columns: int) -> str:
        return g.op("Add", g.op("MatMul", x, g.weight(rows, columns)), g.weight(columns))

    def normalized(x: str) -> str:
        centred = g.op("Sub", x, g.op("ReduceMean", x, axes=[-1]))
        variance = g.op("ReduceMean", g.op("Pow", centred, two), axes=[-1])
        y = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, small)))
        return g.op("Add", g.op("Mul", y, g.weight(width)), g.weight(width))

    def heads_of(x: str, perm: list[int]) -> str:
        return g.op("Transpose", g.op("Reshape", linear(x, width, width), shape), perm=perm)

    x = g.op("Gather", g.weight(30522, width), "ids")
    x = normalized(g.op("Add", x, g.op("Gather", g.weight(512, width), "positions")))
    for _ in range(layers):
        query, value = heads_of(x, [0, 2, 1, 3]), heads_of(x, [0, 2, 1, 3])
        scores = g.op("Div", g.op("MatMul", query, heads_of(x, [0, 2, 3, 1])), scale)
        mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
        mixed = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), merged)
        x = normalized(g.op("Add", x, linear(mixed, width, width)))
        inner = linear(x, width, 4 * width)
        gate = g.op("Add", g.op("Erf", g.op("Div", inner, root)), one)
        inner = g.op("Mul", g.op("Mul", inner, gate), half)
        x = normalized(g.op("Add", x, linear(inner, 4 * width, width)))
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["N", "T"])
        for name in ("ids", "positions")
    ]
    return g.model(inputs, x)
