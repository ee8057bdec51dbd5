"""Penalties on weights, and conversion from the forms that options accept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from onnxgrad.base.checks import listed
from onnxgrad.base.option_texts import with_options
from onnxgrad.errors import OptionError
from onnxgrad.losses.penalty import Penalty

__all__ = ["Penalty", "PenaltyLike", "as_penalties", "from_text", "to_text"]

PenaltyLike: TypeAlias = "Penalty | Iterable[Penalty] | Mapping[str, Mapping[str, float]]"
"""A penalty, several, or a dictionary from patterns of weights to ``{"l1": ..., "l2": ...}``."""

_FACTORS = [name for name in vars(Penalty()) if name != "weights"]


def as_penalties(penalty: Any) -> list[Penalty]:
    """Convert penalties in any form to a list."""
    if penalty is None:
        return []
    if isinstance(penalty, Mapping):
        found = []
        for pattern, options in penalty.items():
            if not isinstance(options, Mapping) or not {*options} <= {*_FACTORS}:
                raise OptionError(
                    what=f"penalty: {options!r} for '{pattern}'",
                    value="penalty",
                    hint="Give a dictionary such as {'l1': 0.1, 'l2': 0.01}.",
                )
            found.append(Penalty(**options, weights=pattern))
        return found
    found = listed(penalty)
    for one in found:
        if not isinstance(one, Penalty):
            raise OptionError(
                what=f"penalty: a {type(one).__name__} is not a penalty",
                value="penalty",
                hint="Give losses.Penalty(l2=0.01), or a dictionary: {'coef': {'l2': 0.01}}.",
            )
    return found


def from_text(text: str) -> Penalty:
    """Parse a penalty ``"l1=X,l2=Y"`` or ``"PATTERN:l1=X,l2=Y"``.

    Examples
    --------
    >>> from_text("dense*:l1=0.1")
    Penalty(l1=0.1, l2=0.0, weights=('dense*',))
    """
    pattern, _, options = text.rpartition(":")  # names of weights may have colons
    return with_options("penalty", "", Penalty(weights=pattern or None), options)


def to_text(penalty: Penalty) -> str | None:
    """Return a penalty as a string; None if it has several patterns."""
    if len(penalty.weights) > 1:
        return None
    options = ",".join(f"{name}={getattr(penalty, name)!r}" for name in _FACTORS)
    return ":".join([*penalty.weights, options])
