"""BatchNormalization of constants in an InferenceSession, compared with stock onnxruntime.

In float64 with ONNX's reference evaluator.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

GENERATOR = np.random.default_rng(5)
CHANNELS = 6


def statistics(dtype: type, channels: int = CHANNELS) -> dict[str, np.ndarray]:
    values = {
        name: GENERATOR.standard_normal(channels).astype(dtype)
        for name in ("scale", "shift", "mean")
    }
    return {**values, "variance": GENERATOR.uniform(0.1, 2, channels).astype(dtype)}


def normalisation(x: str, y: str, **attributes: object) -> onnx.NodeProto:
    inputs = [x, "scale", "shift", "mean", "variance"]
    return helper.make_node("BatchNormalization", inputs, [y], **attributes)


def model_of(
    nodes: list[onnx.NodeProto],
    constants: dict[str, np.ndarray],
    x: np.ndarray,
    outputs: tuple[str, ...] = ("y",),
    inputs: tuple[str, ...] = (),
) -> bytes:
    """`inputs`: constants that are inputs with a default."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    formal = [helper.make_tensor_value_info("x", kind, ["N", *x.shape[1:]])]
    formal += [helper.make_tensor_value_info(name, kind, constants[name].shape) for name in inputs]
    graph = helper.make_graph(
        nodes, "g", formal, [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def check(model: bytes, x: np.ndarray, norms: int) -> None:
    """Results of both runtimes are equal, and `norms` BatchNormalizations are left."""
    session = og.InferenceSession(model, threads=1)
    if x.dtype == np.float64:  # onnxruntime has no convolution of this type
        theirs, tolerance = onnx.reference.ReferenceEvaluator(onnx.load_from_string(model)), 1e-11
    else:
        theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        tolerance = 1e-5
    for rows in (len(x), 1):
        results = session.run(None, {"x": x[:rows]})
        for ours, expected in zip(results, theirs.run(None, {"x": x[:rows]}), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)
    assert session.plan_summary().count("BatchNormalization") == norms


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("spatial", [(7,), (5, 6), (3, 4, 2)])
def test_convolution(dtype: type, has_bias: bool, group: int, spatial: tuple[int, ...]) -> None:
    x = GENERATOR.standard_normal((3, 4, *spatial)).astype(dtype)
    shape = (CHANNELS, 4 // group, *[2] * len(spatial))
    constants = {"w": GENERATOR.standard_normal(shape).astype(dtype), **statistics(dtype)}
    inputs = ["x", "w"]
    if has_bias:
        constants["b"] = GENERATOR.standard_normal(CHANNELS).astype(dtype)
        inputs.append("b")
    nodes = [
        helper.make_node("Conv", inputs, ["c"], group=group),
        normalisation("c", "n", epsilon=1e-3),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    check(model_of(nodes, constants, x), x, norms=0)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("beta", [None, 1.0, -2.0])
def test_gemm(transposed: int, beta: float | None) -> None:
    x = GENERATOR.standard_normal((3, 4)).astype(np.float32)
    weight = GENERATOR.standard_normal((CHANNELS, 4) if transposed else (4, CHANNELS))
    constants = {"w": weight.astype(np.float32), **statistics(np.float32)}
    inputs, attributes = ["x", "w"], {"transB": transposed, "alpha": 0.5}
    if beta is not None:
        constants["b"] = GENERATOR.standard_normal(CHANNELS).astype(np.float32)
        inputs.append("b")
        attributes["beta"] = beta
    nodes = [helper.make_node("Gemm", inputs, ["c"], **attributes), normalisation("c", "y")]
    check(model_of(nodes, constants, x), x, norms=0)


def convolution(constants: dict[str, np.ndarray]) -> onnx.NodeProto:
    constants["w"] = GENERATOR.standard_normal((CHANNELS, 4, 1, 1)).astype(np.float32)
    return helper.make_node("Conv", ["x", "w"], ["c"])


X = GENERATOR.standard_normal((2, 4, 3, 3)).astype(np.float32)


def test_a_weight_that_two_layers_share_is_scaled_for_one_alone() -> None:
    constants = statistics(np.float32)
    nodes = [
        convolution(constants),
        normalisation("c", "n"),
        helper.make_node("Conv", ["x", "w"], ["other"]),
        helper.make_node("Add", ["n", "other"], ["y"]),
    ]
    check(model_of(nodes, constants, X), X, norms=0)


def test_a_chain_of_two() -> None:
    constants = statistics(np.float32)
    nodes = [convolution(constants), normalisation("c", "n"), normalisation("n", "y")]
    check(model_of(nodes, constants, X), X, norms=0)


@pytest.mark.parametrize("outputs", [("y", "c"), ("y", "z")])
def test_a_layer_that_something_else_reads_is_kept(outputs: tuple[str, ...]) -> None:
    constants = statistics(np.float32)
    nodes = [convolution(constants), normalisation("c", "y")]
    if "z" in outputs:
        nodes.append(helper.make_node("Neg", ["c"], ["z"]))
    check(model_of(nodes, constants, X, outputs), X, norms=1)


@pytest.mark.parametrize("name", ["w", "mean"])
def test_what_a_caller_feeds_instead_of_its_default_is_no_constant(name: str) -> None:
    constants = statistics(np.float32)
    nodes = [convolution(constants), normalisation("c", "y")]
    model = model_of(nodes, constants, X, inputs=(name,))
    check(model, X, norms=0)
    feeds = {"x": X, name: constants[name] + np.float32(0.5)}
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        og.InferenceSession(model).run(None, feeds)[0], theirs.run(None, feeds)[0], rtol=1e-5,
        atol=1e-5,
    )  # fmt: skip


def test_inside_a_branch() -> None:
    constants = statistics(np.float32)
    bodies = {}
    for branch, nodes in (
        ("then_branch", [convolution(constants), normalisation("c", "t")]),
        ("else_branch", [helper.make_node("Conv", ["x", "w"], ["e"])]),
    ):
        result = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
        bodies[branch] = helper.make_graph(nodes, branch, [], [result])
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], **bodies),
    ]
    constants["zero"] = np.array(0, np.float32)
    model = model_of(nodes, constants, X)
    for x in (np.abs(X), -np.abs(X)):
        check(model, x, norms=0)
