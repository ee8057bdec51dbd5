"""Conversion of models from any form to the extension's, and back; imports `onnx` lazily."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from onnxgrad import _core
from onnxgrad.base.checks import path_text
from onnxgrad.errors import ModelError, OptionError

if TYPE_CHECKING:
    import onnx


@runtime_checkable
class SerializableModel(Protocol):
    """The method by which an ``onnx.ModelProto`` is recognized."""

    def SerializeToString(self) -> bytes:  # noqa: N802 (protobuf's name)
        """Return the model as bytes."""
        ...


ModelLike: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | SerializableModel | _core.Model"
)
"""A model: the path or the bytes of a file, or an ``onnx.ModelProto``."""


def to_core_model(model: Any) -> _core.Model:
    """Convert any `ModelLike` to the extension's model."""
    if isinstance(model, _core.Model):
        return model
    to_model_proto = getattr(model, "to_model_proto", None)  # an onnxscript function
    if to_model_proto is not None:
        model = to_model_proto()
    if isinstance(model, (str, os.PathLike)):
        return _core.Model.load(os.fsdecode(model))
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _core.Model.from_bytes(bytes(model))
    if isinstance(model, SerializableModel) and not isinstance(model, type):
        return _core.Model.from_bytes(model.SerializeToString())
    hint = "Give the path of an .onnx file, its bytes, or an onnx.ModelProto."
    if hasattr(model, "state_dict") and hasattr(model, "forward"):  # torch.nn.Module
        hint = "Export it first: torch.onnx.export(model, (x,), 'model.onnx', dynamo=True)."
    elif hasattr(model, "get_params") and hasattr(model, "fit"):  # scikit-learn
        hint = "Convert it first: skl2onnx.to_onnx(model, X[:1], options={'zipmap': False})."
    raise OptionError(
        what=f"model: {type(model).__module__}.{type(model).__qualname__} is not a model",
        value="model",
        hint=hint,
    )


def to_proto(model: _core.Model) -> onnx.ModelProto:
    """Convert the extension's model to an ``onnx.ModelProto``."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model.to_bytes())
    except DecodeError as error:
        raise ModelError(
            what="protobuf cannot read the model",
            detail=f"{type(error).__name__}: {error}",
            hint="Save it with save(), or export the original again: it is damaged or too deeply "
            "nested.",
        ) from error
    return proto


def deliver(model: _core.Model, path: str | os.PathLike[str] | None) -> onnx.ModelProto:
    """Convert the extension's model to an ``onnx.ModelProto``; with a path, write it there as well.

    Above 2 GiB, which no message holds, large tensors go to a file next to `path`, and the message
    refers to them.
    """
    if path is None:
        return to_proto(model)
    import onnx

    text = path_text("path", path)
    model.save(text)
    return onnx.load(text, load_external_data=False)
