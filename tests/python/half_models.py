"""Models in float16 and bfloat16, made of float32 ones by giving every tensor the other type."""

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, numpy_helper

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
# Half the distance between 1 and the next number.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

MLP = """
<ir_version: 10, opset_import: ["" : 22]>
mlp (float[N, 6] x) => (float[N, 3] y)
{
  a = MatMul(x, w0)  s = Add(a, b0)  h = Tanh(s)  c = MatMul(h, w1)  y = Add(c, b1)
}
"""

CNN = """
<ir_version: 10, opset_import: ["" : 22]>
cnn (float[N, 2, 8, 8] x) => (float[N, 3] y)
{
  a = Conv<pads = [1, 1, 1, 1]>(x, k, kb)
  n = BatchNormalization(a, scale, shift, mean, variance)
  r = Relu(n)
  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
  f = Flatten(p)
  y = Gemm<transB = 1>(f, w, b)
}
"""

TRANSFORMER = """
<ir_version: 10, opset_import: ["" : 22]>
block (float[N, 5, 8] x) => (float[N, 3] y)
<int64[4] split = {0, 0, 2, 4}, int64[3] joined = {0, 0, 8}, float root = {0.5},
 int64[1] places = {1}>
{
  n0 = LayerNormalization(x, g0)
  q0 = MatMul(n0, q)  q1 = Reshape(q0, split)  q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
  k0 = MatMul(n0, k)  k1 = Reshape(k0, split)  k2 = Transpose<perm = [0, 2, 3, 1]>(k1)
  v0 = MatMul(n0, v)  v1 = Reshape(v0, split)  v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
  a0 = MatMul(q2, k2)  a1 = Mul(a0, root)  a2 = Softmax(a1)
  c0 = MatMul(a2, v2)  c1 = Transpose<perm = [0, 2, 1, 3]>(c0)  c2 = Reshape(c1, joined)
  c3 = MatMul(c2, o)  r0 = Add(x, c3)
  n1 = LayerNormalization(r0, g1)
  u0 = MatMul(n1, up)  u1 = Add(u0, ub)  u2 = Gelu(u1)  d = MatMul(u2, down)
  r1 = Add(r0, d)
  m = ReduceMean<keepdims = 0>(r1, places)
  y = MatMul(m, head)
}
"""

TEXTS = {"mlp": MLP, "cnn": CNN, "transformer": TRANSFORMER}
WEIGHTS = {
    "mlp": {"w0": (6, 16), "b0": (16,), "w1": (16, 3), "b1": (3,)},
    "cnn": {
        "k": (4, 2, 3, 3), "kb": (4,), "scale": (4,), "shift": (4,), "mean": (4,),
        "variance": (4,), "w": (3, 64), "b": (3,),
    },
    "transformer": {
        "q": (8, 8), "k": (8, 8), "v": (8, 8), "o": (8, 8), "g0": (8,), "g1": (8,),
        "up": (8, 16), "ub": (16,), "down": (16, 8), "head": (8, 3),
    },
}  # fmt: skip
POSITIVE = {"scale", "variance", "g0", "g1"}
INPUTS = {"mlp": (6,), "cnn": (2, 8, 8), "transformer": (5, 8)}


def in_both(numbers: np.ndarray) -> np.ndarray:
    """Return float32 numbers that float16 and bfloat16 represent exactly."""
    for half in DTYPES.values():
        numbers = numbers.astype(half).astype(np.float64)
    return numbers.astype(np.float32)


def build(name: str, dtype: str = "float32") -> onnx.ModelProto:
    """Return one of the networks, with the same weights in every type."""
    model = onnx.parser.parse_model(TEXTS[name])
    rng = np.random.default_rng(3)
    for weight, shape in WEIGHTS[name].items():
        numbers = (
            rng.uniform(0.5, 1.5, shape)
            if weight in POSITIVE
            else rng.normal(0, 1 / np.sqrt(max(shape)), shape)
        )
        model.graph.initializer.append(numpy_helper.from_array(in_both(numbers), weight))
    onnx.checker.check_model(model, full_check=True)
    return model if dtype == "float32" else to_half(model, dtype)


def parse(text: str, dtype: str) -> onnx.ModelProto:
    """Return a model of opset 26 in ONNX's text syntax, written for float32, in another type."""
    header = '<ir_version: 11, opset_import: ["" : 26]>\n'
    model = to_half(onnx.parser.parse_model(header + text), dtype)
    onnx.checker.check_model(model, full_check=True)
    return model


def to_half(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """Return the model with `dtype` in place of float32: values, weights, constants, casts."""
    half = DTYPES.get(dtype, np.dtype(np.float64))
    element = onnx.helper.np_dtype_to_tensor_dtype(half)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    _convert_graph(result.graph, half, element)
    return result


def _convert_graph(graph: onnx.GraphProto, half: np.dtype, element: int) -> None:
    for tensor in graph.initializer:
        _convert_tensor(tensor, half)
    for value in [*graph.input, *graph.output, *graph.value_info]:
        of_items = value.type.sequence_type.elem_type
        kind = of_items if value.type.HasField("sequence_type") else value.type
        if kind.tensor_type.elem_type == TensorProto.FLOAT:
            kind.tensor_type.elem_type = element
    for node in graph.node:
        if node.op_type == "SequenceEmpty" and not node.attribute:
            node.attribute.append(onnx.helper.make_attribute("dtype", TensorProto.FLOAT))
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = element
            if attribute.HasField("t"):
                _convert_tensor(attribute.t, half)
            if attribute.HasField("g"):
                _convert_graph(attribute.g, half, element)


def _convert_tensor(tensor: TensorProto, half: np.dtype) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        numbers = numpy_helper.to_array(tensor).astype(half)
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))


def rows(name: str, count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and class numbers."""
    rng = np.random.default_rng(5)
    return in_both(rng.normal(size=(count, *INPUTS[name]))), rng.integers(0, 3, count)
