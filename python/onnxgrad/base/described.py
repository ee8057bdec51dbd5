"""Descriptions whose options are defined by a row in a table of the extension."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from onnxgrad import _core
from onnxgrad.base.checks import (
    any_int,
    choice,
    duration,
    flag,
    listed,
    patterns,
    positive_int,
    real_number,
    several,
)
from onnxgrad.base.description import Description

__all__ = ["Described", "checked_value", "native_options", "row_of", "shown_value"]


class Described(Description):
    """A description whose options are defined by a table of the extension.

    The table of a `_family` is ``_core.<family>_table()``, and ``_core.make_<family>`` creates its
    structs. A class generated from a row has the row's type as `_type`; others override `_native`.
    """

    _family: ClassVar[str]
    _type: ClassVar[str]

    def _take(self, arguments: Mapping[str, Any]) -> None:
        """Set the options from the local variables of ``__init__``, checked against the row."""
        row = row_of(self._family, self._type)
        options = {one.option: checked_value(one, arguments[one.option]) for one in row.fields}
        Description.__init__(self, **options)
        self._native()  # checks combinations

    def _native(self) -> Any:
        options = native_options(row_of(self._family, self._type), vars(self))
        return getattr(_core, f"make_{self._family}")(self._type, options)


def row_of(family: str, type_: str) -> _core.DescriptionInfo:
    """Return the row of a struct in the table of its family."""
    return _table_of(family)[type_]


@functools.cache
def _table_of(family: str) -> dict[str, _core.DescriptionInfo]:
    return {row.type: row for row in getattr(_core, f"{family}_table")()}


def checked_value(field: _core.FieldInfo, value: Any) -> Any:
    """Return the value of an option, converted to the type of its field; it may be None.

    Raises
    ------
    OptionError
        It is of a wrong type, out of the field's range, or not one of its choices.
    """
    if field.kind == "texts":
        return tuple(patterns(field.option, value))
    if value is None and (field.none_is or field.kind == "optional whole"):
        return None
    if field.is_duration:
        return duration(field.option, value)
    if field.kind == "flag":
        return flag(field.option, value)
    if field.kind == "text":
        return choice(field.option, value, field.choices)
    is_any = field.kind == "whole" and math.isinf(field.minimum)
    if field.kind == "optional whole" or is_any:
        return any_int(field.option, value)
    if field.kind in ("whole", "wholes"):
        check = functools.partial(positive_int, field.option, minimum=int(field.minimum))
        if field.kind == "whole":
            return check(value)
        return tuple(map(check, listed(value)))
    real = functools.partial(
        real_number,
        field.option,
        minimum=field.minimum,
        below=field.below,
        open_minimum=field.is_open,
    )
    return (
        real(value)
        if field.kind == "number"
        else tuple(map(real, several(field.option, value, "numbers")))
    )


def native_options(row: _core.DescriptionInfo, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert checked values of all options of a row for the extension."""
    options = dict(values)
    for field in row.fields:
        if field.none_is and options[field.option] is None:
            options[field.option] = 0
    return options


def shown_value(field: _core.FieldInfo, value: Any) -> Any:
    """Convert a value of the extension to what users write."""
    return None if field.none_is and value == 0 else value
