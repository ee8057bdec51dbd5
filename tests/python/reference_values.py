"""Comparison with stored values by the rule of tests/data/models/README.md."""

from collections.abc import Mapping

import numpy as np


def part(batch: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names start with `prefix`, by the rest of their names."""
    return {key[len(prefix) :]: value for key, value in batch.items() if key.startswith(prefix)}


def assert_close(got: np.ndarray, want: np.ndarray, tolerance: float, floor: float) -> None:
    """`|got - want| <= tolerance * max(largest |want|, floor)` for every element."""
    assert got.shape == want.shape
    bound = tolerance * max(np.abs(want).max(initial=0), floor)
    assert np.abs(got - want).max(initial=0) <= bound


def check_gradients(
    got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], tolerance: float
) -> None:
    largest = max(np.abs(value).max(initial=0) for value in want.values())
    for name, value in want.items():
        assert_close(got[name], value, tolerance, 0.02 * largest)
