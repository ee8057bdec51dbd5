#!/usr/bin/env python3
"""Time of a network's training step in float16 or bfloat16, beside the one in float32.

    .venv/bin/python benchmarks/half_precision.py            # prints the table

Networks with Relu, softmax cross-entropy and SGD, one thread, `TrainingSession.step` from Python.
The models store numbers as halves and compute in float32: a step in such a type has the same
products, and conversions besides. The types take turns, so that a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.helper
from onnx import numpy_helper

import onnxgrad as og

TYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# Layer sizes, rows of a batch, steps in a round.
NETWORKS = {
    "100-50-10": ((100, 50, 10), 15, 400),
    "784-512-512-10": ((784, 512, 512, 10), 128, 20),
}
ROUNDS = 15


def network(sizes: tuple[int, ...], dtype: Any) -> onnx.ModelProto:
    """Return a multi-layer perceptron with input x and scores y."""
    rng = np.random.default_rng(0)
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, weights, value = [], [], "x"
    for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        w = rng.normal(0, rows**-0.5, (rows, columns)).astype(dtype)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        weights.append(numpy_helper.from_array(np.zeros(columns, dtype), f"b{i}"))
        nodes.append(onnx.helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [f"a{i}"]))
        nodes.append(onnx.helper.make_node("Identity" if last else "Relu", [f"a{i}"], [f"h{i}"]))
        value = f"h{i}"
    nodes[-1].output[0] = "y"
    graph = onnx.helper.make_graph(
        nodes,
        "mlp",
        [onnx.helper.make_tensor_value_info("x", element, ["N", sizes[0]])],
        [onnx.helper.make_tensor_value_info("y", element, ["N", sizes[-1]])],
        weights,
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10
    )


def step_times(sizes: tuple[int, ...], rows: int, steps: int) -> dict[str, float]:
    """Return the shortest mean step of a round, in microseconds, for each type."""
    rng = np.random.default_rng(1)
    x, label = rng.normal(size=(rows, sizes[0])), rng.integers(0, sizes[-1], rows)
    sessions = {
        name: og.TrainingSession(network(sizes, dtype), "softmax_cross_entropy", "sgd", threads=1)
        for name, dtype in TYPES.items()
    }
    best = dict.fromkeys(TYPES, float("inf"))
    for _ in range(ROUNDS):
        for name, session in sessions.items():
            feeds = {"x": x.astype(TYPES[name]), "label": label}
            session.step(feeds)
            start = time.perf_counter()
            for _ in range(steps):
                session.step(feeds)
            best[name] = min(best[name], 1e6 * (time.perf_counter() - start) / steps)
    return best


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print("| network | batch | float32 | float16 | ratio | bfloat16 | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, (sizes, rows, steps) in NETWORKS.items():
        times = step_times(sizes, rows, steps)
        single = times["float32"]
        halves = [
            text
            for half in ("float16", "bfloat16")
            for text in (f"{times[half]:.1f} µs", f"{times[half] / single:.2f}")
        ]
        print(f"| {name} | {rows} | {single:.1f} µs | {' | '.join(halves)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
