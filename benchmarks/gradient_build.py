"""How long the gradient of a large graph takes to build: ResNet-50 and a BERT of 12 layers.

    python benchmarks/gradient_build.py [--repeat N]

Both graphs are made here, as exporters write them, with random weights of full size, in a file.
Measured in the extension, by `time.process_time` (one thread; the same as the clock on a machine
that does nothing else): "load" reads the file, "import" makes the working copy (opset, types of all
values, what the weights are), both once for a model; "gradient" with respect to all weights, in a
current opset, without the conversion to an `onnx.ModelProto`. "memory" is by how much the peak of
the process grows while the gradient is built.
"""

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxgrad import _core


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

    def model(self, inputs: list[onnx.ValueInfoProto], output: str) -> onnx.ModelProto:
        """Return the model, with the mean of `output` as the loss."""
        self.nodes.append(helper.make_node("ReduceMean", [output], ["loss"], keepdims=0))
        loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
        graph = helper.make_graph(self.nodes, "main", inputs, [loss], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def resnet50() -> onnx.ModelProto:
    """ResNet-50 for images of 224 by 224, with BatchNormalization: 25.6 million parameters."""
    g = Graph()

    def conv(x: str, channels: tuple[int, int], size: int, stride: int, relu: bool = True) -> str:
        pads = [size // 2] * 4
        y = g.op("Conv", x, g.weight(channels[1], channels[0], size, size),
                 kernel_shape=[size, size], pads=pads, strides=[stride, stride])  # fmt: skip
        y = g.op("BatchNormalization", y, *(g.weight(channels[1]) for _ in range(4)))
        return g.op("Relu", y) if relu else y

    y = conv("x", (3, 64), 7, 2)
    y = g.op("MaxPool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    before = 64
    for width, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            inner = conv(y, (before, width), 1, 1)
            inner = conv(inner, (width, width), 3, stride)
            inner = conv(inner, (width, 4 * width), 1, 1, relu=False)
            if block == 0:
                y = conv(y, (before, 4 * width), 1, stride, relu=False)
            y = g.op("Relu", g.op("Add", inner, y))
            before = 4 * width
    y = g.op("Flatten", g.op("GlobalAveragePool", y))
    y = g.op("Gemm", y, g.weight(1000, 2048), g.weight(1000), transB=1)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 224, 224])
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


def peak_mib() -> float:
    """Return the peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(model: onnx.ModelProto, repeat: int) -> dict[str, float]:
    """Return the measurements of one model."""
    names = [tensor.name for tensor in model.graph.initializer]
    numbers = {"nodes": len(model.graph.node), "weights": len(names)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(model, file)
        del model
        numbers["mib"] = file.stat().st_size / 2**20
        loads, imports, gradients, clock = [], [], [], []
        growth = 0.0
        for _ in range(repeat):
            start = time.process_time()
            loaded = _core.Model.load(str(file))
            loads.append(time.process_time() - start)
            start = time.process_time()
            assert loaded.weights  # of the working copy
            imports.append(time.process_time() - start)
            before = peak_mib()
            start, start_clock = time.process_time(), time.perf_counter()
            result, _ = _core.gradient(loaded, names, ["loss"], True, False, [], 26, False)
            gradients.append(time.process_time() - start)
            clock.append(time.perf_counter() - start_clock)
            growth = max(growth, peak_mib() - before)
            assert len(result.outputs) == len(names)
    numbers |= {"load_ms": 1000 * statistics.median(loads)}
    numbers |= {"import_ms": 1000 * statistics.median(imports)}
    numbers |= {"gradient_ms": 1000 * statistics.median(gradients)}
    return numbers | {"clock_ms": 1000 * min(clock), "memory_mib": growth}


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    columns = ("nodes", "weights", "mib", "load_ms", "import_ms", "gradient_ms", "clock_ms")
    columns += ("memory_mib",)
    print("model    " + "".join(f"{column:>12}" for column in columns))
    for make in (resnet50, bert):
        found = measure(make(), arguments.repeat)
        print(f"{make.__name__:<9}" + "".join(f"{found[column]:>12.1f}" for column in columns))


if __name__ == "__main__":
    main()
