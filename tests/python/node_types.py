"""The element types that kernels lack: ONNX's node tests with other types than they have."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx

import onnxgrad as og
from node_suite import Case, cases_by_operator

TYPES = {
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float": np.float32,
    "double": np.float64,
    "bool": np.bool_,
    "string": np.object_,
    "complex64": np.complex64,
    "complex128": np.complex128,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8e8m0": ml_dtypes.float8_e8m0fnu,
    "float4e2m1": ml_dtypes.float4_e2m1fn,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "int2": ml_dtypes.int2,
    "uint2": ml_dtypes.uint2,
}


class Missing(NamedTuple):
    """Types of a type parameter of an operator that its schema allows and no kernel takes."""

    operator: str
    parameter: str
    types: str


def missing_types(operator: str) -> Iterator[Missing]:
    """Run the tests of an operator with each type that its schemas allow.

    A type is missing if no test of it runs, and one fails because there is no kernel.
    """
    found: dict[str, dict[str, bool]] = {}
    for case in cases_by_operator().get(operator, []):
        for parameter, kind, outcome in _outcomes(case, found):
            types = found.setdefault(parameter, {})
            types[kind] = types.get(kind, False) or outcome
    for parameter, types in sorted(found.items()):
        missing = [kind for kind in TYPES if types.get(kind) is False]
        if missing:
            yield Missing(operator, parameter, " ".join(missing))


def _outcomes(case: Case, found: dict[str, dict[str, bool]]) -> Iterator[tuple[str, str, bool]]:
    """Yield type parameter, type and whether it runs; what fails for other reasons is left out."""
    node = case.node
    if node is None or any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
        return
    opset = next(o.version for o in case.model.opset_import if o.domain == node.domain)
    schema = _schema(node, opset)
    for constraint in schema.type_constraints:
        name = constraint.type_param_str
        for kind in TYPES:
            is_known = found.get(name, {}).get(kind, False)
            if f"tensor({kind})" not in constraint.allowed_type_strs or is_known:
                continue
            changed = _with_type(case, schema, name, kind)
            if changed is None:
                continue
            try:
                og.InferenceSession(changed[0], threads=1).run(None, changed[1])
            except og.UnsupportedOperatorError:
                yield name, kind, False
            except og.Error:
                continue
            else:
                yield name, kind, True


def _schema(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema:
    """Return the schema at opset 26, which is what the engine computes in, or that of the test."""
    if opset > 26:
        try:
            return onnx.defs.get_schema(node.op_type, 26, node.domain)
        except onnx.defs.SchemaError:
            pass
    return onnx.defs.get_schema(node.op_type, opset, node.domain)


def _with_type(
    case: Case, schema: onnx.defs.OpSchema, parameter: str, kind: str
) -> tuple[onnx.ModelProto, dict[str, Any]] | None:
    """Return the test with another type for a type parameter; None if it has none of tensors."""
    node = case.node
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    feeds = case.feeds()

    def names(values: list[str], formals: list[Any]) -> set[str]:
        return {
            name
            for i, name in enumerate(values)
            if name and formals[min(i, len(formals) - 1)].type_str == parameter
        }

    inputs = names(node.input, schema.inputs)
    outputs = names(node.output, schema.outputs)
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[kind]))
    for value in [*model.graph.input, *model.graph.output]:
        if value.name not in inputs | outputs:
            continue
        if value.type.WhichOneof("value") != "tensor_type":
            return None
        value.type.tensor_type.elem_type = element
    for name in inputs:
        array = feeds.get(name)
        if not isinstance(array, np.ndarray):
            return None  # a constant
        if array.dtype.kind not in "fiub":
            return None
        with np.errstate(all="ignore"):
            array = array.astype(np.float64).astype(str) if kind == "string" else array
            feeds[name] = array.astype(TYPES[kind])
    return (model, feeds) if inputs else None
