"""Immutable descriptions of losses and optimizers.

What `dataclasses` would give; importing that module takes a tenth of the time that a process needs
until it trains.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self

__all__ = ["Description"]


class Description:
    """Options with names: compared, hashed and shown by their values, and never changed."""

    def __init__(self, **options: Any) -> None:
        vars(self).update(options)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some options."""
        return type(self)(**{**vars(self), **changes})

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"'{name}' cannot be changed; use replace({name}={value!r})")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).items()))

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"
