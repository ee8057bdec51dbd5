"""Slopes of functions along a line beside right and wrong ones, without models."""

from collections.abc import Callable

import numpy as np
import pytest

from onnxgrad.gradient_checks.lines import DOUBLE, SINGLE, Line, judge


def through_float32(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda t: float(np.float32(function(float(np.float32(t)))))


# Function, its slope at 0, and what a slope that is 1 % larger is.
SMOOTH = {
    "line": (lambda t: 3 * t + 1, 3.0),
    "bent": (lambda t: np.exp(5 * t), 5.0),
    "small": (lambda t: 1e-7 * np.sin(t) + 1, 1e-7),
    "large": (lambda t: 1e6 * (1 + t), 1e6),
    "steep_and_flat_beyond": (lambda t: np.tanh(3e3 * t), 3e3),
    "kink_nearby": (lambda t: 2 * t + max(t - 3e-7, 0), 2.0),
    "jump_nearby": (lambda t: 2 * t + (t > 4e-6), 2.0),
    "float32_inside": (through_float32(lambda t: np.sin(2 * t) + 3), 2.0),
    "vanished": (lambda t: 1e-30 * t + 1, 1e-30),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_right_and_wrong_slopes(name: str) -> None:
    function, slope = SMOOTH[name]
    line = Line(lambda t: np.array([function(t)]), DOUBLE)
    assert judge(line, slope, 0.0).verdict == "right"
    if name != "vanished":
        for factor in (1.01, 0.99, -1.0, 0.0):
            assert judge(line, slope * factor, 0.0).verdict == "wrong", factor


def test_slopes_in_float32() -> None:
    function = through_float32(lambda t: np.exp(t / 2) + 4)
    line = Line(lambda t: np.array([function(t)]), SINGLE)
    assert judge(line, 0.5, 0.0).verdict == "right"
    assert judge(line, 0.51, 0.0).verdict == "wrong"
    chosen = Line(lambda t: np.array([function(t)]), SINGLE._replace(tolerance=0.1))
    assert judge(chosen, 0.51, 0.0).verdict == "right"


KINKS = {
    "between": (lambda t: [abs(t)], 0.3, "between"),
    "outside": (lambda t: [abs(t)], 1.5, "kink"),
    "each_term": (lambda t: [max(t, 0), 2 * min(t, 0)], 0.0, "between"),
    "jump": (lambda t: [float(t >= 0)], 0.0, "between"),
    "jump_and_slope": (lambda t: [float(t > 0) + 2 * t], 2.0, "between"),
    "jumps": (lambda t: [float(t > 0) - float(t < 0)], 1.0, "kink"),
    "end": (lambda t: [np.sqrt(t) if t >= 0 else np.nan], np.inf, "right"),
    "corner": (lambda t: [3 * t if t >= 0 else np.nan], 3.0, "between"),
    "noise": (lambda t: [np.sin(1e20 * t)], 1.0, "kink"),
}


@pytest.mark.parametrize("name", KINKS)
def test_kinks_and_jumps(name: str) -> None:
    function, slope, verdict = KINKS[name]
    line = Line(lambda t: np.array(function(t), np.float64), DOUBLE)
    assert judge(line, slope, 0.0).verdict == verdict
