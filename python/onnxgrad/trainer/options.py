"""Options of `Trainer.fit` from the extension's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from onnxgrad import _core
from onnxgrad.base.described import checked_value, native_options, row_of, shown_value
from onnxgrad.base.typed_options import takes_options
from onnxgrad.errors import OptionError
from onnxgrad.trainer.described import FitOptions

__all__ = ["complete", "native_fit_options", "takes_fit_options"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_ROW = row_of("fit_option", "FitOptions")


def takes_fit_options(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Expand ``**options`` in the signature and docstring of a function to the fit options."""
    aliases = {alias: None for field in _ROW.fields for alias in field.aliases}
    return takes_options(FitOptions, complete({}) | aliases)(function)


def complete(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options by their primary names, with defaults filled in.

    Raises
    ------
    OptionError
        An option is given under two names with different values.
    """
    values = {}
    for field in _ROW.fields:
        default = shown_value(field, field.default_value)
        values[field.option] = options.get(field.option, default)
        for alias in field.aliases:
            given = options.get(alias)
            if given is None:
                continue
            if values[field.option] not in (default, given):
                raise OptionError(
                    what=f"{field.option}={values[field.option]!r} and {alias}={given!r} are two "
                    "names of the same option",
                    value=alias,
                    hint="Give one of them.",
                )
            values[field.option] = given
    return values


def native_fit_options(values: Mapping[str, Any]) -> _core.FitOptions:
    """Return `complete` options as the extension takes them.

    Raises
    ------
    OptionError
        An unknown name, or a number out of its range.
    """
    checked = {field.option: checked_value(field, values[field.option]) for field in _ROW.fields}
    return _core.make_fit_options(_ROW.type, native_options(_ROW, checked))
