#!/usr/bin/env python3
"""What an iteration of a Loop or a Scan costs besides the nodes of its body.

    .venv/bin/python benchmarks/iterations.py            # prints the table
    .venv/bin/python benchmarks/iterations.py --check    # fails if one costs more than 1 µs

A body is compiled once, so an iteration should cost little more than its kernels. The time of one
is the slope between 10 and 1010 iterations, of the fastest of many calls each, one thread. Bodies
have one or two nodes on 8 numbers, whose own time (some 10 to 20 ns each) is included: the figures
are upper bounds. With gradients, forward and backward pass count together.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser

import onnxgrad as og

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import result_files

LOOP = """<ir_version: 10, opset_import: ["" : 21]>
    repeat (float[8] x, int64 n) => (float[8] y) <bool go = {1}> {
        y = Loop (n, go, x) <body = step (int64 i, bool c, float[8] s) => (bool d, float[8] t) {
            d = Identity(c)  t = Sin(s)
        }>
    }"""
STOPPED = """<ir_version: 10, opset_import: ["" : 21]>
    repeat (float[8] x, int64 n) => (float[8] y, float[M, 8] all)
        <bool go = {1}, int64 many = {999999}> {
        y, all = Loop (many, go, x) <body = step (int64 i, bool c, float[8] s)
            => (bool d, float[8] t, float[8] u) {
            d = Less(i, n)  t = Sin(s)  u = Identity(t)
        }>
    }"""
SCAN = """<ir_version: 10, opset_import: ["" : 21]>
    repeat (float[8] x, float[N, 8] rows) => (float[8] y, float[N, 8] all) {
        y, all = Scan <num_scan_inputs = 1, body = step (float[8] s, float[8] row)
            => (float[8] t, float[8] u) { t = Add(s, row)  u = Mul(t, row) }> (x, rows)
    }"""
X = np.ones(8, np.float32)


def counted(n: int) -> dict[str, Any]:
    return {"x": X, "n": np.array(n)}


def rows(n: int) -> dict[str, Any]:
    return {"x": X, "rows": np.ones((n, 8), np.float32)}


def forward(text: str, feeds: Callable[[int], dict[str, Any]]) -> Callable[[int], Any]:
    session = og.InferenceSession(onnx.parser.parse_model(text), threads=1)

    def of(n: int) -> Callable[[], Any]:
        given = feeds(n)
        return lambda: session.run(None, given)

    return of


def both(text: str, feeds: Callable[[int], dict[str, Any]]) -> Callable[[int], Any]:
    layer = og.ForwardBackward(onnx.parser.parse_model(text), threads=1)

    def of(n: int) -> Callable[[], Any]:
        given = feeds(n)
        gradients = [np.ones_like(y) for y in layer.forward(given, training=False)]

        def run() -> None:
            layer.forward(given)
            layer.backward(gradients)

        return run

    return of


CASES = {
    "Loop, a given number of iterations": lambda: forward(LOOP, counted),
    "Loop, until a condition, outputs stacked": lambda: forward(STOPPED, counted),
    "Scan": lambda: forward(SCAN, rows),
    "Scan, with gradients": lambda: both(SCAN, rows),
}


def shortest(run: Callable[[], Any], calls: int) -> float:
    best = float("inf")
    for _ in range(calls):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail above 1 µs")
    result_files.add_option(parser)
    arguments = parser.parse_args()
    print("| iteration of | ns |")
    print("|---|---|")
    worst = 0.0
    entries = []
    for name, make in CASES.items():
        of = make()
        iteration = (shortest(of(1010), 300) - shortest(of(10), 300)) / 1000
        worst = max(worst, iteration)
        print(f"| {name} | {1e9 * iteration:.0f} |")
        entries.append(result_files.timed("iterations", name, "onnxgrad", 1, iteration))
    result_files.add(arguments.results, entries, {"onnxgrad": og.__version__})
    return 1 if arguments.check and worst > 1e-6 else 0


if __name__ == "__main__":
    sys.exit(main())
