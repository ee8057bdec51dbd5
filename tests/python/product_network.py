"""A network of large products, and rows for it: for what computes these in different ways."""

import numpy as np
import onnx
from onnx import parser

# Bias and ReLU, a residual, a product with a transposed weight, one whose result has a second
# consumer; two rows of products below the size from which a library is called.
NETWORK = """
<ir_version: 8, opset_import: ["" : 20]>
network ({type}[N, 160] x) => ({type}[N, 4] y)
<{type}[176] b0, {type}[160] b1, {type}[4] b3>
{{
    wide = Gemm (x, w0, b0)
    cut = Relu (wide)
    narrow = MatMul (cut, w1)
    shifted = Add (narrow, b1)
    block = Add (shifted, x)
    smooth = Gelu (block)
    deep = Gemm <transB = 1> (smooth, w2)
    both = Add (deep, cut)
    y = Gemm (both, w3, b3)
}}
"""
SHAPES = {
    "w0": (160, 176), "b0": (176,), "w1": (176, 160), "b1": (160,), "w2": (176, 160),
    "w3": (176, 4), "b3": (4,),
}  # fmt: skip
ROWS = 150


def network(dtype: str = "float") -> onnx.ModelProto:
    head, body = NETWORK.format(type=dtype).split(f"\n<{dtype}[176]")
    model = parser.parse_model(head + "\n" + body.partition(">\n")[2])
    generator = np.random.default_rng(3)
    number = np.float32 if dtype == "float" else np.float64
    for name, shape in SHAPES.items():
        value = generator.standard_normal(shape) / np.sqrt(shape[0])
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(number), name))
    return model


def rows(dtype: str = "float", count: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(4)
    x = generator.standard_normal((count, 160))
    y = x[:, :4] * 0.5 + generator.standard_normal((count, 4)) * 0.1
    number = np.float32 if dtype == "float" else np.float64
    return x.astype(number), y.astype(number)
