"""The forward graphs of the workloads, written with onnx.helper (no exporter), and their weights.

`build(name)` is the entry. The weights come from one generator with a fixed seed, drawn in the
order in which the layers are written, so the same name always gives the same file. Needs onnx.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import onnx
import onnx.helper
import workloads
from onnx import TensorProto, numpy_helper

OPSET = 17
IR_VERSION = 8


@dataclasses.dataclass
class Graph:
    """Nodes and initializers written so far; calling it adds a node and returns its first output"""

    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    initializers: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    frozen: set[str] = dataclasses.field(default_factory=set)
    counter: int = 0
    generator: np.random.Generator = dataclasses.field(
        default_factory=lambda: np.random.default_rng(1234)
    )

    def __call__(self, operator: str, inputs: list[str], outputs: int = 1, **attributes) -> str:
        names = [self.fresh(operator.lower()) for _ in range(outputs)]
        node = onnx.helper.make_node(
            operator, inputs, names, name=self.fresh("n_" + operator), **attributes
        )
        self.nodes.append(node)
        return names[0]

    @property
    def trainable(self) -> list[str]:
        return [name for name in self.initializers if name not in self.frozen]

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}_{self.counter}"

    def weight(self, name: str, value: np.ndarray) -> str:
        self.initializers[name] = np.ascontiguousarray(value, dtype=np.float32)
        return name

    def constant(self, value: np.ndarray, name: str) -> str:
        """An initializer that is not to be trained."""
        self.initializers[name] = np.asarray(value)
        self.frozen.add(name)
        return name

    def uniform(self, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
        """Uniform in +-1/sqrt(fan_in), PyTorch's choice for dense layers and convolutions."""
        bound = 1.0 / np.sqrt(fan_in)
        return self.generator.uniform(-bound, bound, size=shape).astype(np.float32)

    def normal(self, shape: tuple[int, ...], deviation: float) -> np.ndarray:
        return (self.generator.standard_normal(shape) * deviation).astype(np.float32)

    def head(self, value: str, weight: np.ndarray, bias: np.ndarray) -> str:
        """The last dense layer of the classifiers: weight [classes, features]."""
        inputs = [value, self.weight("FW", weight), self.weight("FB", bias)]
        return self("Gemm", inputs, transB=1)


def dense(graph: Graph, workload: workloads.Workload) -> str:
    """Dense layers with ReLU between: MatMul + Add with [in, out] weights as skl2onnx writes them
    for a regression, Gemm with [out, in] weights as PyTorch exports them for a classifier."""
    sizes = [workload.features, *workload.hidden, workload.outputs]
    value = "X"
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        weight = graph.uniform((fan_in, fan_out), fan_in)
        weight = graph.weight(f"W{layer}", weight.T if workload.loss == "ce" else weight)
        bias = graph.weight(f"B{layer}", graph.uniform((fan_out,), fan_in))
        if workload.loss == "ce":
            value = graph("Gemm", [value, weight, bias], transB=1)
        else:
            value = graph("Add", [graph("MatMul", [value, weight]), bias])
        if layer < len(sizes) - 2:
            value = graph("Relu", [value])
    return value


def convolutions(graph: Graph) -> str:
    """Two 5x5 convolutions with ReLU and 2x2 maximum pooling, then one dense layer."""
    value = "X"
    for layer, (channels, filters) in enumerate([(1, 16), (16, 32)]):
        fan_in = channels * 25
        inputs = [
            value,
            graph.weight(f"CW{layer}", graph.uniform((filters, channels, 5, 5), fan_in)),
            graph.weight(f"CB{layer}", graph.uniform((filters,), fan_in)),
        ]
        value = graph("Relu", [graph("Conv", inputs, kernel_shape=[5, 5], pads=[2, 2, 2, 2])])
        value = graph("MaxPool", [value], kernel_shape=[2, 2], strides=[2, 2])
    value = graph("Flatten", [value], axis=1)
    features = 32 * 7 * 7
    weight = graph.uniform((10, features), features)
    return graph.head(value, weight, graph.uniform((10,), features))


