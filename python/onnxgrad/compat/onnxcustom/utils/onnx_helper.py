"""Names, types and initializers of ONNX models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from onnxgrad.compat.mlprodict.onnx_tools.onnx_manipulations import onnx_rename_names
from onnxgrad.compat.models import takes_models

__all__ = [
    "add_initializer",
    "dtype_to_var_type",
    "get_onnx_opset",
    "onnx_rename_weights",
    "proto_type_to_dtype",
    "replace_initializers_into_onnx",
]


@takes_models("onx")
def onnx_rename_weights(onx: onnx.ModelProto) -> onnx.ModelProto:
    """Prefix the names of initializers with ``I0_``, ``I1_``, ... in their order, in place.

    Training does not need it: weights may be in any order.
    """
    names = [init.name for init in onx.graph.initializer]
    digits = len(str(max(0, len(names) - 1)))
    replace = {name: f"I{i:0{digits}d}_{name}" for i, name in enumerate(names)}
    return onnx_rename_names(onx, recursive=False, replace=replace)


@takes_models("onx")
def get_onnx_opset(onx: onnx.ModelProto, domain: str = "") -> int:
    """Return the version of the operator set of a domain.

    Raises
    ------
    ValueError
        If the model does not import the domain.
    """
    aliases = {"", "ai.onnx"}
    for opset in onx.opset_import:
        if opset.domain == domain or {opset.domain, domain} <= aliases:
            return int(opset.version)
    raise ValueError(f"Unable to find opset for domain={domain!r}.")


def proto_type_to_dtype(proto_type: int | str) -> Any:
    """Return the NumPy type for ONNX's type number, or for a name such as ``tensor(float)``."""
    if isinstance(proto_type, str):
        name = proto_type.removeprefix("tensor(").removesuffix(")")
        if not proto_type.startswith("tensor("):
            raise ValueError(f"Unexpected type {proto_type!r}.")
        return np.dtype({"float": "float32", "double": "float64"}.get(name, name)).type
    return onnx.helper.tensor_dtype_to_np_dtype(proto_type).type


def dtype_to_var_type(dtype: Any) -> Any:
    """Return skl2onnx's tensor type for a NumPy type."""
    from skl2onnx.common import data_types

    kinds = {
        "float32": "FloatTensorType",
        "float64": "DoubleTensorType",
        "int64": "Int64TensorType",
        "int32": "Int32TensorType",
        "bool": "BooleanTensorType",
    }
    name = np.dtype(dtype).name
    if name not in kinds:
        raise ValueError(f"Unexpected value dtype={dtype!r}.")
    return getattr(data_types, kinds[name])


@takes_models("model")
def add_initializer(model: onnx.ModelProto, name: str, value: Any) -> onnx.ModelProto:
    """Return the model with an additional initializer.

    Raises
    ------
    ValueError
        If the name is taken.
    """
    if any(init.name == name for init in model.graph.initializer):
        raise ValueError(f"Name {name!r} is already taken.")
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    tensor = (
        value
        if isinstance(value, onnx.TensorProto)
        else onnx.numpy_helper.from_array(np.asarray(value))
    )
    changed.graph.initializer.add().CopyFrom(tensor)
    changed.graph.initializer[-1].name = name
    return changed


@takes_models("model")
def replace_initializers_into_onnx(
    model: onnx.ModelProto, results: dict[str, Any]
) -> onnx.ModelProto:
    """Return the model with new values of some initializers.

    Parameters
    ----------
    model : onnx.ModelProto
    results : dict of str to array or OrtValue
        Values by name, each with as many elements as its initializer.

    Raises
    ------
    ValueError
        An unknown name or another number of elements.
    """
    from onnxgrad.compat.onnxruntime.values import array_of

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    by_name = {init.name: init for init in changed.graph.initializer}
    for name, value in results.items():
        if name not in by_name:
            raise ValueError(f"Unable to find initializer {name!r} in {sorted(by_name)}.")
        init = by_name[name]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(init.data_type)
        array = array_of(value).astype(dtype, copy=False)
        if array.size != int(np.prod(tuple(init.dims))):
            raise ValueError(
                f"Initializer {name!r} has shape {tuple(init.dims)}, the value {array.shape}."
            )
        init.CopyFrom(onnx.numpy_helper.from_array(array.reshape(tuple(init.dims)), name))
    return changed
