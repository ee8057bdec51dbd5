"""The gradient of one input beside central differences; `check_gradients` and tests call it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from onnxgrad.base.models import to_core_model
from onnxgrad.errors import Error
from onnxgrad.gradient_checks.double import all_nodes, schema_of
from onnxgrad.gradient_checks.lines import (
    CONCLUSIVE,
    DOUBLE,
    SINGLE,
    Judged,
    Line,
    Precision,
    judge,
)
from onnxgrad.graphs.dependencies import subgraphs
from onnxgrad.graphs.gradients import core_gradient
from onnxgrad.sessions import InferenceSession

if TYPE_CHECKING:
    import onnx

__all__ = ["DOUBLE", "ELEMENTS", "SINGLE", "Finding", "Precision", "Slopes"]

Array: TypeAlias = "np.ndarray[Any, Any]"

ELEMENTS = 12  # elements of an input that are moved one by one; beyond, one direction moves all
_DIRECTIONS = 3  # directions that are tried until one crosses no kink
_PASSES_OVER = "the gradient passes over rounding"
_DOUBTS = 4  # doubtful elements that make an input wrong
_POINTS = 2  # beside the given one, where a gradient is compared again
# From the given point to these, for float64 and float32.
_ASIDE, _ASIDE_SINGLE = 2.0**-10, 2.0**-3


class Finding(NamedTuple):
    """The result of a comparison.

    Attributes
    ----------
    problem : str
        What is wrong with the gradient; empty if nothing is.
    error : float
        The largest difference between gradient and slope, relative to them; where rounding hides
        the slope, to the smallest that would be seen.
    checked : int
        Elements that were moved one by one.
    note : str
        Where differences do not tell, as at a kink; empty if they always do.
    """

    problem: str
    error: float
    checked: int
    note: str = ""


class _Tally:
    """The results so far: right ones, the first problem, and directions that told nothing."""

    def __init__(self) -> None:
        self.right = 0
        self.doubtful = 0
        self.worst = 0.0
        self.problem = ""
        self.aside: list[tuple[str, Array, str]] = []  # directions to compare beside the point
        self.kinks: list[str] = []

    def add(self, place: str, direction: Array, found: Judged) -> None:
        """Count a result."""
        if found.verdict in ("between", "kink"):
            text = found.text if found.verdict == "kink" else ""
            self.aside.append((place, direction, text))
            self.doubtful += found.is_doubtful
            return
        self.worst = max(self.worst, found.error)
        if found.verdict == "wrong":
            self.problem = f"{place}: {found.text}"
        else:
            self.right += 1

    def weigh(self, name: str) -> None:
        """Take many doubtful results for a wrong gradient: of right ones there are few."""
        if not self.problem and self.doubtful >= max(_DOUBTS, self.right / 2):
            self.problem = f"{name}: {self.doubtful} elements differ by more than differences may"
            self.worst = max(self.worst, CONCLUSIVE)


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
        tolerance: float | None = None,
        in_single: Collection[str] = (),
        rounded: Collection[str] = (),
        names: Iterable[str] = (),
        device: str | None = None,
    ) -> None:
        """Differences are those of `straight_through`, if it is given.

        `outputs` are projected (None: all); `samples` elements of each input are moved one by one
        (None: all); `seed` chooses them and the projection. On the inputs `in_single` depend
        operators that compute in float32, on those `rounded` ones that round and whose gradients
        pass over that. `names` are those that will be asked for.

        Raises onnxgrad.Error if the engine does not run the model.
        """
        self._model = to_core_model(model)
        self._feeds = dict(feeds)
        self._precision = precision
        self._samples = samples
        self._seed = seed
        self._stops = list(stop_gradient)
        self._tolerance = tolerance
        self._in_single = in_single
        self._rounded = rounded
        self._names = list(names)
        self._backward: dict[str, InferenceSession] = {}
        self._refusals: dict[str, str] = {}
        self._gradients: dict[str, Array] = {}
        self._is_random = _is_random(model)
        self._has_bodies = _has_bodies(model)
        self._device = device
        self._session = self._open(self._model)
        self._proto = model
        self._inner: tuple[InferenceSession, list[tuple[str, str]]] | None = None
        self._points: list[Slopes] = []
        self._outputs = outputs
        self._project()
        if straight_through is not None:
            self._session = self._open(straight_through)
            self._has_bodies = True

    def _project(self) -> None:
        names = [value.name for value in self._model.outputs]
        rng = np.random.default_rng(self._seed)
        first = dict(zip(names, self._session.run(None, self._feeds), strict=False))
        self._seeds = {
            name: np.where(np.isfinite(value), rng.uniform(0.5, 1.5, value.shape), 0.0)
            for name, value in first.items()
            if isinstance(value, np.ndarray)
            and value.dtype == self._precision.dtype
            and (self._outputs is None or name in self._outputs)
        }
        self.has_outputs = bool(self._seeds)  # outputs that may have a gradient
        self.undefined = [name for name in self._seeds if np.isnan(first[name]).any()]
        self.num_terms = sum(int(np.count_nonzero(seed)) for seed in self._seeds.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input."""
        shape: tuple[int, ...] = np.shape(self._feeds[name])
        return shape

    def refusal(self, name: str) -> str:
        """Return why there is no gradient by input `name`; "" if there is."""
        if name not in self._backward and name not in self._refusals:
            try:
                self._prepare(name)
                self._gradient(name)
            except Error as error:
                self._refusals[name] = str(error).splitlines()[0]
        return self._refusals.get(name, "")

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
        rng = np.random.default_rng(self._seed + 1)
        order = rng.permutation(point.size)
        wanted = point.size if self._samples is None else min(self._samples, point.size)
        unusual = np.flatnonzero(np.isinf(given))[: self._samples]
        tally = _Tally()
        # An element at a kink is replaced by another, a few times.
        for element in order[: 2 * wanted + ELEMENTS]:
            if tally.right >= wanted:
                break
            self._compare(name, *_element(name, point.shape, element), given, tally)
        for element in unusual:
            self._compare(name, *_element(name, point.shape, element), given, tally)
        tally.weigh(name)
        self._compare_aside(name, wanted - tally.right, tally)
        checked = min(wanted, tally.right)
        if point.size > wanted and not unusual.size and not tally.problem:
            tally.aside, tally.right = [], 0
            for _ in range(_DIRECTIONS):
                direction = rng.choice([-1.0, 1.0], point.shape)
                self._compare(name, f"{name}, all elements", direction, given, tally)
                if tally.right:
                    break
            self._compare_aside(name, 1 - tally.right, tally)
        return Finding(tally.problem, tally.worst, checked, _note(tally.kinks))

    def _compare(
        self, name: str, place: str, direction: Array, given: Array, tally: _Tally
    ) -> None:
        if not tally.problem:
            tally.add(place, direction, self._judge(name, direction, given))

    def _compare_aside(self, name: str, count: int, tally: _Tally) -> None:
        """Compare at points without the kinks of this one, in directions that cross them."""
        for place, direction, text in tally.aside if not tally.problem else ():
            found = Judged("kink", text, 0.0)
            if count > 0 and name not in self._rounded:
                found = self._judge_aside(name, direction)
            if found.verdict == "right":
                tally.right += 1
                count -= 1
                tally.worst = max(tally.worst, found.error)
            elif found.verdict == "wrong":
                tally.problem = f"{place}, beside the point: {found.text}"
                tally.worst = max(tally.worst, found.error)
                return
            elif text:
                tally.kinks.append(f"{place}: {text}")

    def _judge_aside(self, name: str, direction: Array) -> Judged:
        """Compare the gradient beside the point; it is wrong if it is so at all points there."""
        found = Judged("kink", "", 0.0)
        for other in self._points_aside():
            try:
                found = other._judge_here(name, direction, other._gradient(name))
            except Error:
                return Judged("kink", "", 0.0)
            if found.verdict != "wrong":
                return found
        return found

    def _gradient(self, name: str) -> Array:
        if name in self._gradients:
            return self._gradients[name]
        if name not in self._backward:
            self._prepare(name)
        session = self._backward[name]
        inputs = [value.name for value in session.get_inputs()]
        fed = self._backward_feeds()
        found: Array = session.run([f"{name}_grad"], {key: fed[key] for key in inputs})[0]
        self._gradients[name] = found.astype(np.float64)
        return self._gradients[name]

    def _backward_feeds(self) -> dict[str, Any]:
        dtype = self._precision.dtype
        return self._feeds | {
            f"{key}_grad": seed.astype(dtype) for key, seed in self._seeds.items()
        }

    def _prepare(self, name: str) -> None:
        """Make the gradient by all names; by this one only if that of some is refused."""
        others = [other for other in self._names if other != name]
        try:
            session = self._backward_session([name, *others])
        except Error:
            if not others:
                raise
            self._names = []
            others = []
            session = self._backward_session([name])
        self._backward |= dict.fromkeys([name, *others], session)

    def _backward_session(self, names: list[str]) -> InferenceSession:
        model, _ = core_gradient(
            self._model,
            names,
            list(self._seeds),
            keep_outputs=self._is_random,
            stop_gradient=self._stops,
        )
        return self._open(model)

    def _open(self, model: Any) -> InferenceSession:
        return InferenceSession(model, device=self._device, threads=1)

    def _run(self, name: str, value: Array) -> list[Any]:
        """Return the outputs where input `name` has another value."""
        session, fed = self._session, self._feeds
        if self._is_random:  # another graph draws other numbers: differences are of this one
            session, fed = self._backward[name], self._backward_feeds()
            fed = {key.name: fed[key.name] for key in session.get_inputs()}
        return session.run(list(self._seeds), {**fed, name: value})

    def _terms(self, name: str, value: Array) -> Array:
        """Return the terms of the projection; NaN where the outputs have another shape."""
        dtype = self._precision.dtype
        try:
            outputs = self._run(name, value.astype(dtype))
        except Error:  # no value there: a size, an index that is out of range
            return np.full(self.num_terms, np.nan)
        terms = [
            seed[seed != 0] * output[seed != 0].astype(np.float64)
            if output.shape == seed.shape
            else np.full(np.count_nonzero(seed), np.nan)
            for output, seed in zip(outputs, self._seeds.values(), strict=True)
        ]
        return np.concatenate(terms)

    def _line(self, name: str, direction: Array) -> Line:
        point = self._feeds[name].astype(np.float64)
        is_single = name in self._in_single
        precision = SINGLE if is_single else self._precision
        if self._tolerance is not None:
            precision = precision._replace(tolerance=self._tolerance)
        return Line(lambda place: self._terms(name, point + place * direction), precision)

    def _judge(self, name: str, direction: Array, given: Array) -> Judged:
        found = self._judge_here(name, direction, given)
        if name in self._rounded and (found.verdict == "wrong" or found.is_doubtful):
            return Judged("kink", _PASSES_OVER, 0.0)
        if found.verdict != "wrong" or not (kink := self._hidden_kink(name, direction)):
            return found
        # Values inside may have kinks that cancel in the outputs, as x = Relu(x) - Relu(-x) at 0:
        # beside the point there are none.
        aside = self._judge_aside(name, direction).verdict
        if aside == "wrong":
            return found
        return Judged("kink", kink, 0.0, is_doubtful=aside == "kink")

    def _judge_here(self, name: str, direction: Array, given: Array) -> Judged:
        point, moved = self._feeds[name].astype(np.float64), direction != 0
        largest = float(np.max(np.abs(point[moved]), initial=0))
        if not np.isfinite(largest):
            return Judged("kink", "the point is not finite", 0.0)
        slope = float(np.sum(given[moved] * direction[moved]))
        return judge(self._line(name, direction), slope, largest)

    def _points_aside(self) -> Iterator[Slopes]:
        """Yield the same model at other points near this one."""
        for i in range(_POINTS):
            if i == len(self._points):
                rng = np.random.default_rng((self._seed, i, 1))
                other = copy.copy(self)
                is_single = bool(self._in_single) or self._precision.eps == SINGLE.eps
                distance = _ASIDE_SINGLE if is_single else _ASIDE
                other._feeds = {
                    name: _aside(value, distance, rng) for name, value in self._feeds.items()
                }
                other._gradients = {}
                other._project()
                self._points.append(other)
            yield self._points[i]

    def _hidden_kink(self, name: str, direction: Array) -> str:
        """Return which value of the graph has a kink or jump at the point in a direction; or "".

        Values in bodies and functions are not seen.
        """
        hidden = "perhaps a kink in a subgraph or function" if self._has_bodies else ""
        if name in self._in_single or self._precision.eps == SINGLE.eps or self._is_random:
            return "perhaps a kink"
        try:
            session, values = self._inner_values()
        except Error:
            return "perhaps a kink"
        point = self._feeds[name].astype(np.float64)
        runs = {
            place: session.run(None, {**self._feeds, name: point + place * direction})
            for place in (0.0, *(sign * step for step in _INNER_STEPS for sign in (1, -1)))
        }
        for i, (value, operator) in enumerate(values):
            if _has_kink({place: outputs[i] for place, outputs in runs.items()}):
                return f"a kink of {operator} '{value}'"
        return hidden

    def _inner_values(self) -> tuple[InferenceSession, list[tuple[str, str]]]:
        if self._inner is None:
            import onnx

            values = [
                (name, node.op_type)
                for node in self._proto.graph.node
                for name in node.output
                if name
            ]
            shown = onnx.ModelProto()
            shown.CopyFrom(self._proto)
            del shown.graph.output[:]
            shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name, _ in values)
            self._inner = self._open(shown), values
        return self._inner


