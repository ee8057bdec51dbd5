"""Behaviour of stock onnxruntime's products of 8-bit integers on this processor."""

import functools

import numpy as np
import onnx.helper as oh
import onnxruntime as ort
from onnx import TensorProto


@functools.cache
def saturates() -> bool:
    """Whether sums of two products of uint8 and int8 are limited to 16 bits, as on x86
    processors without VNNI (onnxruntime's documentation of quantization: "reduce_range")."""
    graph = oh.make_graph(
        [oh.make_node("MatMulInteger", ["a", "b"], ["y"])],
        "saturates",
        [
            oh.make_tensor_value_info("a", TensorProto.UINT8, [16, 64]),
            oh.make_tensor_value_info("b", TensorProto.INT8, [64, 16]),
        ],
        [oh.make_tensor_value_info("y", TensorProto.INT32, [16, 16])],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 13)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString())
    a, b = np.full((16, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    return bool(np.any(session.run(None, {"a": a, "b": b})[0] != 64 * 255 * 127))


def largest_weight() -> int:
    """The size of int8 weights whose products with uint8 stock onnxruntime adds exactly."""
    return 64 if saturates() else 128
