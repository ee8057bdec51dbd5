"""Models in any form as ``onnx.ModelProto``, for functions that read or change the message."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import onnx

import onnxgrad as og

__all__ = ["load_proto", "takes_models"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def load_proto(model: Any) -> onnx.ModelProto:
    """Return a model in any form as ModelProto; one that is given is returned itself.

    Raises
    ------
    onnxgrad.ModelError
        The file does not exist or is not a model.
    """
    return model if isinstance(model, onnx.ModelProto) else og.set_weights(model, {})


def takes_models(*names: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Convert the arguments of these names by `load_proto`; None stays None."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def converted(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            given = signature.bind(*args, **kwargs)
            for name in names:
                if given.arguments.get(name) is not None:
                    given.arguments[name] = load_proto(given.arguments[name])
            return function(*given.args, **given.kwargs)

        return converted

    return decorate
