"""Slopes of a function along a line, by differences, with how far off these may be.

Steps are powers of 1/4. `judge` compares a slope with a difference at one step first; only where
they differ, with differences at all steps: these tell rounding, curvature, kinks, jumps and wrong
slopes apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["CONCLUSIVE", "DOUBLE", "SINGLE", "Judged", "Line", "Precision", "judge"]

Array: TypeAlias = "np.ndarray[Any, Any]"

RATIO = 4.0  # from a step to the next narrower one
CONCLUSIVE = 0.004  # error of a difference that still shows that a gradient is right
TELLS = 0.05  # and to be looked at
_STAIR = 5  # steps from the widest to one that passes over a stair of float32
_NARROWEST = 5  # differences of which roughness is told
LARGE = 256.0  # numbers such as those of pixels
HIDDEN = 64  # times the floor: there rounding hides slopes, and both are as good as 0


class Precision(NamedTuple):
    """Precision of differences of a function that computes in `dtype`.

    Steps are ``4**-i`` for `i` of the members: `first` is compared at first, then `narrower`, then
    all from `widest` to `narrowest`. A slope below `floor`, beside the function, is as good as 0.
    """

    dtype: DTypeLike
    eps: float
    tolerance: float
    first: int
    narrower: tuple[int, ...]
    widest: int
    narrowest: int
    floor: float


_EPS64, _EPS32 = 2.0**-52, 2.0**-23
DOUBLE = Precision(np.float64, _EPS64, 1e-6, 8, (10, 12), 2, 15, 2.0**12 * _EPS64)
SINGLE = Precision(np.float32, _EPS32, 2e-3, 3, (4,), 0, 7, 2.0**4 * _EPS32)


def _like_single(precision: Precision) -> Precision:
    """Return the precision of float32, with a tolerance that the caller chose."""
    chosen = precision.tolerance != DOUBLE.tolerance
    return SINGLE._replace(tolerance=precision.tolerance) if chosen else SINGLE


class Judged(NamedTuple):
    """The result of a comparison.

    Attributes
    ----------
    verdict : {"right", "wrong", "between", "kink"}
        "between": between the slopes on both sides of a kink, as it may be; "kink": the differences
        do not tell, as at a jump.
    text : str
        What is wrong, or lies there.
    error : float
        The difference between the slopes, relative to them; where rounding hides the slope, to the
        smallest that would be seen.
    is_doubtful : bool
        Of a "kink": the slopes differ by more than the difference may be off, but not by much more.
    """

    verdict: Literal["right", "wrong", "between", "kink"]
    text: str
    error: float
    is_doubtful: bool = False


class _Side(NamedTuple):
    """A one-sided slope, what it may be off by, and whether the function jumps away there."""

    slope: float
    spread: float
    jumps: bool
    terms: Array


class Line:
    """The terms of a function's sum at places along a line, each computed once.

    `compute` returns the terms at a place t; NaN where there is none.
    """

    def __init__(self, compute: Callable[[float], Array], precision: Precision) -> None:
        self.compute = compute
        self._terms: dict[float, Array] = {}
        self.precision = precision

    def terms(self, place: float) -> Array:
        """Return the terms at a place."""
        if place not in self._terms:
            self._terms[place] = self.compute(place)
        return self._terms[place]

    def change(self, start: float, end: float) -> tuple[float, float]:
        """Return the change of the sum between two places, and what rounding adds to it."""
        before, after = self.terms(start), self.terms(end)
        with np.errstate(all="ignore"):
            change = float(np.sum(after - before))
            size = float(np.sqrt(np.sum(np.maximum(np.abs(before), np.abs(after)) ** 2)))
        return change, 2 * size * self.precision.eps

    def central(self, step: float) -> tuple[float, float]:
        """Return the central difference, and what it may be off by because of rounding."""
        change, rounding = self.change(-step, step)
        return change / (2 * step), rounding / step

    @property
    def size(self) -> float:
        """The norm of the terms at the point."""
        return float(np.sqrt(np.nansum(self.terms(0.0) ** 2)))


def judge(line: Line, slope: float, largest: float) -> Judged:
    """Compare `slope` with the differences at place 0; `largest` is the largest number there."""
    precision = line.precision
    scale = max(1.0, largest)
    floor = precision.floor * line.size / min(scale, LARGE)
    shift = math.ceil(math.log(scale, RATIO))
    if np.isinf(slope):
        return _judge_infinite(line, slope)
    # Some functions of large numbers change with them in proportion, others (Exp) do not.
    for i in dict.fromkeys([precision.first - shift, precision.first, *precision.narrower]):
        judged = _agrees(line, slope, RATIO**-i, floor)
        if judged is not None:
            return judged
    steps = [RATIO**-i for i in range(precision.widest - shift, precision.narrowest + 1)]
    judged = _judge_thoroughly(line, slope, steps, floor)
    is_told = judged.verdict == "between" or (judged.verdict == "right" and slope != 0)
    if is_told or precision.eps == SINGLE.eps or not _is_rough(line, steps):
        return judged
    coarse = judge(Line(line.compute, _like_single(precision)), slope, largest)
    if judged.verdict == "wrong":
        return coarse
    return (
        coarse if coarse.verdict == ("right" if judged.verdict == "kink" else "wrong") else judged
    )


def _is_rough(line: Line, steps: Sequence[float]) -> bool:
    """Return whether the narrowest differences show that something computes in float32.

    They change by more than rounding in float64 explains, and not less from step to step, or are
    all 0 where those of a stair of float32 are not.
    """
    differences = [line.central(step) for step in steps]
    if differences[-1][0] == 0:
        stair = max(steps[0] / RATIO**_STAIR, steps[-1])
        return any(
            value for (value, _), step in zip(differences, steps, strict=True) if step <= stair
        )
    changes = [
        abs(fine[0] - coarse[0]) for coarse, fine in itertools.pairwise(differences[-_NARROWEST:])
    ]
    latest = max(changes[2:])
    return latest > 100 * differences[-1][1] and latest > 0.5 * max(changes[:2])


def _agrees(line: Line, slope: float, step: float, floor: float) -> Judged | None:
    """Return that the slope is right, if one difference tells that."""
    found, noise = line.central(step)
    if not np.isfinite(found):
        return None
    tolerance = line.precision.tolerance
    size = max(abs(slope), abs(found))
    if size == 0:  # with a narrow step, perhaps within a stair of float32
        return Judged("right", "", 0.0) if step >= RATIO**-line.precision.first else None
    if abs(slope - found) > tolerance * size + noise or noise > CONCLUSIVE * size:
        return None
    return Judged("right", "", _error(slope, found, noise + floor, tolerance))


def _error(slope: float, found: float, spread: float, tolerance: float) -> float:
    difference = abs(slope - found)
    return difference / max(abs(slope), abs(found), spread / tolerance) if difference else 0.0


def _judge_thoroughly(line: Line, slope: float, steps: list[float], floor: float) -> Judged:
    tolerance = line.precision.tolerance
    right, left = (_side(line, steps, sign, slope, floor) for sign in (1.0, -1.0))
    sides = [side for side in (right, left) if side is not None and not side.jumps]
    if len(sides) < 2:
        return _judge_beside(slope, sides, tolerance, floor)
    first, second = sides
    apart = abs(first.slope - second.slope)
    size = max(abs(first.slope), abs(second.slope))
    if apart > 10 * (tolerance * size + first.spread + second.spread) + floor:
        return _judge_kink(slope, first, second, tolerance, floor)
    found, spread = _central(line, steps, slope, floor)
    size = max(abs(slope), abs(found))
    error = _error(slope, found, spread + floor, tolerance)
    difference = abs(slope - found)
    if difference <= tolerance * size + 4 * spread + floor:
        if 4 * spread > CONCLUSIVE * size + HIDDEN * floor:
            return Judged("kink", "differences do not converge", 0.0)
        return Judged("right", "", error)
    if difference <= 2 * tolerance * size + 8 * spread + 4 * floor:
        return Judged("kink", "differences are not precise", 0.0, is_doubtful=True)
    return Judged("wrong", f"gradient {slope:.9g}, difference {found:.9g}", error)


def _central(line: Line, steps: Sequence[float], slope: float, floor: float) -> tuple[float, float]:
    """Return the central difference at the best step, and what it may be off by."""
    differences = [line.central(step) for step in steps]
    better, spreads = _refined(differences, RATIO**2)
    best = _best(better, spreads, slope, floor, _stairs(line, differences))
    return better[best], spreads[best]


def _refined(
    differences: Sequence[tuple[float, float]], ratio: float
) -> tuple[list[float], list[float]]:
    """Return the limits that each two differences point to, and how much each may be off.

    `ratio` is by how much a step that is narrower by one makes the error of a difference smaller;
    each difference comes with what rounding does to it.
    """
    limits = [
        (ratio * fine[0] - coarse[0]) / (ratio - 1)
        for coarse, fine in itertools.pairwise(differences)
    ]
    spreads = [
        max(abs(here - coarse), abs(here - fine)) + 2 * noise
        for coarse, here, fine, (_, noise) in zip(
            limits, limits[1:], limits[2:], differences[2:], strict=False
        )
    ]
    return limits[1:-1], [spread if np.isfinite(spread) else np.inf for spread in spreads]


def _stairs(line: Line, differences: Sequence[tuple[float, float]]) -> int:
    """Return how many of the narrowest differences of a function in float32 are within a stair."""
    values = [value for value, _ in differences]
    if line.precision.eps != SINGLE.eps or not any(values):
        return 0
    return next(i for i, value in enumerate(reversed(values)) if value)


def _best(
    limits: Sequence[float], spreads: Sequence[float], slope: float, floor: float, stairs: int
) -> int:
    """Return which limit is the slope: the narrowest that tells, or a wider one that agrees."""
    best = None
    for i in reversed(range(len(limits) - stairs)):
        size = max(abs(slope), abs(limits[i]))
        if best is None:
            if 4 * spreads[i] <= TELLS * size + HIDDEN * floor:
                best = i
        elif abs(limits[i] - limits[best]) > 2 * spreads[best]:
            break
        elif spreads[i] < spreads[best]:
            best = i
    return int(np.argmin(spreads)) if best is None else best


def _side(
    line: Line, steps: Sequence[float], sign: float, slope: float, floor: float
) -> _Side | None:
    """Return the slope on one side; None if the function has no values there."""
    changes = [line.change(0.0, sign * step) for step in steps]
    there = [i for i, (change, _) in enumerate(changes) if np.isfinite(change)]
    if len(there) < 4 or there[-1] != len(steps) - 1:
        return None
    (wide, narrow), noise = (abs(changes[i][0]) for i in there[-2:]), changes[-1][1]
    jumps = narrow > 20 * noise and narrow > 0.7 * wide and narrow > 1e-9 * line.size
    differences = [(sign * changes[i][0] / steps[i], changes[i][1] / steps[i]) for i in there]
    limits, spreads = _refined(differences, RATIO)
    best = _best(limits, spreads, slope, floor, _stairs(line, differences))
    step = sign * steps[there[best + 2]]
    terms = (line.terms(step) - line.terms(0.0)) / step
    return _Side(limits[best], spreads[best], jumps, terms)


def _judge_beside(slope: float, sides: Sequence[_Side], tolerance: float, floor: float) -> Judged:
    """Compare with the slope of the only side, if there is one: jumps have no slope."""
    if not sides:
        return Judged("kink", "a jump", 0.0)
    found, spread = sides[0].slope, sides[0].spread
    low, high = min(found, 0.0), max(found, 0.0)
    allowed = min(100 * tolerance, 0.01) * abs(found) + 4 * spread + floor
    if low - allowed <= slope <= high + allowed:
        return Judged("between", "a kink", 0.0)
    return Judged("kink", f"a jump: gradient {slope:.9g}, slope beside it {found:.9g}", 0.0)


def _judge_kink(slope: float, right: _Side, left: _Side, tolerance: float, floor: float) -> Judged:
    """Compare with the slopes on either side, between which the gradient may be anything.

    Each term may have a kink of its own, and each of their gradients lies between its two slopes.
    """
    low = float(np.sum(np.minimum(right.terms, left.terms)))
    high = float(np.sum(np.maximum(right.terms, left.terms)))
    allowed = (
        min(100 * tolerance, 0.01) * max(abs(low), abs(high))
        + 4 * (right.spread + left.spread)
        + floor
    )
    if low - allowed <= slope <= high + allowed:
        return Judged("between", "a kink", 0.0)
    return Judged("kink", f"gradient {slope:.9g}, slopes from {low:.9g} to {high:.9g}", 0.0)


def _judge_infinite(line: Line, slope: float) -> Judged:
    """Compare an infinite slope, as that of the square root at zero."""
    precision = line.precision
    wide, narrow = RATIO**-precision.first, RATIO ** -(precision.first + 2)
    ends = []
    for sign in (1, -1):
        first, second = (abs(line.change(0.0, sign * step)[0]) / step for step in (wide, narrow))
        if np.isfinite(first) and np.isfinite(second):
            if second > 1.5 * first:
                return Judged("right", "", 0.0)
            ends.append(second)
    if not ends:
        return Judged("kink", "no values beside the point", 0.0)
    return Judged("wrong", f"gradient {slope}, slopes {ends}", np.inf)
