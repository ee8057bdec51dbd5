"""A training problem of 5560 weights, for optimizers here and in another library."""

import numpy as np

STEPS = 50
ROWS = 16
KEPT = (2, 10, 50)  # after these steps weights are kept
SHAPES = {"W0": (100, 50), "b0": (50,), "W1": (50, 10), "b1": (10,)}


def make_large_problem():
    """Return batches x [50, 16, 100], y [50, 16, 10] and the first weights, all float64.

    All are short binary fractions: the same numbers in float32.
    """
    rng = np.random.default_rng(21)

    def numbers(scale, *shape):
        return np.round(rng.normal(0, scale, shape) * 4096) / 4096

    x, y = numbers(1, STEPS, ROWS, 100), numbers(1, STEPS, ROWS, 10)
    return x, y, {name: numbers(0.1, *shape) for name, shape in SHAPES.items()}


def projected(weights):
    """Return every 29th element of each array and eight scaled sums with random signs: [n]
    numbers that show whether any element is wrong."""
    rng = np.random.default_rng(22)
    kept = []
    for name, shape in SHAPES.items():
        flat = np.asarray(weights[name], np.float64).ravel()
        signs = rng.choice([-1.0, 1.0], (8, np.prod(shape))) / np.sqrt(np.prod(shape))
        kept += [flat[::29], signs @ flat]
    return np.concatenate(kept)
