#!/usr/bin/env python3
"""The cost of a step after a branch or a data-dependent shape: new labels against the same ones.

    .venv/bin/python benchmarks/dynamic_shapes.py            # prints the table
    .venv/bin/python benchmarks/dynamic_shapes.py --check    # exit status 1 if labels make plans

A classifier 3-8-3 with softmax cross-entropy and SGD, batches of 32 rows, one thread,
`TrainingSession.step` from Python: a plain network, one with an If before its loss, and one with a
NonZero. What comes behind those is compiled for the shapes that a batch has, and not for its
labels; so fresh labels must cost what the same ones cost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np
import onnx.parser

import onnxgrad as og

STEPS = 2000
ROWS = 32
LIMIT = 1.5

MIDDLES = {
    "plain": "h = Relu(h0)",
    "If": """s = ReduceSum<keepdims = 0>(x)  c = Greater(s, none)
      h = If (c) <then_branch = t () => (float[N, 8] ht) { ht = Relu(h0) },
                  else_branch = e () => (float[N, 8] he) { he = Tanh(h0) }>""",
    "NonZero": """f = ReduceMax<keepdims = 0>(x, last)  kept = Greater(f, low)
      where = NonZero(kept)  rows = Gather(where, zero)  g = Gather(h0, rows)  h = Relu(g)""",
}


def network(middle: str) -> onnx.ModelProto:
    """Return the classifier with these nodes in the middle, from h0 to h."""
    rng = np.random.default_rng(0)
    w0, w1 = (", ".join(f"{v:.4f}" for v in rng.normal(size=24)) for _ in range(2))
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        classifier (float[N, 3] x) => (float[M, 3] y)
        <float[3, 8] w0 = {{{w0}}}, float[8, 3] w1 = {{{w1}}}, float none = {{0}},
         float low = {{-1e30}}, int64[1] last = {{-1}}, int64 zero = {{0}}>
        {{ h0 = MatMul(x, w0)  {middle}  y = MatMul(h, w1) }}"""
    )


def step_us(middle: str, fresh: bool) -> tuple[float, int]:
    """Return the median step in microseconds and the number of plans."""
    rng = np.random.default_rng(1)
    session = og.TrainingSession(network(middle), "softmax_cross_entropy", "sgd", threads=1)
    x = rng.uniform(0, 1, (ROWS, 3)).astype(np.float32)
    labels = rng.integers(0, 3, (STEPS, ROWS))
    times = []
    for i in range(STEPS):
        feeds = {"x": x, "label": labels[i if fresh else 0]}
        start = time.perf_counter()
        session.step(feeds)
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times), session.num_compiled


def main() -> int:
    """Print the table; with --check, report missed goals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    print("| before the loss | same labels | fresh labels | plans |\n|---|---|---|---|")
    misses = []
    for name, middle in MIDDLES.items():
        same, _ = step_us(middle, fresh=False)
        fresh, plans = step_us(middle, fresh=True)
        print(f"| {name} | {same:.1f} µs | {fresh:.1f} µs | {plans} |")
        if fresh > LIMIT * same:
            misses.append(f"{name}: fresh labels take {fresh / same:.1f} times as long")
    for miss in misses:
        print(miss, file=sys.stderr)
    return 1 if arguments.check and misses else 0


if __name__ == "__main__":
    sys.exit(main())
