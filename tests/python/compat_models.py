"""Models of the tests of the compatibility layer, under the names that those programs use."""

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

POLYNOMIAL = """
<ir_version: 8, opset_import: ["" : 14]>
fct (float[N, 2] x) => (float[N, 1] y)
<float[1, 2] init = {0.5, -0.33333}, float[1, 2] init_1 = {-2, 3}, int64[1] init_2 = {1},
 int64[1] init_3 = {2}, int64[1] init_5 = {0}, float[1] init_b10 = {-1},
 int64[2] init_b11 = {-1, 1}>
{
  out_mul_0 = Mul(x, x)
  out_mul_0_1 = Mul(out_mul_0, init)
  out_mul_0_2 = Mul(x, init_1)
  out_add_0 = Add(out_mul_0_2, out_mul_0_1)
  out_sli_0 = Slice(out_add_0, init_2, init_3, init_2)
  out_squ_0 = Squeeze(out_sli_0, init_2)
  out_sli_0_1 = Slice(out_add_0, init_5, init_2, init_2)
  out_squ_0_1 = Squeeze(out_sli_0_1, init_2)
  out_add_0_1 = Add(out_squ_0_1, out_squ_0)
  out_add_0_2 = Add(out_add_0_1, init_b10)
  y = Reshape(out_add_0_2, init_b11)
}
"""
POINTS = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [2, 2]], np.float32)


def polynomial():
    """-1 - 2 a + 3 b + a^2 / 2 - b^2 / 3, as the notebook's function is exported."""
    return onnx.parser.parse_model(POLYNOMIAL)


def polynomial_data(rows=100, seed=0):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(rows, 2)) / 10).astype(np.float32)
    a, b = X[:, :1], X[:, 1:]
    return X, (-1 - 2 * a + 3 * b + a**2 / 2 - b**2 / 3).astype(np.float32)


def linear_regression(coefs, intercept, with_loss=False):
    """Y = X coefs + intercept, and with a loss sum (Y - label)^2 as first output."""
    coefs = np.asarray(coefs, np.float32).reshape((1, -1)).T
    info = helper.make_tensor_value_info
    X = info("X", TensorProto.FLOAT, [None, coefs.shape[0]])
    label = info("label", TensorProto.FLOAT, [None, 1])
    Y = info("Y", TensorProto.FLOAT, [None, 1])
    loss = info("loss", TensorProto.FLOAT, [])
    nodes = [
        helper.make_node("MatMul", ["X", "coefs"], ["y1"], name="N1"),
        helper.make_node("Add", ["y1", "intercept"], ["Y"], name="N2"),
    ]
    if with_loss:
        nodes += [
            helper.make_node("Sub", ["Y", "label"], ["diff"], name="L1"),
            helper.make_node("Mul", ["diff", "diff"], ["diff2"], name="L2"),
            helper.make_node("ReduceSum", ["diff2"], ["loss"], name="L3"),
        ]
    weights = [
        numpy_helper.from_array(coefs, "coefs"),
        numpy_helper.from_array(np.asarray(intercept, np.float32).reshape((1,)), "intercept"),
    ]
    inputs, outputs = ([X, label], [loss, Y]) if with_loss else ([X], [Y])
    graph = helper.make_graph(nodes, "lrt", inputs, outputs, weights)
    return helper.make_model(
        graph,
        producer_name="orttrainer",
        ir_version=7,
        opset_imports=[helper.make_operatorsetid("", 14)],
    )


def run(model, feeds, outputs=None):
    """Outputs of a model in stock onnxruntime."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(outputs, feeds)


def names(values):
    return [value.name for value in values]
