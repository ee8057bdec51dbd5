"""Averages of weights, and options that apply to the gradient of any optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from onnxgrad.base.checks import real_number
from onnxgrad.base.family import Family
from onnxgrad.errors import OptionError
from onnxgrad.optimizers.average import EMA, SWA
from onnxgrad.optimizers.base import Average

__all__ = [
    "EMA",
    "SWA",
    "AverageLike",
    "SharpnessLike",
    "as_average",
    "as_sharpness",
    "average_to_text",
]

AverageLike: TypeAlias = "Average | str | Mapping[str, Mapping[str, Any]]"
"""An average, its name with options ``"ema:decay=0.99"``, or ``{"swa": {"start_epoch": 5}}``."""

SharpnessLike: TypeAlias = "float | Mapping[str, Any]"
"""rho of sharpness-aware minimization, or ``{"rho": 0.05, "adaptive": True}``."""

_FAMILY = Family(Average)
_FAMILY.fill(globals())
average_to_text = _FAMILY.to_text


def as_average(average: AverageLike) -> Average:
    """Return an average, given as such, by name or as a dictionary.

    Raises
    ------
    OptionError
        An unknown name or option.
    """
    if not isinstance(average, Mapping):
        return _FAMILY.take(average)
    if len(average) != 1 or not all(isinstance(given, Mapping) for given in average.values()):
        raise OptionError(
            what=f"average: {dict(average)!r} is not one name with a dictionary of options",
            value="average",
            hint="For example average={'swa': {'start_epoch': 5}}.",
        )
    ((name, options),) = average.items()
    described = _FAMILY.from_name(name)
    unknown = [option for option in options if option not in vars(described)]
    if unknown:
        raise OptionError(
            what=f"average: '{name}' has no option '{unknown[0]}'",
            value="average",
            hint=f"It has {', '.join(vars(described))}.",
        )
    return described.replace(**options)


def as_sharpness(sam: SharpnessLike) -> tuple[float, bool]:
    """Return rho, and whether it is relative to the weights.

    Raises
    ------
    OptionError
        A number that is not above 0, or an unknown option.
    """
    given: Any = sam if isinstance(sam, Mapping) else {"rho": sam}
    unknown = {*given} - {"rho", "adaptive"}
    if unknown:
        raise OptionError(
            what=f"sam: there is no option '{min(unknown)}'",
            value="sam",
            hint="Give {'rho': 0.05, 'adaptive': True}, or a number.",
        )
    rho = real_number("rho", given.get("rho", 0.05), open_minimum=True)
    return rho, bool(given.get("adaptive", False))
