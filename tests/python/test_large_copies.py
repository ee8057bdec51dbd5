"""Copies large enough to be shared by threads, beside NumPy: Transpose, Slice, Expand and more."""

import itertools

import numpy as np
import onnx
import onnx.helper as oh
import pytest

import onnxgrad as og

PERMUTATIONS = list(itertools.permutations(range(4)))[1::3]
DTYPES = ["float32", "float64", "int64", "int32", "uint16", "bool"]


def numbers(shape, dtype):
    """Any bits, NaN among them: a copy must not change them."""
    random = np.random.default_rng(len(shape))
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return random.integers(0, 256, count, np.uint8).view(dtype).reshape(shape)


def run(node, feeds, threads, outputs=("y",)):
    inputs = [
        oh.make_tensor_value_info(name, oh.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    dtype, rank = feeds["x"].dtype, feeds["x"].ndim
    results = [
        oh.make_tensor_value_info(name, oh.np_dtype_to_tensor_dtype(dtype), [None] * rank)
        for name in outputs
    ]
    graph = oh.make_graph([node], "copies", inputs, results)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return og.InferenceSession(model, threads=threads).run(None, feeds)


def assert_same_bits(given, expected):
    assert given.shape == expected.shape
    assert given.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("perm", PERMUTATIONS, ids=str)
def test_transpose(perm, dtype):
    x = numbers((4, 31, 47, 46), dtype)
    node = oh.make_node("Transpose", ["x"], ["y"], perm=perm)
    for threads in (1, 3):
        assert_same_bits(run(node, {"x": x}, threads)[0], x.transpose(perm))


@pytest.mark.parametrize("shape", [(3, 70_001), (70_001, 3), (513, 517), (2, 200_000)], ids=str)
def test_matrix(shape):
    x = numbers(shape, "float32")
    node = oh.make_node("Transpose", ["x"], ["y"])
    for threads in (1, 2, 5):
        assert_same_bits(run(node, {"x": x}, threads)[0], x.T)


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_others(dtype):
    x = numbers((60, 50, 70), dtype)
    start, stop, steps = np.array([59, 1]), np.array([-61, 50]), np.array([-1, 2])
    cases = [
        (
            oh.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"]),
            {"x": x, "starts": start, "ends": stop, "axes": np.array([0, 1]), "steps": steps},
            [x[::-1, 1::2]],
        ),
        (
            oh.make_node("Expand", ["x", "shape"], ["y"]),
            {"x": x[:, :1], "shape": np.array([60, 50, 70])},
            [np.broadcast_to(x[:, :1], (60, 50, 70))],
        ),
        (
            oh.make_node("Concat", ["x", "z"], ["y"], axis=1),
            {"x": x, "z": x[:, :33]},
            [np.concatenate([x, x[:, :33]], 1)],
        ),
        (
            oh.make_node("Split", ["x"], ["y", "z"], axis=2, num_outputs=2),
            {"x": x},
            [x[:, :, :35], x[:, :, 35:]],
        ),
        (
            oh.make_node("Pad", ["x", "pads"], ["y"]),
            {"x": x, "pads": np.array([1, 0, 2, 0, 3, 4])},
            [np.pad(x, [(1, 0), (0, 3), (2, 4)])],
        ),
    ]
    for node, feeds, expected in cases:
        feeds = {name: np.ascontiguousarray(value) for name, value in feeds.items()}
        for threads in (1, 3):
            given = run(node, feeds, threads, node.output)
            for one, other in zip(given, expected, strict=True):
                assert_same_bits(one, other)
