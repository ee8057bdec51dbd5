"""Penalties on weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import patterns, real_number
from onnxgrad.base.description import Description
from onnxgrad.errors import OptionError


class Penalty(Description):
    """l1 sum abs(w) + l2 sum w^2 over weights, added to the loss and so in its gradient.

    An optimizer's weight decay of 2 l2 (not decoupled) gives the same gradient.

    Parameters
    ----------
    l1, l2 : float, default=0
    weights : str or list of str, default=None
        Names or glob patterns; None is the trainable weights of two or more dimensions that the
        loss depends on (not the biases).

    Examples
    --------
    >>> Penalty(l2=1e-4)
    Penalty(l1=0.0, l2=0.0001, weights=())
    """

    l1: float
    l2: float
    weights: tuple[str, ...]

    def __init__(
        self, *, l1: float = 0.0, l2: float = 0.0, weights: str | Iterable[str] | None = None
    ) -> None:
        super().__init__(
            l1=real_number("l1", l1),
            l2=real_number("l2", l2),
            weights=tuple(patterns("weights", weights)),
        )

    def _native(self) -> _core.Penalty:
        return _core.Penalty(self.l1, self.l2, list(self.weights))


PenaltyLike: TypeAlias = "Penalty | Iterable[Penalty] | Mapping[str, Mapping[str, float]]"
"""A penalty, several, or a dictionary from patterns of weights to ``{"l1": ..., "l2": ...}``."""


def as_penalties(penalty: Any) -> list[Penalty]:
    """Return penalties in any of their forms as a list."""
    if penalty is None:
        return []
    if isinstance(penalty, Mapping):
        found = []
        for pattern, options in penalty.items():
            if not isinstance(options, Mapping) or not {*options} <= {"l1", "l2"}:
                raise OptionError(
                    what=f"penalty: {options!r} for '{pattern}'",
                    value="penalty",
                    hint="Give a dictionary such as {'l1': 0.1, 'l2': 0.01}.",
                )
            found.append(Penalty(**options, weights=pattern))
        return found
    found = [penalty] if isinstance(penalty, Penalty) else list(penalty)
    for one in found:
        if not isinstance(one, Penalty):
            raise OptionError(
                what=f"penalty: a {type(one).__name__} is not a penalty",
                value="penalty",
                hint="Give a losses.Penalty, or a dictionary such as {'coef': {'l2': 0.01}}.",
            )
    return found
