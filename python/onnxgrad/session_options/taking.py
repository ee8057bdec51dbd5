"""Functions that take options of the table as ``**options``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from onnxgrad.base.typed_options import takes_options
from onnxgrad.session_options.table import TAKERS, defaults_of

__all__ = ["changed", "takes_session_options", "with_defaults"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")

_DEFAULTS = {name: defaults_of(taker) for taker, (name, _) in TAKERS.items()}


def takes_session_options(
    kind: type,
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Expand ``**options`` of a typed dictionary in the signature and docstring of a function."""
    return takes_options(kind, _DEFAULTS[kind.__name__])


def with_defaults(kind: type[_T], options: _T) -> _T:
    """Return all options of a typed dictionary, with defaults filled in."""
    return cast("_T", {**_DEFAULTS[kind.__name__], **cast("Mapping[str, Any]", options)})


def changed(kind: type, options: Any) -> list[str]:
    """Return the names of the options that do not have their defaults."""
    defaults = _DEFAULTS[kind.__name__]
    return [
        name
        for name, default in defaults.items()
        if options[name] is not default and (default is None or options[name] != default)
    ]
