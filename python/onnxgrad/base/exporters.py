"""Models as exporters return them, without importing these: as a path, bytes or a ModelProto."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxgrad.errors import Error, ModelError, OptionError

if TYPE_CHECKING:
    import tempfile

__all__ = ["ir_of", "is_binary_file", "is_exported", "plain_model", "refuse_model"]

_MOST_BYTES = 3 << 29  # of weights in one message: protobuf ends at 2 GiB
_TRACERS = ("ndonnx", "spox")  # packages with `build(inputs, outputs)`
# Folders of models that are too large for a message. Models read them again when they are saved,
# so that they stay until the process ends.
_folders: list[tempfile.TemporaryDirectory[str]] = []


def is_exported(model: Any) -> bool:
    """Return whether `plain_model` converts the object of an exporter, or reads a file."""
    return (
        ir_of(model) is not None
        or (hasattr(model, "to_model_proto") and not isinstance(model, type))
        or (hasattr(model, "to_onnx_model") and not isinstance(model, type))
        or hasattr(type(model), "model_proto")
        or _tracer_of_pair(model) is not None
        or is_binary_file(model)
    )


def plain_model(model: Any) -> Any:
    """Return an exporter's model, or an open file, as a path, bytes or a ModelProto.

    Anything else is returned unchanged.
    """
    if isinstance(model, (str, bytes)):
        return model
    if (found := ir_of(model)) is not None:
        return _from_ir(found)
    if not isinstance(model, type):
        if hasattr(model, "to_model_proto"):  # a function of onnxscript
            return model.to_model_proto()
        if hasattr(model, "to_onnx_model"):  # a graph of spox
            return model.to_onnx_model()
    if hasattr(type(model), "model_proto"):
        return model.model_proto
    if (tracer := _tracer_of_pair(model)) is not None:
        inputs, outputs = model
        return sys.modules[tracer].build(dict(inputs), dict(outputs))
    return _from_file(model) if hasattr(model, "read") else model


def ir_of(model: Any) -> Any:
    """Return the ``onnx_ir.Model`` that an object is or, as torch's ONNXProgram, has; or None."""
    ir = sys.modules.get("onnx_ir")  # loaded if there is such a model
    if ir is None:
        return None
    if isinstance(model, ir.Model):
        return model
    inner = getattr(model, "model", None) if hasattr(type(model), "model_proto") else None
    return inner if isinstance(inner, ir.Model) else None


def is_binary_file(model: Any) -> bool:
    """Return whether an object is a file, in which `plain_model` looks for a model."""
    return hasattr(model, "read") and not isinstance(model, (type, os.PathLike))


def refuse_model(model: Any) -> OptionError:
    """Return the error for an object that is no model, with the line that makes one of it."""
    return OptionError(
        what=f"model: {type(model).__module__}.{type(model).__qualname__} is not a model",
        value="model",
        hint=_line_for(model),
    )


def _line_for(model: Any) -> str:
    if isinstance(model, tuple) and model and hasattr(model[0], "SerializeToString"):
        return "Give the model alone, its first element."
    values = list(model.values()) if isinstance(model, Mapping) else [model]
    tracer = _package(values[0]) if values else ""
    if tracer in _TRACERS:
        return f"Build it first: {tracer}.build({{'x': x}}, {{'y': y}})."
    if tracer == "onnx_ir":
        if hasattr(model, "model"):  # the result of a pass
            return "Give its .model."
        return "Make a model of it first: onnx_ir.Model(graph, ir_version=10)."
    if type(model).__name__ == "GraphProto":
        return "Make a model of it first: onnx.helper.make_model(graph)."
    if hasattr(model, "state_dict") and hasattr(model, "forward"):  # torch.nn.Module
        return "Export it first: torch.onnx.export(model, (x,), 'model.onnx', dynamo=True)."
    if hasattr(model, "graph_signature"):  # torch.export.ExportedProgram
        return "Export it first: torch.onnx.export(program, dynamo=True)."
    if hasattr(model, "get_params") and hasattr(model, "fit"):  # scikit-learn
        return "Convert it first: skl2onnx.to_onnx(model, X[:1], options={'zipmap': False})."
    return "Give the path of an .onnx file, its bytes, an open file, or an onnx.ModelProto."


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _tracer_of_pair(model: Any) -> str | None:
    """Return the package that builds a pair (inputs, outputs) of dictionaries, or None."""
    if not isinstance(model, tuple) or len(model) != 2:
        return None
    if not all(isinstance(part, Mapping) for part in model) or not model[1]:
        return None
    packages = {_package(value) for part in model for value in part.values()}
    return packages.pop() if len(packages) == 1 and packages <= {*_TRACERS} else None


# Models of onnx_ir.


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Turn errors of other libraries while they write a model into ModelError."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        texts = [f"{type(error).__name__}: {error}"]
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
            texts.append(f"{type(cause).__name__}: {cause}")
        hint = "Check that all its weights have values and that files beside it are still there."
        if "fake" in " ".join(texts).lower():  # torch's, of a module that was made without memory
            hint = "Give it its weights first: program.apply_weights(module.state_dict())."
        raise ModelError(
            what="onnx_ir cannot write the model", detail=texts[-1].split("\n")[0], hint=hint
        ) from error


