"""Descriptions whose options are a row in a table of the extension."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from onnxgrad import _core
from onnxgrad.base.checks import (
    duration,
    patterns,
    positive_int,
    real_number,
    unknown_name,
    whole_number,
)
from onnxgrad.base.description import Description

__all__ = ["Described", "checked_value", "native_options", "row_of", "shown_value"]


class Described(Description):
    """A description that the extension knows; its table says what the options are.

    The table of a `_family` is ``_core.<family>_table()``, and ``_core.make_<family>`` makes its
    structs. A class that is made of a row has the row's type as `_type`; those without write
    `_native`.
    """

    _family: ClassVar[str]
    _type: ClassVar[str]

    def _take(self, arguments: Mapping[str, Any]) -> None:
        """Take the arguments of ``__init__``, itself among them, and check them by the row."""
        row = row_of(self._family, self._type)
        options = {one.option: checked_value(one, arguments[one.option]) for one in row.fields}
        Description.__init__(self, **options)
        self._native()  # checks what goes together

    def _native(self) -> Any:
        options = native_options(row_of(self._family, self._type), vars(self))
        return getattr(_core, f"make_{self._family}")(self._type, options)


@functools.cache
def row_of(family: str, type_: str) -> _core.DescriptionInfo:
    """Return the row of a struct in the table of its family."""
    table: list[_core.DescriptionInfo] = getattr(_core, f"{family}_table")()
    return next(row for row in table if row.type == type_)


def checked_value(field: _core.FieldInfo, value: Any) -> Any:
    """Return the value of an option as the field has it, None included.

    Raises
    ------
    OptionError
        It is of another type, out of the field's range, or none of its choices.
    """
    if field.kind == "texts":
        return tuple(patterns(field.option, value))
    if value is None and (field.none_is or field.kind == "optional whole"):
        return None
    if field.is_duration:
        return duration(field.option, value)
    if field.kind == "flag":
        return bool(value)
    if field.kind == "text":
        if value not in field.choices:
            raise unknown_name(field.option, value, field.choices)
        return value
    if field.kind == "optional whole":
        return whole_number(field.option, value)
    if field.kind in ("whole", "wholes"):
        check = functools.partial(positive_int, field.option, minimum=int(field.minimum))
        return check(value) if field.kind == "whole" else tuple(map(check, value))
    real = functools.partial(
        real_number,
        field.option,
        minimum=field.minimum,
        below=field.below,
        open_minimum=field.is_open,
    )
    return real(value) if field.kind == "number" else tuple(map(real, value))


def native_options(row: _core.DescriptionInfo, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked values of all options of a row as the extension takes them."""
    options = dict(values)
    for field in row.fields:
        if field.none_is and options[field.option] is None:
            options[field.option] = 0
    return options


def shown_value(field: _core.FieldInfo, value: Any) -> Any:
    """Return a value of the extension as users write it."""
    return None if field.none_is and value == 0 else value