_INNER_STEPS = (2.0**-18, 2.0**-22)


def _has_kink(values: Mapping[float, Any]) -> bool:
    """Return whether the second difference of some element does not shrink with the step."""
    here = values[0.0]
    if not isinstance(here, np.ndarray) or here.dtype.kind not in "fb":
        return False
    if any(value.shape != here.shape for value in values.values()):
        return True
    if here.dtype.kind == "b":
        return any((value != here).any() for value in values.values())
    sizes = []
    with np.errstate(all="ignore"):
        for step in _INNER_STEPS:
            bend = np.abs(values[step] - here - (here - values[-step])) / step
            rounding = 64 * np.finfo(here.dtype).eps * np.abs(here) / step
            sizes.append(np.where(bend > 1e-6 + rounding, bend, 0.0))
        return bool(np.any((sizes[1] > 0.5 * sizes[0]) & (sizes[1] > 0)))


def _aside(value: Any, distance: float, rng: np.random.Generator) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    sizes = np.where(np.isfinite(value), np.maximum(np.abs(value), 1.0), 0.0)
    moved = value + distance * sizes * rng.normal(size=value.shape)
    return moved.astype(value.dtype)


def _element(name: str, shape: tuple[int, ...], element: int) -> tuple[str, Array]:
    """Return the name of an element, and the direction that moves it alone."""
    direction = np.zeros(shape)
    place = np.unravel_index(element, shape)
    direction[place] = 1
    return f"{name}{[int(i) for i in place]}", direction


def _note(kinks: Sequence[str]) -> str:
    if not kinks:
        return ""
    others = f", and {len(kinks) - 1} more" if len(kinks) > 1 else ""
    return f"not compared: {kinks[0]}{others}"


def _is_random(model: onnx.ModelProto) -> bool:
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    return any("seed" in schema_of(node, opsets).attributes for node in all_nodes(model))


def _has_bodies(model: onnx.ModelProto) -> bool:
    return bool(model.functions) or any(True for node in model.graph.node for _ in subgraphs(node))