def convolution(
    graph: Graph, value: str, name: str, shape: tuple[int, int, int], stride: int, group: int = 1
) -> str:
    """A convolution without a bias; `shape`: input channels, filters, size of the window."""
    channels, filters, size = shape
    fan_in = channels // group * size * size
    weight = graph.normal((filters, channels // group, size, size), np.sqrt(2.0 / fan_in))
    return graph(
        "Conv", [value, graph.weight(name, weight)], kernel_shape=[size, size], group=group,
        strides=[stride, stride], pads=[size // 2] * 4,
    )  # fmt: skip


def batch_norm(graph: Graph, value: str, name: str, channels: int) -> str:
    """Batch normalisation in training mode, with running statistics."""
    inputs = [
        value,
        graph.weight(name + "_scale", np.ones(channels)),
        graph.weight(name + "_bias", np.zeros(channels)),
        graph.constant(np.zeros(channels, np.float32), name + "_mean"),
        graph.constant(np.ones(channels, np.float32), name + "_var"),
    ]
    return graph(
        "BatchNormalization", inputs, outputs=3, epsilon=1e-5, momentum=0.9, training_mode=1
    )


def pooled_head(graph: Graph, value: str, features: int) -> str:
    value = graph("Flatten", [graph("GlobalAveragePool", [value])], axis=1)
    weight = graph.uniform((10, features), features)
    return graph.head(value, weight, graph.uniform((10,), features))


def resnet18(graph: Graph) -> str:
    """The 32x32 variant: a 3x3 stem without pooling."""

    def layer(value: str, name: tuple[str, str], shape: tuple[int, int, int], stride: int) -> str:
        return batch_norm(
            graph, convolution(graph, value, name[0], shape, stride), name[1], shape[1]
        )

    value = graph("Relu", [layer("X", ("stem", "stem_bn"), (3, 64, 3), 1)])
    channels = 64
    for stage, filters in enumerate([64, 128, 256, 512]):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            p = f"s{stage}b{block}"
            inner = graph(
                "Relu", [layer(value, (p + "c1", p + "n1"), (channels, filters, 3), stride)]
            )
            inner = layer(inner, (p + "c2", p + "n2"), (filters, filters, 3), 1)
            if stride != 1 or channels != filters:
                value = layer(value, (p + "cs", p + "ns"), (channels, filters, 1), stride)
            value = graph("Relu", [graph("Add", [inner, value])])
            channels = filters
    return pooled_head(graph, value, 512)


def mobilenetv2(graph: Graph) -> str:
    """Inverted residual blocks as in torchvision; the layout is `workloads.MOBILENET_BLOCKS`."""
    six = [graph.constant(np.float32(bound), f"bound_{bound}") for bound in (0, 6)]

    def layer(value, name, shape, stride=1, group=1, active=True) -> str:
        value = convolution(graph, value, name, shape, stride, group)
        value = batch_norm(graph, value, name + "n", shape[1])
        return graph("Clip", [value, *six]) if active else value

    value, channels = layer("X", "stem", (3, 32, 3), 2), 32
    for index, (expansion, filters, stride) in enumerate(workloads.MOBILENET_BLOCKS):
        p, inner, wide = f"b{index}", value, channels * expansion
        if expansion != 1:
            inner = layer(inner, p + "e", (channels, wide, 1))
        inner = layer(inner, p + "d", (wide, wide, 3), stride, group=wide)
        inner = layer(inner, p + "p", (wide, filters, 1), active=False)
        is_residual = stride == 1 and channels == filters
        value = graph("Add", [value, inner]) if is_residual else inner
        channels = filters
    value = layer(value, "last", (channels, 1280, 1))
    return pooled_head(graph, value, 1280)


def transformer(graph: Graph, sizes: workloads.Transformer) -> str:
    """A stack of transformer layers with exact GELU in its opset 17 spelling.

    An encoder normalises after each residual and ends in mean pooling and a dense head; a causal
    language model normalises before, masks the scores and ends in one score per token.
    """
    width, head_width, is_causal = sizes.width, sizes.width // sizes.heads, sizes.causal

    def linear(value: str, name: str, fan_in: int, fan_out: int) -> str:
        weight = graph.weight(name + "_w", graph.normal((fan_in, fan_out), 0.02))
        value = graph("MatMul", [value, weight])
        return graph("Add", [value, graph.weight(name + "_b", np.zeros(fan_out))])

    def normalise(value: str, name: str) -> str:
        scale = graph.weight(name + "_g", np.ones(width))
        bias = graph.weight(name + "_b", np.zeros(width))
        return graph("LayerNormalization", [value, scale, bias], axis=-1, epsilon=1e-5)

    shape = np.array([-1, sizes.sequence, sizes.heads, head_width], np.int64)
    split = graph.constant(shape, "shape_split")
    merge = graph.constant(np.array([-1, sizes.sequence, width], np.int64), "shape_merge")
    scale = graph.constant(np.float32(1.0 / np.sqrt(head_width)), "attention_scale")
    root2 = graph.constant(np.float32(np.sqrt(2.0)), "sqrt2")
    one = graph.constant(np.float32(1.0), "one")
    half = graph.constant(np.float32(0.5), "half")
    if is_causal:
        above = np.triu(np.full((sizes.sequence, sizes.sequence), -np.inf, np.float32), 1)
        mask = graph.constant(above, "causal_mask")

    def attention(value: str, p: str) -> str:
        query, key, content = (
            graph("Transpose", [graph("Reshape", [linear(value, p + name, width, width), split])],
                  perm=order)
            for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
        )  # fmt: skip
        scores = graph("Mul", [graph("MatMul", [query, key]), scale])
        if is_causal:
            scores = graph("Add", [scores, mask])
        mixed = graph("MatMul", [graph("Softmax", [scores], axis=-1), content])
        mixed = graph("Reshape", [graph("Transpose", [mixed], perm=[0, 2, 1, 3]), merge])
        return linear(mixed, p + "o", width, width)

    def feed_forward(value: str, p: str) -> str:
        inner = linear(value, p + "f1", width, sizes.feed_forward)
        erf = graph("Add", [graph("Erf", [graph("Div", [inner, root2])]), one])
        inner = graph("Mul", [graph("Mul", [inner, erf]), half])
        return linear(inner, p + "f2", sizes.feed_forward, width)

    value = "X"
    if sizes.vocabulary:
        table = graph.weight("emb", graph.normal((sizes.vocabulary, width), 0.02))
        positions = graph.weight("pos", graph.normal((sizes.sequence, width), 0.02))
        value = graph("Add", [graph("Gather", [table, value], axis=0), positions])
        if not is_causal:
            value = normalise(value, "emb_ln")
    for layer in range(sizes.layers):
        p = f"l{layer}_"
        for part, name in ((attention, "ln1"), (feed_forward, "ln2")):
            if is_causal:
                value = graph("Add", [part(normalise(value, p + name), p), value])
            else:
                value = normalise(graph("Add", [part(value, p), value]), p + name)
    if is_causal:
        value = normalise(value, "last_ln")
        weight = graph.weight("FW", graph.normal((width, sizes.vocabulary), 0.02))
        return graph("MatMul", [value, weight])
    value = graph("ReduceMean", [value], axes=[1], keepdims=0)
    return graph.head(value, graph.normal((10, width), 0.02), np.zeros(10))


def build_graph(name: str) -> tuple[Graph, str]:
    """The graph of a workload and the name of the value that becomes its output."""
    workload, graph = workloads.WORKLOADS[name], Graph()
    if workload.transformer is not None:
        return graph, transformer(graph, workload.transformer)
    if workload.kind == "cnn":
        return graph, convolutions(graph)
    if workload.kind == "resnet18":
        return graph, resnet18(graph)
    if workload.kind == "mobilenetv2":
        return graph, mobilenetv2(graph)
    return graph, dense(graph, workload)


def build(name: str) -> tuple[onnx.ModelProto, Graph]:
    """The checked ONNX model of a workload, and the graph that it was made from."""
    workload = workloads.WORKLOADS[name]
    graph, result = build_graph(name)
    for node in graph.nodes:
        for index, output in enumerate(node.output):
            if output == result:
                node.output[index] = "Y"
    sizes = workload.transformer
    tokens = sizes is not None and sizes.vocabulary > 0
    positions = [sizes.sequence] if sizes is not None and sizes.causal else []
    value_info = onnx.helper.make_tensor_value_info
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes, name,
            [value_info("X", TensorProto.INT64 if tokens else TensorProto.FLOAT,
                        ["N", *workloads.input_shape(name)])],
            [value_info("Y", TensorProto.FLOAT, ["N", *positions, workload.outputs])],
            [numpy_helper.from_array(value, key) for key, value in graph.initializers.items()],
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        producer_name="onnxgrad-benchmarks",
    )  # fmt: skip
    model.ir_version = IR_VERSION
    onnx.helper.set_model_props(model, {"trainable": ",".join(graph.trainable)})
    onnx.checker.check_model(model)
    return model, graph
