"""Models and helpers that several tests use; everything is made here from fixed seeds."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import pytest
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ONNXGRAD_BUILD_DIR", ROOT / "build/release"))
# The simulated device, a plugin of the tests.
PLUGIN = BUILD / "tests/libonnxgrad_simulated_device.so"
needs_plugin = pytest.mark.skipif(
    not PLUGIN.exists(), reason="the plugin is built with the C++ tests, which this build lacks"
)

LINEAR = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 2] X) => (float[N, 1] Y)
<float[2, 1] coef = {0.5, -0.25}, float[1] intercept = {0.125}>
{ product = MatMul(X, coef)  Y = Add(product, intercept) }
"""

# Sequences whose positions are known only at run time have no gradient.
TWO_WITHOUT_GRADIENT = """
<ir_version: 8, opset_import: ["" : 18]>
main (float[1, 2, 4, 4] X, bool flag) => (float[1, 2, 4, 4] Y)
<float[2, 2, 1, 1] mix = {1, 2, 3, 4}>
{
  h = Conv(X, mix)
  one = If(flag) <
    then_branch = a () => (optional(float[1, 2, 4, 4]) u) { u = Optional(h) },
    else_branch = b () => (optional(float[1, 2, 4, 4]) v) { v = Optional(X) }
  >
  [first_get] p = OptionalGetElement(one)
  q = Conv(p, mix)
  other = If(flag) <
    then_branch = c () => (optional(float[1, 2, 4, 4]) s) { s = Optional(q) },
    else_branch = d () => (optional(float[1, 2, 4, 4]) t) { t = Optional(h) }
  >
  [second_get] Y = OptionalGetElement(other)
}
"""


TWO_HEADS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 2] X) => (float[N, 1] price, float[N, 3] kind)
<float[2, 1] a = {0.5, -0.25}, float[2, 3] b = {0.1, 0.2, 0.3, -0.3, 0.4, 0.0}>
{ price = MatMul(X, a)  logits = MatMul(X, b)  kind = Softmax(logits) }
"""


class DLPackOnly:
    """An array that supports only DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def mlp_proto(sizes, seed=0, dtype=np.float32, head=""):
    """A multi-layer perceptron with Relu, weights W0, b0, W1, ... and the input X [N, sizes[0]].

    `head` is "" (scores are the output Y) or "Softmax" (Y are probabilities, scores are inside).
    """
    rng = np.random.default_rng(seed)
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, weights, value = [], [], "X"
    for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        bound = np.sqrt(6.0 / (rows + columns))
        for name, shape in ((f"W{i}", (rows, columns)), (f"b{i}", (columns,))):
            array = rng.uniform(-bound, bound, shape).astype(dtype)
            weights.append(numpy_helper.from_array(array, name))
        last = i == len(sizes) - 2
        nodes.append(onnx.helper.make_node("MatMul", [value, f"W{i}"], [f"m{i}"], f"matmul_{i}"))
        value = f"a{i}" if not last else ("scores" if head else "Y")
        nodes.append(onnx.helper.make_node("Add", [f"m{i}", f"b{i}"], [value], f"add_{i}"))
        if not last:
            nodes.append(onnx.helper.make_node("Relu", [value], [f"h{i}"], f"relu_{i}"))
            value = f"h{i}"
    if head:
        nodes.append(onnx.helper.make_node(head, ["scores"], ["Y"], "head"))
    graph = onnx.helper.make_graph(
        nodes,
        "mlp",
        [onnx.helper.make_tensor_value_info("X", element, ["N", sizes[0]])],
        [onnx.helper.make_tensor_value_info("Y", element, ["N", sizes[-1]])],
        weights,
    )
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def linear_rows(proto, X, y):
    """The scores of the linear model and their differences from y, in float64."""
    weights = initializers(proto)
    return X.astype(np.float64) @ weights["coef"] + weights["intercept"] - y


def initializers(model):
    """The weights of a model by name; `model` is a ModelProto or a path."""
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def run_python(code, *arguments, timeout=120):
    """Run code in an interpreter of its own; returns the completed process."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
