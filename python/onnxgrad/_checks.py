"""Checks of options, with one wording for all."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Sequence
from typing import Any

from onnxgrad.errors import DeviceError, OptionError


def nearest_or(
    wrong: str, known: Iterable[str], otherwise: str = "Take one of these names."
) -> str:
    """Return ``"Did you mean 'x'?"`` for the nearest known name, or `otherwise` if none is near."""
    import difflib

    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(wrong.lower(), names, n=1, cutoff=0.5)
    return f"Did you mean '{names[near[0]]}'?" if near else otherwise


def unknown_name(option: str, given: object, known: Sequence[str]) -> OptionError:
    """Return the error for a name that is not one of `known`."""
    hint = nearest_or(given, known, "") if isinstance(given, str) else ""
    return OptionError(
        what=f"{option}: unknown {given!r}",
        value=option,
        mend=f"{hint} Known are {', '.join(repr(name) for name in known)}.".strip(),
    )


def positive_int(option: str, value: Any, minimum: int = 1) -> int:
    """Return `value` as int if it is a whole number of at least `minimum`."""
    is_whole = isinstance(value, numbers.Integral) and value is not True and value is not False
    if is_whole and int(value) >= minimum:
        return int(value)
    raise OptionError(
        what=f"{option}: {value!r}, expected a whole number of at least {minimum}",
        value=option,
        mend=f"Give a number such as {max(minimum, 1)}.",
    )


def real_number(
    option: str,
    value: Any,
    minimum: float = 0.0,
    below: float = math.inf,
    *,
    open_minimum: bool = False,
) -> float:
    """Return `value` as float if it is a number in [minimum, below), or (minimum, below)."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if is_number and minimum <= value < below and not (open_minimum and value == minimum):
        return float(value)
    left = "above" if open_minimum else "of at least"
    right = "" if math.isinf(below) else f" and below {below:g}"
    raise OptionError(
        what=f"{option}: {value!r}, expected a number {left} {minimum:g}{right}",
        value=option,
        mend=f"Give a number {left} {minimum:g}{right}, or leave {option} out.",
    )


def duration(option: str, value: Any) -> float:
    """Return seconds: of a number, or of a text such as ``"30m"``; 0 for None."""
    if value is None:
        return 0.0
    if isinstance(value, str):
        units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
        number, unit = value.strip()[:-1], value.strip()[-1:]
        try:
            value = float(number) * units[unit]
        except (ValueError, KeyError):
            raise OptionError(
                what=f"{option}: {value!r} is not a duration",
                value=option,
                mend="Give seconds, or a text such as '90s', '30m' or '1.5h'.",
            ) from None
    return real_number(option, value, open_minimum=True)


def patterns(option: str, value: str | Iterable[str] | None) -> list[str]:
    """Return names or glob patterns as a list; one text is one pattern, None is none."""
    if value is None:
        return []
    names = [value] if isinstance(value, str) else list(value)
    for name in names:
        if not isinstance(name, str):
            raise OptionError(
                what=f"{option}: {name!r} is not a name or pattern",
                value=option,
                mend="Give texts such as 'fc1.weight' or 'fc*'.",
            )
    return names


def device_name(device: Any) -> str:
    """Return the device that `device` stands for; ``"auto"`` is the best one that exists here."""
    if device in ("cpu", "auto"):
        return "cpu"
    raise DeviceError(
        what=f"device {device!r} is not available",
        value="device",
        mend="Available here: 'cpu', which 'auto' takes.",
    )


def thread_count(threads: int | None) -> int:
    """Return the number of threads for the engine; 0 lets it choose."""
    return 0 if threads is None else positive_int("threads", threads)


def path_text(option: str, path: Any) -> str:
    """Return a path as text."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise OptionError(
            what=f"{option}: a {type(path).__name__} is not a path",
            value=option,
            mend="Give a text or a pathlib.Path.",
        ) from None
