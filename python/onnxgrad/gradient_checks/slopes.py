"""Gradients beside differences, also where a function has a kink or a jump.

The function is a random projection of a model's outputs. Its slope on either side of a point is a
difference quotient. Where both sides agree, the gradient must be the central difference. At a kink
it must lie between the two slopes. A side on which the function jumps, or is not defined, has none:
the gradient is the slope on the other side then, or zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from onnxgrad.gradient_checks.double import all_nodes, schema_of
from onnxgrad.graphs.gradients import gradient as gradient_of
from onnxgrad.sessions import InferenceSession

if TYPE_CHECKING:
    import onnx

__all__ = ["DOUBLE", "ELEMENTS", "SINGLE", "Finding", "Precision", "Slopes"]

Array: TypeAlias = "np.ndarray[Any, Any]"

ELEMENTS = 12  # of one input that are moved one by one; then one direction moves all
SHRINK = 8.0  # from the wide step to the narrow one


class Precision(NamedTuple):
    """Of the differences of a model that computes in `dtype`."""

    dtype: type[np.floating[Any]]
    step: float
    tolerance: float


DOUBLE = Precision(np.float64, 1e-5, 1e-6)
SINGLE = Precision(np.float32, 2.0**-5, 2e-3)


class Sides(NamedTuple):
    """Slopes to the right and to the left, each with the wide step and with the narrow one."""

    right: tuple[float, float]
    left: tuple[float, float]


class Finding(NamedTuple):
    """What a comparison found.

    Attributes
    ----------
    problem : str
        What is wrong with the gradient; empty if nothing is.
    error : float
        The largest difference between gradient and slope, relative to the slope where that is
        larger than 1. At a kink, the distance to the slopes on either side.
    checked : int
        Elements that were moved one by one.
    """

    problem: str
    error: float
    checked: int


class Slopes:
    """Compares the gradients of a model at a point with differences."""

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Mapping[str, Any],
        precision: Precision = DOUBLE,
        straight_through: onnx.ModelProto | None = None,
        *,
        outputs: Sequence[str] | None = None,
        samples: int | None = ELEMENTS,
        seed: int = 0,
        stop_gradient: Sequence[str] = (),
    ) -> None:
        """Differences are those of `straight_through`, if it is given.

        `outputs` are projected (None: all); `samples` elements of each input are moved one by one
        (None: all); `seed` chooses them and the projection.

        Raises onnxgrad.Error if the engine does not run the model.
        """
        self._model = model
        self._feeds = dict(feeds)
        self._fed = self._feeds  # of the graph that differences are of
        self._precision = precision
        self._samples = samples
        self._seed = seed
        self._stops = list(stop_gradient)
        self._worst = 0.0
        self._is_random = _is_random(model)
        self._session = InferenceSession(model, threads=1)
        names = [value.name for value in model.graph.output]
        rng = np.random.default_rng(seed)
        first = dict(zip(names, self._session.run(None, self._feeds), strict=False))
        self._seeds = {
            name: np.where(np.isfinite(value), rng.uniform(0.5, 1.5, value.shape), 0.0)
            for name, value in first.items()
            if isinstance(value, np.ndarray)
            and value.dtype == precision.dtype
            and (outputs is None or name in outputs)
        }
        self.has_outputs = bool(self._seeds)  # whose gradient there may be
        self.undefined = [name for name in self._seeds if np.isnan(first[name]).any()]
        if straight_through is not None:
            self._session = InferenceSession(straight_through, threads=1)

    def problem(self, name: str) -> str:
        """Return what is wrong with the gradient by input `name`; "" if nothing is.

        Raises onnxgrad.Error if the gradient is refused.
        """
        return self.check(name).problem

    def check(self, name: str) -> Finding:
        """Compare the gradient by input `name` with differences.

        Raises onnxgrad.Error if the gradient is refused.
        """
        given = self._gradient(name)
        point = self._feeds[name]
        if given.shape != point.shape:
            return Finding(
                f"shape {given.shape} of the gradient by {name} {point.shape}", np.inf, 0
            )
        if np.isnan(given).any():
            return Finding(f"the gradient by {name} has NaN", np.inf, 0)
        self._worst = 0.0
        rng = np.random.default_rng(self._seed + 1)
        picked = rng.permutation(point.size)[: self._samples]
        unusual = np.flatnonzero(np.isinf(given))[: self._samples]
        problem = self._problem_of(name, given, rng, picked, unusual)
        return Finding(problem, self._worst, len(picked))

    def _problem_of(
        self, name: str, given: Array, rng: np.random.Generator, picked: Array, unusual: Array
    ) -> str:
        point = self._feeds[name]
        for element in [*picked, *unusual]:
            direction = np.zeros(point.size)
            direction[element] = 1
            if text := self._judge(name, direction.reshape(point.shape), given):
                place = tuple(int(i) for i in np.unravel_index(element, point.shape))
                return f"{name}{list(place)}: {text}"
        if point.size <= len(picked) or unusual.size:
            return ""
        text = self._judge(name, rng.choice([-1.0, 1.0], point.shape), given)
        return text and f"{name}, all elements: {text}"

    def _gradient(self, name: str) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a gradient that is zero
            gradient = gradient_of(
                self._model,
                [name],
                list(self._seeds),
                keep_outputs=self._is_random,
                stop_gradient=self._stops,
            )
        seeds = {
            f"{key}_grad": seed.astype(self._precision.dtype) for key, seed in self._seeds.items()
        }
        fed = self._feeds | seeds
        inputs = [value.name for value in gradient.graph.input]
        session = InferenceSession(gradient, threads=1)
        if self._is_random:  # another graph draws other numbers: differences are of this one
            self._session, self._fed = session, {key: fed[key] for key in inputs}
        found: Array = session.run([f"{name}_grad"], {key: fed[key] for key in inputs})[0]
        return found.astype(np.float64)

    def _objective(self, name: str, value: Array) -> tuple[Array, float]:
        """Return the terms of the projection, and what their sum may be off by because of rounding.

        The terms are NaN where the outputs have another shape.
        """
        moved = value.astype(self._precision.dtype)
        outputs = self._session.run(list(self._seeds), {**self._fed, name: moved})
        terms, rounding = [], 0.0
        for output, seed in zip(outputs, self._seeds.values(), strict=True):
            if output.shape != seed.shape:
                terms.append(np.full(np.count_nonzero(seed), np.nan))
                continue
            terms.append(seed[seed != 0] * output[seed != 0].astype(np.float64))
            rounding += float(np.sqrt(np.sum(terms[-1] ** 2)))
        return np.concatenate(terms), rounding * float(np.finfo(self._precision.dtype).eps)

    def _judge(self, name: str, direction: Array, given: Array) -> str:
        point = self._feeds[name].astype(np.float64)
        largest = float(np.max(np.abs(point[direction != 0]), initial=0))
        if not np.isfinite(largest):
            return ""
        slope = float(np.sum(given[direction != 0] * direction[direction != 0]))
        text, error = "", np.inf
        # Some functions of large numbers change with them in proportion, others (Exp) do not.
        for scale in sorted({max(1.0, largest), 1.0}, reverse=True):
            steps = [self._precision.step * scale, self._precision.step * scale / SHRINK]
            text, found = self._compare(slope, *self._sides(name, direction, steps))
            error = min(error, found)
            if not text:
                break
        self._worst = max(self._worst, error)
        return text

    def _sides(
        self, name: str, direction: Array, steps: list[float]
    ) -> tuple[Sides, tuple[float, float], float]:
        """Return the slopes, their bounds, and what they may be off by.

        The bounds are sums over the elements of the outputs, each of which may have a kink of its
        own there, and the gradient of each may be anything between its two slopes.
        """
        point = self._feeds[name].astype(np.float64)
        here, rounding = self._objective(name, point)
        slopes = [
            [
                (self._objective(name, point + sign * step * direction)[0] - here) / (sign * step)
                for step in steps
            ]
            for sign in (1, -1)
        ]
        right, left = ((float(np.sum(side[0])), float(np.sum(side[1]))) for side in slopes)
        both = np.stack([side[1] for side in slopes])
        bounds = (float(np.sum(np.min(both, axis=0))), float(np.sum(np.max(both, axis=0))))
        return Sides(right, left), bounds, 4 * rounding / steps[1]

    def _compare(
        self, slope: float, sides: Sides, bounds: tuple[float, float], noise: float
    ) -> tuple[str, float]:
        """Return what is wrong, and the error."""
        there = [side for side in sides if np.isfinite(side).all() and not _jumps(side)]
        if not there:
            return "", 0.0
        if np.isinf(slope):  # as that of the square root at zero
            if any(abs(side[1]) > 1.5 * abs(side[0]) for side in there):
                return "", 0.0
            return f"gradient {slope}, slopes {[side[1] for side in there]}", np.inf
        tolerance = self._precision.tolerance
        error = np.inf
        if len(there) == 2:
            for i, factor in enumerate((1, 10)):  # the narrow step where the curvature is large
                central = (sides.right[i] + sides.left[i]) / 2
                size = max(1.0, abs(central))
                error = min(error, abs(slope - central) / size)
                if abs(slope - central) <= factor * tolerance * size + noise:
                    return "", error
            if not _is_kink(sides, tolerance, noise):
                return f"gradient {slope:.9g}, difference {central:.9g}", error
        low, high = bounds
        if len(there) == 1:
            low, high = min(there[0][1], 0.0), max(there[0][1], 0.0)
        size = max(1.0, abs(low), abs(high))
        outside = max(low - slope, slope - high, 0.0) / size
        if outside * size <= 100 * tolerance * size + noise:
            return "", outside
        return f"gradient {slope:.9g}, slopes from {low:.9g} to {high:.9g}", outside


def _is_random(model: onnx.ModelProto) -> bool:
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    return any("seed" in schema_of(node, opsets).attributes for node in all_nodes(model))


def _jumps(side: tuple[float, float]) -> bool:
    return abs(side[1]) > 10 and abs(side[1]) > 0.7 * SHRINK * abs(side[0])


def _is_kink(sides: Sides, tolerance: float, noise: float) -> bool:
    wide, narrow = (abs(sides.right[i] - sides.left[i]) for i in range(2))
    size = max(1.0, abs(sides.right[1]), abs(sides.left[1]))
    return narrow > 10 * tolerance * size + noise and narrow > 0.5 * wide
