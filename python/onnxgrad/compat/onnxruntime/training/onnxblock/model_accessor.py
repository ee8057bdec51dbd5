"""The model that blocks add nodes to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import onnx

from onnxgrad.compat.graphs.building import empty_model

__all__ = ["ModelAccessor", "base", "current_model", "custom_op_library", "empty_base"]


class ModelAccessor:
    """Gives access to the model being built.

    Attributes
    ----------
    model : onnx.ModelProto
    path : str
        The file that it was read from.
    has_path : bool
    """

    def __init__(self, model: onnx.ModelProto, model_path: str | None = None) -> None:
        self.model = model
        self._path = model_path

    @property
    def path(self) -> str:
        """The file that it was read from."""
        if self._path is None:
            raise RuntimeError("The model has no path: give one to onnxblock.base.")
        return self._path

    @property
    def has_path(self) -> bool:
        """Whether there is a path."""
        return self._path is not None


_OPEN: ContextVar[ModelAccessor | None] = ContextVar("open_model", default=None)


def current_model() -> onnx.ModelProto:
    """Return the model that is open in this context.

    Raises
    ------
    RuntimeError
        None is open.
    """
    accessor = _OPEN.get()
    if accessor is None:
        raise RuntimeError("No model is open: call blocks within onnxblock.base or empty_base.")
    return accessor.model


@contextmanager
def _opened(accessor: ModelAccessor) -> Iterator[ModelAccessor]:
    if _OPEN.get() is not None:
        raise RuntimeError("A base model is open already: leave its context first.")
    token = _OPEN.set(accessor)
    try:
        yield accessor
    finally:
        _OPEN.reset(token)


@contextmanager
def base(model: onnx.ModelProto, model_path: str | None = None) -> Iterator[ModelAccessor]:
    """Open a copy of a model for blocks."""
    if model is None:
        raise RuntimeError("The base model is None: empty_base starts from nothing.")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    with _opened(ModelAccessor(copy, model_path)) as accessor:
        yield accessor


@contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Open an empty model, by default of the newest operator set that onnx and onnxgrad know."""
    version = opset_version or min(26, onnx.defs.onnx_opset_version())
    model = empty_model(version, "onnxgrad")
    with _opened(ModelAccessor(model)) as accessor:
        yield accessor


def custom_op_library(
    custom_op_library_path: str | os.PathLike[str],
) -> AbstractContextManager[Any]:
    """Refuse a library of operators: onnxgrad loads functions with `register_operator`."""
    raise NotImplementedError(
        f"custom_op_library={os.fspath(custom_op_library_path)!r} is not supported: describe the "
        "operators as functions and give them to onnxgrad.register_operator."
    )
