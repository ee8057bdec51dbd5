"""Descriptions whose options are a row in a table of the extension."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from onnxgrad import _core
from onnxgrad.base.checks import positive_int, real_number, unknown_name, whole_number
from onnxgrad.base.description import Description

__all__ = ["Described", "described_by_name"]


class Described(Description):
    """A description that the extension knows; its table says what the options are.

    A family has `_table` and `_make`. A class that is made of a row has the row's type as `_type`;
    those without write `_native`.
    """

    _type: ClassVar[str]

    @staticmethod
    def _table() -> Sequence[_core.DescriptionInfo]:
        raise NotImplementedError

    @staticmethod
    def _make(type_: str, options: dict[str, Any]) -> Any:
        raise NotImplementedError

    def __init__(self, **options: Any) -> None:
        super().__init__(**self._checked(options))
        self._native()  # checks what goes together

    def _checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        fields = {field.option: field for field in _row(self._table, self._type).fields}
        return {option: _checked(fields[option], value) for option, value in options.items()}

    def _native(self) -> Any:
        fields = _row(self._table, self._type).fields
        values = vars(self)
        unset = {
            field.option: 0
            for field in fields
            if field.zero_is_none and values[field.option] is None
        }
        return self._make(self._type, {**values, **unset})


@functools.cache
def _row(table: Callable[[], Sequence[_core.DescriptionInfo]], type_: str) -> _core.DescriptionInfo:
    return next(row for row in table() if row.type == type_)


def _checked(field: _core.FieldInfo, value: Any) -> Any:
    if value is None and (field.zero_is_none or field.kind == "optional whole"):
        return None
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


def described_by_name(
    table: Sequence[_core.DescriptionInfo], classes: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the names of a table stand for, and other names for these.

    `classes` has the classes by name; rows that none is made of are left out.
    """
    found, aliases = {}, {}
    for row in table:
        for named in row.names if row.python_name else ():
            values = {
                field.option: None if field.zero_is_none and value == 0 else value
                for field, value in zip(row.fields, named.values, strict=False)
            }
            found[named.name] = classes[row.python_name](**values)
            aliases.update(dict.fromkeys(named.aliases, named.name))
    return found, aliases
