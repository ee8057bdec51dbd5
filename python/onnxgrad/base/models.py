"""Conversion of models from any form to the extension's, and back; imports `onnx` lazily."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from onnxgrad import _core
from onnxgrad.base.checks import flag, path_text
from onnxgrad.base.exporters import ir_of, is_binary_file, is_exported, plain_model, refuse_model
from onnxgrad.errors import ModelError, OptionError

if TYPE_CHECKING:
    import onnx


@runtime_checkable
class SerializableModel(Protocol):
    """The method by which an ``onnx.ModelProto`` is recognized."""

    def SerializeToString(self) -> bytes:  # noqa: N802 (protobuf's name)
        """Return the model as bytes."""
        ...


ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | SerializableModel | _core.Model | Any"
"""A model: the path or the bytes of a file, a binary file, an ``onnx.ModelProto``, or what an
exporter returns: an ``ONNXProgram`` of torch, an ``onnx_ir.Model``, a function of onnxscript, a
graph of spox, or the ``(inputs, outputs)`` that spox and ndonnx build one of."""


def is_model(model: Any) -> bool:
    """Return whether an object is a model in any form but that of a path as a string."""
    if isinstance(model, (os.PathLike, bytes, bytearray, memoryview, _core.Model)):
        return True
    return _is_message(model) or is_exported(model)


def _is_message(model: Any) -> bool:
    """Return whether an object is a ModelProto, not a class, nor another message of ONNX."""
    if isinstance(model, type) or not isinstance(model, SerializableModel):
        return False
    return type(model).__name__ == "ModelProto" or not type(model).__module__.startswith("onnx.")


def to_core_model(model: ModelLike) -> _core.Model:
    """Convert any `ModelLike` to the extension's model."""
    if isinstance(model, _core.Model):
        return model
    given = model
    model = plain_model(model)
    if isinstance(model, (str, os.PathLike)):
        return _core.Model.load(path_text("model", model))
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _core.Model.from_bytes(bytes(model))
    if _is_message(model):
        return _from_message(model)
    raise refuse_model(given)


def _from_message(model: Any) -> _core.Model:
    try:
        content = model.SerializeToString()
    except Exception as error:  # of protobuf, which has several
        raise ModelError(
            what="protobuf cannot serialize the model: it has a limit of 2 GiB",
            detail=f"{type(error).__name__}: {error}".split("\n")[0],
            hint="onnx.save(model, 'm.onnx', save_as_external_data=True), and give this path.",
        ) from error
    try:
        return _core.Model.from_bytes(content)
    except ModelError as error:
        if "external root" not in (error.hint or ""):
            raise
        raise ModelError(
            what=f"'{error.value}': {error.what}" if error.value else error.what,
            value=error.value,
            hint="Give its path, or onnx.load_external_data_for_model(model, folder) first.",
        ) from error


def as_proto(model: ModelLike) -> onnx.ModelProto:
    """Convert any `ModelLike` to an ``onnx.ModelProto``; one that is given is returned itself.

    Raises
    ------
    ModelError
        The file does not exist or is not a model.
    """
    import onnx

    plain = model if isinstance(model, (str, bytes)) else plain_model(model)
    return plain if isinstance(plain, onnx.ModelProto) else to_proto(to_core_model(plain))


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


class Kind(NamedTuple):
    """A form of models, for results in the form that was given.

    Attributes
    ----------
    name : {"path", "bytes", "proto", "ir", "program", "other"}
    given : str
        Name of the class.
    module : str
        Module of the class.
    """

    name: str
    given: str
    module: str

    @classmethod
    def of(cls, model: Any) -> Kind:
        """Return the form of a model."""
        name = "other"
        if isinstance(model, (str, os.PathLike)):
            name = "path"
        elif isinstance(model, (bytes, bytearray, memoryview)):
            name = "bytes"
        elif isinstance(model, _core.Model) or _is_message(model):
            name = "proto"
        elif (inner := ir_of(model)) is not None:
            name = "ir" if inner is model else "program"
        given = "file" if is_binary_file(model) else type(model).__name__
        return cls(name, given, type(model).__module__)

    def check(self, path: Any = None) -> None:
        """Refuse a form that a result cannot have.

        Raises
        ------
        OptionError
        """
        if self.name not in ("path", "other") or (self.name == "path" and path is not None):
            return
        line = "onnx.save(result, path) writes the result."
        if self.name == "path":
            line += " A function with path= returns that path."
        what = "a path" if self.name == "path" else f"a {self.given}"
        raise OptionError(
            what=f"like=True: {what} was given, and a result cannot be one",
            value="like",
            hint=f"Leave it out: {line}",
        )


def deliver(
    model: _core.Model,
    path: str | os.PathLike[str] | None = None,
    kind: Kind | None = None,
) -> onnx.ModelProto:
    """Convert the extension's model to an ``onnx.ModelProto``; with a path, write it there as well.

    Above 2 GiB, which no message holds, large tensors go to a file next to `path`, and the message
    refers to them. With a kind, the result has this form, whatever the signature says.
    """
    if kind is not None:
        kind.check(path)
    text = None if path is None else path_text("path", path)
    if text is not None:
        model.save(text)
    if kind is not None and kind.name == "path":
        return cast("onnx.ModelProto", path)
    if kind is not None and kind.name != "proto":
        return cast("onnx.ModelProto", _in_form(model, kind, text))
    if text is None:
        return to_proto(model)
    import onnx

    return onnx.load(text, load_external_data=False)


def _in_form(model: _core.Model, kind: Kind, path: str | None) -> Any:
    if kind.name == "bytes":
        return model.to_bytes()
    import onnx_ir as ir

    result = ir.from_proto(to_proto(model)) if path is None else ir.load(path)
    if kind.name == "ir":
        return result
    program = getattr(importlib.import_module(kind.module), kind.given)
    return program(result, None)  # no exported program belongs to it


def kind_if(like: bool, model: Any, path: Any = None) -> Kind | None:
    """Return the form of a result: with the option `like` that of `model`, else None.

    Raises
    ------
    OptionError
        A result cannot have the form of `model`.
    """
    if not flag("like", like):
        return None
    kind = Kind.of(model)
    kind.check(path)
    return kind