def _from_ir(model: Any) -> Any:
    """Return a model of onnx_ir as a ModelProto with its weights, or as the path of a file.

    The model itself is not changed.
    """
    import onnx_ir as ir

    with _writing():
        tensors = list(_tensors(model))
        if sum(tensor.nbytes for tensor in tensors) > _MOST_BYTES:
            return _through_file(lambda path: ir.save(model, path, external_data="model.data"))
        proto = ir.to_proto(model)
        outside = {
            (tensor.name, str(tensor.location), tensor.offset or 0): tensor
            for tensor in tensors
            if isinstance(tensor, ir.ExternalTensor)
        }
        if outside:
            _embed(proto, outside)
    return proto


def _tensors(model: Any) -> Iterator[Any]:
    """Yield the tensors of a model of onnx_ir: initializers, and attributes of nodes."""
    import onnx_ir as ir

    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    seen: set[int] = set()
    while graphs:
        graph = graphs.pop()
        if id(graph) in seen:
            continue
        seen.add(id(graph))
        for value in getattr(graph, "initializers", {}).values():
            if value.const_value is not None:
                yield value.const_value
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    yield attribute.value
                elif attribute.type == ir.AttributeType.TENSORS:
                    yield from attribute.value
                elif attribute.type == ir.AttributeType.GRAPH:
                    graphs.append(attribute.value)
                elif attribute.type == ir.AttributeType.GRAPHS:
                    graphs.extend(attribute.value)


def _embed(proto: Any, outside: Mapping[tuple[str, str, int], Any]) -> None:
    """Put tensors from files, by name, file and position, into a message."""
    import onnx
    from onnx.external_data_helper import _get_all_tensors

    for tensor in _get_all_tensors(proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        key = (tensor.name, entries.get("location", ""), int(entries.get("offset", 0)))
        tensor.raw_data = outside[key].tobytes()
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT


def _through_file(write: Any) -> str:
    """Return the path of a file in a temporary folder that `write` has written."""
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="onnxgrad-", ignore_cleanup_errors=True)
    path = str(Path(folder.name) / "model.onnx")
    try:
        write(path)
    except OSError as error:
        folder.cleanup()
        raise ModelError(
            what="the model is too large for a message, and cannot be written to a file",
            detail=f"{folder.name}: {error.strerror or error}",
            hint="Set TMPDIR to a folder with space, or save the model and give its path.",
        ) from error
    _folders.append(folder)
    return path


# Open files.


def _from_file(file: Any) -> Any:
    """Return the model in an open file, from its position on, which does not change.

    A file on the disk that is at its beginning is opened by its path, since external data are
    beside it.
    """
    name = getattr(file, "name", None)
    shown = f" '{name}'" if isinstance(name, str) else ""
    if getattr(file, "closed", False):
        raise _unreadable(f"the file{shown} is closed", "Open it again, or give its path.")
    if isinstance(file, io.TextIOBase):
        raise _text_mode(shown)
    if hasattr(file, "readable") and not file.readable():
        raise _unreadable(f"the file{shown} is open for writing only", "Open it with mode 'rb'.")
    can_seek = hasattr(file, "seekable") and file.seekable()
    start = file.tell() if can_seek else None
    if start == 0 and (path := _path_of(file)) is not None:
        return path
    content = file.read()
    if isinstance(content, str):
        raise _text_mode(shown)
    if start is not None:
        file.seek(start)
    if not content and start:
        raise _unreadable(
            f"the file{shown} is at its end, position {start}", "Go to its beginning: file.seek(0)."
        )
    return _with_external_data(bytes(content), name)


def _unreadable(what: str, hint: str) -> OptionError:
    return OptionError(what=f"model: {what}", value="model", hint=hint)


def _text_mode(shown: str) -> OptionError:
    return _unreadable(
        f"the file{shown} is open as text", "Open it as bytes: open(path, 'rb'), or give its path."
    )


def _path_of(file: Any) -> str | None:
    """Return the path of a file on the disk, if its name still leads to it."""
    file = getattr(file, "file", file)  # that of tempfile.NamedTemporaryFile
    raw = getattr(file, "raw", file)
    if type(raw) is not io.FileIO or not isinstance(raw.name, (str, bytes)):
        return None
    if hasattr(file, "flush") and file.writable():
        file.flush()
    path = os.fsdecode(raw.name)
    try:
        is_same = os.path.samestat(os.fstat(raw.fileno()), os.stat(path))  # noqa: PTH116
    except OSError:
        return None
    return path if is_same and Path(path).is_file() else None


def _with_external_data(content: bytes, name: Any) -> Any:
    """Return the bytes of a model, with the data beside a file of this name if they need them."""
    if b"location" not in content or not isinstance(name, str):
        return content
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
        onnx.load_external_data_for_model(proto, str(Path(name).resolve().parent))
        return proto.SerializeToString()
    except DecodeError:
        return content  # the extension says what is wrong
    except Exception as error:
        raise ModelError(
            what=f"cannot read the data beside '{name}'",
            detail=str(error).split("\n")[0],
            hint="Save the model unpacked, and give its path.",
        ) from error
