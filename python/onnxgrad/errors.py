"""The exceptions of onnxgrad, one for each class of the C++ library.

A message has four parts: what is wrong, where, what was expected and given, and what to do. The
same parts are attributes of the exception.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = [
    "CheckpointError",
    "ConvergenceError",
    "DataError",
    "DeviceError",
    "Error",
    "GradientError",
    "InternalError",
    "ModelError",
    "OptionError",
    "ShapeError",
    "UnsupportedOperatorError",
]


_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CONTROLS_WITHIN_LINES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def printable(text: str, *, keeps_lines: bool = False) -> str:
    """Return `text` with control characters as escape sequences: line breaks too, unless kept.

    Names come from files, and a name must neither break a line nor control a terminal.
    """
    pattern = _CONTROLS_WITHIN_LINES if keeps_lines else _CONTROLS
    return pattern.sub(_escaped, text) if pattern.search(text) else text


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character == "\n":
        return "\\n"
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


class Error(Exception):
    """Base class of all exceptions of onnxgrad.

    Attributes
    ----------
    file : str
        Path of the model, checkpoint or data file.
    graph : str
        Name of the graph or function.
    node, op_type : str
        Name of the node and its operator, for example ``"MatMul"``.
    value : str
        Input, output, weight or column.
    what : str
        What is wrong, in one line, without the location.
    detail : str
        What was expected and what was given.
    hint : str
        What to do about it.

    Attributes that are unknown or do not apply are empty.

    Examples
    --------
    >>> import onnxgrad as og
    >>> try:
    ...     og.Trainer(b"this is not a model")
    ... except og.Error as error:
    ...     print(type(error).__name__, isinstance(error, ValueError))
    ModelError True
    """

    def __init__(
        self,
        message: str = "",
        *,
        what: str = "",
        file: str = "",
        graph: str = "",
        node: str = "",
        op_type: str = "",
        value: str = "",
        detail: str = "",
        hint: str = "",
    ) -> None:
        what, detail = printable(what), printable(detail, keeps_lines=True)
        hint = printable(hint, keeps_lines=True)
        message = printable(message, keeps_lines=True)
        super().__init__(message or "\n  ".join(part for part in (what, detail, hint) if part))
        self.what = what or message
        self.file = file
        self.graph = graph
        self.node = node
        self.op_type = op_type
        self.value = value
        self.detail = detail
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args, self.__dict__)


class ModelError(Error, ValueError):
    """The file or graph is not a valid ONNX model, or a name in it is unknown."""


class UnsupportedOperatorError(Error, NotImplementedError):
    """An operator is not supported, or not with these types or attributes."""


class GradientError(Error, NotImplementedError):
    """A requested gradient does not exist; the message names every node without one."""


class ShapeError(Error, ValueError):
    """Shapes do not fit each other, or are too large."""


class DataError(Error, ValueError, TypeError):
    """Data is invalid for a model: wrong dtype, NaN, label out of range, missing column."""


class OptionError(Error, ValueError, TypeError):
    """An option is invalid: an unknown loss, a negative learning rate."""


class CheckpointError(Error, RuntimeError):
    """A checkpoint or output file cannot be written or read, or belongs to another model."""


class ConvergenceError(Error, RuntimeError):
    """The loss or a weight became NaN or infinite."""


class DeviceError(Error, RuntimeError):
    """A device is not available, or out of memory."""


class InternalError(Error, RuntimeError):
    """A bug in onnxgrad itself; the message asks to report it."""
