"""ONNX's node tests of float32 in float16 and bfloat16: the same numbers, rounded where stored.

Inputs are numbers that all three types have, so what the models compute in the end differs by
rounding alone. The gradient is compared in the same way.
"""

from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

import node_suite
import onnxgrad as og
from half_models import DTYPES, ROUNDING, in_both

# Outputs that are random; and those that show how numbers are stored.
# The depth of OneHot in 16 bits, if it is fed, is no shape value.
LEFT_OUT = node_suite.RANDOM | {"BitCast", "CastLike", "Dropout", "OneHot", "OptionalGetElement"}
PER_OPERATOR = 6
# Room for rounding on the way: one of these operators' many steps is far from the result, or a sum
# of numbers that cancel each other.
ROOM = 16


class Pair(NamedTuple):
    """A test in float32 and in a half."""

    single: onnx.ModelProto
    half: onnx.ModelProto
    feeds: dict[str, Any]
    converted: set[str]  # names of inputs


def pairs(operator: str, dtype: str) -> list[Pair]:
    found = []
    for case in node_suite.cases_by_operator()[operator]:
        if len(found) == PER_OPERATOR:
            break
        pair = _pair(case, dtype)
        if pair is not None:
            found.append(pair)
    return found


def _pair(case: node_suite.Case, dtype: str) -> Pair | None:
    node = case.node
    if node is None or any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
        return None
    opset = next(o.version for o in case.model.opset_import if o.domain == node.domain)
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    allowed = {
        c.type_param_str
        for c in schema.type_constraints
        if f"tensor({dtype})" in c.allowed_type_strs and "tensor(float)" in c.allowed_type_strs
    }

    def names(values: Any, formals: Any) -> set[str]:
        return {
            name
            for i, name in enumerate(values)
            if name and formals[min(i, len(formals) - 1)].type_str in allowed
        }

    kind = onnx.TensorProto.FLOAT
    floats = {
        v.name
        for v in [*case.model.graph.input, *case.model.graph.output]
        if v.type.tensor_type.elem_type == kind
    }
    inputs = names(node.input, schema.inputs) & floats
    # Only outputs of the type of an input; others are chosen by attributes, or are as computed.
    if node.op_type not in ("LinearAttention", "DequantizeLinear"):
        allowed &= {
            schema.inputs[min(i, len(schema.inputs) - 1)].type_str
            for i, name in enumerate(node.input)
            if name in inputs
        }
    outputs = names(node.output, schema.outputs) & floats
    halves = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    if any(v.type.tensor_type.elem_type in halves for v in case.model.graph.input):
        return None
    is_other = any(not v.type.HasField("tensor_type") for v in case.model.graph.output)
    if not inputs or is_other or any(a.HasField("t") or a.tensors for a in node.attribute):
        return None
    half = onnx.ModelProto()
    half.CopyFrom(case.model)
    element = onnx.helper.np_dtype_to_tensor_dtype(DTYPES[dtype])
    for value in [*half.graph.input, *half.graph.output]:
        if value.name in inputs | outputs:
            value.type.tensor_type.elem_type = element
    feeds = case.feeds()
    for name in inputs:
        with np.errstate(all="ignore"):
            feeds[name] = np.asarray(in_both(feeds[name]))
    return Pair(case.model, half, feeds, inputs)


def in_half(pair: Pair, dtype: str) -> dict[str, Any]:
    return {
        name: value.astype(DTYPES[dtype]) if name in pair.converted else value
        for name, value in pair.feeds.items()
    }


def assert_close(found: Any, wanted: Any, dtype: str, what: str) -> None:
    assert found.shape == wanted.shape, what
    if wanted.dtype != np.float32 or found.dtype == np.float32:
        tolerance = 4 * ROUNDING[dtype] if wanted.dtype == np.float32 else 0
        kind = np.float64 if wanted.dtype.kind == "f" else wanted.dtype
        np.testing.assert_allclose(found.astype(kind), wanted, tolerance, tolerance, err_msg=what)
        return
    assert found.dtype == DTYPES[dtype], what
    limit = np.float64(np.finfo(np.float16).max if dtype == "float16" else 3.3e38)
    with np.errstate(all="ignore"):
        wide = np.where(np.abs(wanted) > limit, np.sign(wanted) * np.inf, wanted)
    numbers = np.abs(wide[np.isfinite(wide)])
    scale = numbers.max() if numbers.size else 1.0
    step = 2 * ROUNDING[dtype]
    room = max(ROOM * step * scale, 2.0**-24 if dtype == "float16" else 0)  # the smallest number
    np.testing.assert_allclose(found.astype(np.float64), wide, step, room, err_msg=what)


OPERATORS = sorted(node_suite.cases_by_operator().keys() - LEFT_OUT)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("operator", OPERATORS)
def test_values(operator, dtype):
    for pair in pairs(operator, dtype):
        names = [value.name for value in pair.single.graph.output]
        wanted = og.InferenceSession(pair.single, threads=1).run(None, pair.feeds)
        found = og.InferenceSession(pair.half, threads=1).run(None, in_half(pair, dtype))
        for name, one, other in zip(names, found, wanted, strict=True):
            if isinstance(other, np.ndarray):
                assert_close(one, other, dtype, f"{pair.single.graph.name}: {name}")


@pytest.mark.parametrize("operator", OPERATORS)
def test_gradients(operator):
    """In float16 only: the sweep does not distinguish the two."""
    dtype = "float16"
    for pair in pairs(operator, dtype)[:2]:
        outputs = [
            v.name
            for v in pair.half.graph.output
            if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
        ]
        if not outputs:
            continue
        results = og.InferenceSession(pair.single, threads=1).run(outputs, pair.feeds)
        rng = np.random.default_rng(0)
        seeds = {
            f"{name}_grad": in_both(rng.uniform(0.5, 1.5, np.shape(value)))
            for name, value in zip(outputs, results, strict=True)
        }
        wanted = gradients(pair.single, pair.converted, outputs, {**pair.feeds, **seeds})
        halves = {name: value.astype(np.float16) for name, value in seeds.items()}
        found = gradients(pair.half, pair.converted, outputs, {**in_half(pair, dtype), **halves})
        for name, gradient in wanted.items():
            if gradient is None or not np.isfinite(gradient).all():
                assert (gradient is None) == (found[name] is None), name
                continue
            assert_close(found[name], gradient, dtype, f"{pair.single.graph.name}: {name}")


def gradients(
    model: onnx.ModelProto, inputs: set[str], outputs: list[str], feeds: dict[str, Any]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in sorted(inputs):
        try:
            file = og.gradient(model, [name], outputs)
        except og.Error:
            found[name] = None  # there is none, in any type
            continue
        known = {value.name for value in file.graph.input}
        session = og.InferenceSession(file, threads=1)
        fed = {key: value for key, value in feeds.items() if key in known}
        found[name] = session.run([file.graph.output[0].name], fed)[0]
    return found
