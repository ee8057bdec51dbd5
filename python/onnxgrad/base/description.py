"""Immutable descriptions of losses and optimizers.

They are like frozen data classes, but importing `dataclasses` would add 10 % to the startup time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, Self

from onnxgrad.base.checks import unknown_name

__all__ = ["Description"]

_TAKES_ANY_NAME = 0x08  # CO_VARKEYWORDS


class Description:
    """Named options, immutable, and compared, hashed and printed by value.

    The error for an unknown option suggests the nearest one.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__init__" in vars(cls):
            cls.__init__ = _checked(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, **options: Any) -> None:
        vars(self).update(options)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some options."""
        return type(self)(**{**vars(self), **changes})

    def _text_options(self) -> list[str]:
        """Return the options that a string such as ``NAME:option=value`` may set."""
        return list(vars(self))

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"'{name}' cannot be changed; use replace({name}={value!r})")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).items()))

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


def _checked(init: Callable[..., None]) -> Callable[..., None]:
    code = init.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(init)
    def checked(self: Description, *values: Any, **options: Any) -> None:
        for name in options:
            if name not in known and not code.co_flags & _TAKES_ANY_NAME:
                raise unknown_name(f"option of {type(self).__name__}", name, known)
        init(self, *values, **options)

    return checked
