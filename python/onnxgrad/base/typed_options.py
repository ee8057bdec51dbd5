"""Options that several functions take as ``**options``, shown as if each were written out."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, ForwardRef, ParamSpec, TypeVar

__all__ = ["documents_options", "takes_options"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C", bound=type)


def takes_options(
    options: type, defaults: Mapping[str, Any]
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Expand ``**options`` in the signature and docstring of a function.

    `options` is a generated typed dictionary; its docstring describes the parameters.
    """

    def expanded(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name],
                annotation=_annotation(annotation),
            )
            for name, annotation in options.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=own + added)  # type: ignore[attr-defined]
        _document(function, options)
        return function

    return expanded


def documents_options(options: type) -> Callable[[_C], _C]:
    """Expand ``**options`` in the docstring of a class whose constructor takes them."""

    def expanded(class_: _C) -> _C:
        _document(class_, options)
        return class_

    return expanded


def _annotation(annotation: Any) -> Any:
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation


def _document(described: Any, options: type) -> None:
    """Replace the line ``**options : NAME`` of a docstring by the options, indented like it."""
    parameters = inspect.cleandoc(options.__doc__ or "").partition("----------\n")[2]

    def indented(found: re.Match[str]) -> str:
        return textwrap.indent(parameters, found[1])

    marker = rf"^( *)\*\*options : {options.__name__}$"
    described.__doc__ = re.sub(marker, indented, described.__doc__ or "", flags=re.MULTILINE)
