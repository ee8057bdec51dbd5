"""Constant weights of products in an InferenceSession, compared with stock onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

GENERATOR = np.random.default_rng(9)


def model_of(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    outputs: tuple[str, ...] = ("y",),
    inputs: tuple[str, ...] = (),
) -> bytes:
    """`inputs`: constants that are inputs with a default."""
    kind = helper.np_dtype_to_tensor_dtype(constants["w"].dtype)
    formal = [helper.make_tensor_value_info("x", kind, ["N", constants["w"].shape[1]])]
    formal += [helper.make_tensor_value_info(name, kind, constants[name].shape) for name in inputs]
    graph = helper.make_graph(
        nodes, "g", formal, [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def constants_of(n: int, k: int, dtype: type = np.float32) -> dict[str, np.ndarray]:
    weight = GENERATOR.standard_normal((n, k)).astype(dtype) / np.sqrt(k).astype(dtype)
    return {"w": weight, "b": GENERATOR.standard_normal(n).astype(dtype)}


def check(model: bytes, rows: int, k: int, dtype: type = np.float32, threads: int = 1) -> str:
    """Results of both runtimes are equal. Returns the plan."""
    x = GENERATOR.standard_normal((rows, k)).astype(dtype)
    session = og.InferenceSession(model, threads=threads)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for found, expected in zip(
        session.run(None, {"x": x}), theirs.run(None, {"x": x}), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    return session.plan_summary()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("n", "k"), [(1, 5), (10, 512), (67, 33), (512, 784), (1100, 1000)])
def test_rows(n: int, k: int, threads: int, dtype: type) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1, alpha=0.5, beta=2.0)
    model = model_of([node], constants_of(n, k, dtype))
    for rows in (1, 2, 33):
        plan = check(model, rows, k, dtype, threads)
        if "[dots " not in plan:  # few columns in float64: rows of the weight are read as they are
            assert ("[packed " in plan) == (n > 1)


def test_a_weight_that_is_read_both_ways() -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Gemm", ["h", "w"], ["y"]),
        helper.make_node("Gemm", ["y", "w"], ["z"], transB=1),
    ]
    plan = check(model_of(nodes, constants_of(40, 24), outputs=("h", "y", "z")), 3, 24)
    assert plan.count("[packed ") == 3


def test_what_a_caller_may_feed_is_kept() -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
    constants = constants_of(40, 24)
    session = og.InferenceSession(model_of([node], constants, inputs=("w",)), threads=1)
    x = GENERATOR.standard_normal((2, 24)).astype(np.float32)
    other = np.ones((40, 24), np.float32)
    for weight, feeds in ((constants["w"], {"x": x}), (other, {"x": x, "w": other})):
        found = session.run(None, feeds)[0]
        np.testing.assert_allclose(found, x @ weight.T + constants["b"], rtol=1e-5, atol=1e-5)


def test_inside_a_branch() -> None:
    kind = TensorProto.FLOAT
    branches = []
    for name, op in (("then", "Identity"), ("else", "Neg")):
        nodes = [
            helper.make_node("Gemm", ["x", "w", "b"], [f"{name}_h"], transB=1),
            helper.make_node(op, [f"{name}_h"], [f"{name}_y"]),
        ]
        output = helper.make_tensor_value_info(f"{name}_y", kind, None)
        branches.append(helper.make_graph(nodes, name, [], [output]))
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["y"], then_branch=branches[0], else_branch=branches[1]
        ),
    ]
    constants = constants_of(40, 24) | {"zero": np.zeros((), np.float32)}
    model = model_of(nodes, constants)
    for _ in range(4):
        check(model, 2, 24)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("n", "k"), [(2, 3), (17, 300), (130, 70), (768, 400)])
def test_matmul_with_what_follows(n: int, k: int, threads: int) -> None:
    """A bias, one of zeros, a residual and a ReLU; three axes; the plans of several batches."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["biased"]),
        helper.make_node("Relu", ["biased"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["p"]),
        helper.make_node("Add", ["p", "zeros"], ["c"]),
        helper.make_node("Add", ["c", "x"], ["y"]),
    ]
    constants = {
        "w": (GENERATOR.standard_normal((k, n)) / np.sqrt(k)).astype(np.float32),
        "b": GENERATOR.standard_normal(n).astype(np.float32),
        "v": (GENERATOR.standard_normal((n, k)) / np.sqrt(n)).astype(np.float32),
        "zeros": np.zeros(k, np.float32),
    }
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, ["N", "L", k])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = og.InferenceSession(model, threads=threads)
    theirs = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for shape in ((1, 1), (2, 8), (3, 45), (0, 4), (5, 200)):
        x = GENERATOR.standard_normal((*shape, k)).astype(np.float32)
        found = session.run(None, {"x": x})[0]
        expected = theirs.run(None, {"x": x})[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        assert found.tobytes() == session.run(None, {"x": x})[0].tobytes()


@pytest.mark.host_only("each plan copies what was packed to a device")
def test_plans_share_what_is_packed() -> None:
    weights = constants_of(400, 300)
    model = model_of([helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)], weights)
    session = og.InferenceSession(model, threads=1)
    packed = []
    for rows in (1, 64, 500):
        session.run(None, {"x": np.ones((rows, 300), np.float32)})
        packed.append(session.memory().constants)
    assert weights["w"].nbytes <= packed[0] < 1.2 * weights["w"].nbytes
    assert packed[2] - packed[0] == 2 * weights["b"].nbytes  # which each plan counts


def test_inside_a_loop() -> None:
    kind = TensorProto.FLOAT
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["next"]),
            helper.make_node("Identity", ["go"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", kind, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", kind, None),
        ],
    )
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)]
    constants = {"w": constants_of(40, 40)["w"], "count": np.array(3, np.int64)}
    for rows in (1, 33):
        check(model_of(nodes, constants), rows, 40)
