"""Adapters in the format of ONNX Runtime: ``.onnx_adapter``, a flat buffer.

The schema is onnxruntime/lora/adapter_format/adapter_schema.fbs of ONNX Runtime: a table
``Adapter`` (identifier "TORT") with format_version, adapter_version, model_version and the vector
of ``Parameter`` {name, dims, data_type as in TensorProto, raw_data}.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import unknown_name
from onnxgrad.data.arrays import from_native
from onnxgrad.errors import ModelError, OptionError
from onnxgrad.files import write_file

if TYPE_CHECKING:
    import flatbuffers

__all__ = ["save_onnx_adapter", "to_flat_buffer"]

_FORMAT_VERSION = 1
_IDENTIFIER = b"TORT"
# Codes of TensorProto.DataType.
_TYPES = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}


def save_onnx_adapter(model: _core.Model, folder: str, name: str) -> None:
    """Write ``<name>.onnx_adapter`` and ``model.onnx`` into `folder`."""
    known = _core.adapters(model)
    chosen = [one for one in known if one.name == name or not name]
    if len(chosen) != 1:
        raise unknown_name("name", name, [one.name for one in known])
    tensors = {
        tensor: from_native(model.weight(tensor))
        for layer in chosen[0].layers
        for tensor in layer.tensors
    }
    if not tensors:
        raise ModelError(
            what=f"the adapter '{chosen[0].name}' has no tensors: nothing was added to the model",
            value=chosen[0].name,
            hint="Save the model itself.",
        )
    contents = to_flat_buffer(tensors)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    _core.adapters_as_inputs(model).save(str(target / "model.onnx"))
    write_file(target / f"{chosen[0].name}.onnx_adapter", contents)


def to_flat_buffer(tensors: dict[str, np.ndarray[Any, Any]]) -> bytes:
    """Return the file of an adapter with these tensors, of floating types.

    Raises
    ------
    OptionError
        The package ``flatbuffers`` is not installed.
    """
    try:
        import flatbuffers
    except ImportError as error:
        raise OptionError(
            what="an .onnx_adapter file is a flat buffer",
            value="kind",
            hint="pip install flatbuffers",
        ) from error
    builder = flatbuffers.Builder(sum(array.nbytes for array in tensors.values()) + 1024)
    parameters = [_parameter(builder, name, array) for name, array in tensors.items()]
    builder.StartVector(4, len(parameters), 4)
    for parameter in reversed(parameters):
        builder.PrependUOffsetTRelative(parameter)
    vector = builder.EndVector()
    builder.StartObject(4)
    builder.PrependInt32Slot(0, _FORMAT_VERSION, 0)
    builder.PrependUOffsetTRelativeSlot(3, vector, 0)
    builder.Finish(builder.EndObject(), file_identifier=_IDENTIFIER)
    return bytes(builder.Output())


def _parameter(builder: flatbuffers.Builder, name: str, array: np.ndarray[Any, Any]) -> int:
    text = builder.CreateString(name)
    builder.StartVector(8, array.ndim, 8)
    for size in reversed(array.shape):
        builder.PrependInt64(size)
    dims = builder.EndVector()
    data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    builder.Prep(8, data.size + 4)  # the bytes of the elements begin at a multiple of 8
    content = builder.CreateNumpyVector(data)
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(0, text, 0)
    builder.PrependUOffsetTRelativeSlot(1, dims, 0)
    builder.PrependInt32Slot(2, _TYPES[array.dtype.name], 0)
    builder.PrependUOffsetTRelativeSlot(3, content, 0)
    return int(builder.EndObject())
