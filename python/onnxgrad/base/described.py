"""Descriptions whose options are a row in a table of the extension."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from onnxgrad import _core
from onnxgrad.base.checks import positive_int, real_number, unknown_name
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
        fields = {field.option: field for field in _row(self._table, self._type).fields}
        super().__init__(
            **{option: _checked(fields[option], value) for option, value in options.items()}
        )
        self._native()  # checks what goes together

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
    default = field.default_value
    if field.zero_is_none and value is None:
        return None
    if isinstance(default, bool):
        return bool(value)
    if isinstance(default, int):
        return positive_int(field.option, value, int(field.minimum))
    if isinstance(default, float):
        return real_number(
            field.option, value, field.minimum, field.below, open_minimum=field.is_open
        )
    if isinstance(default, list):
        return tuple(positive_int(field.option, one, int(field.minimum)) for one in value)
    if value not in field.choices:
        raise unknown_name(field.option, value, field.choices)
    return value


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
                for field, value in zip(row.fields, named.values, strict=True)
            }
            found[named.name] = classes[row.python_name](**values)
            aliases.update(dict.fromkeys(named.aliases, named.name))
    return found, aliases
