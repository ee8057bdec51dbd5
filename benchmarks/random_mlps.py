#!/usr/bin/env python3
"""The overhead of a step besides its arithmetic: ten MLPs of random sizes, on one thread.

    .venv/bin/python benchmarks/random_mlps.py            # prints the table
    .venv/bin/python benchmarks/random_mlps.py --check    # exit status 1 if the spread is over 30 %

No code may know a workload, so a plan's overhead has to be the same per kernel for any model. The
networks are tiny (one to five hidden layers of 2 to 8), so that overhead is most of a step. What is
left of arithmetic is taken out by measurement: each network is trained with batches of 4, 8, 16 and
32 rows. Its plan has the same kernels for each, and arithmetic grows with the rows, so

    time of a step (batch) = overhead + slope * batch

is fitted by least squares, and overhead / kernels is the cost of a kernel. (The update of the
weights does not grow with the rows; with at most 72 weights in a layer it is a few instructions.)

Columns: hidden widths; kernels in the plan; flops of a step with 32 rows (two per multiply-add of
the products, forward and backward); nanoseconds of a step at the smallest and the largest batch;
overhead; overhead per kernel; its distance from the median.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np
import onnx
import onnx.helper
from onnx import TensorProto, numpy_helper

import onnxgrad as og

BATCHES = (4, 8, 16, 32)
ROWS = 1024
LIMIT = 0.30


@dataclasses.dataclass
class Measurement:
    """One network: its sizes, the number of kernels, the nanoseconds of a step by batch."""

    sizes: tuple[int, ...]  # columns of X, hidden widths, outputs
    kernels: int
    step_ns: dict[int, float]

    @property
    def overhead_ns(self) -> float:
        """The step time that is left at zero rows."""
        _, overhead = np.polyfit(list(self.step_ns), list(self.step_ns.values()), 1)
        return float(overhead)

    @property
    def kernel_ns(self) -> float:
        return self.overhead_ns / self.kernels


def random_sizes(count: int, seed: int) -> list[tuple[int, ...]]:
    """`count` different lists of widths."""
    generator = np.random.default_rng(seed)
    found: list[tuple[int, ...]] = []
    while len(found) < count:
        depth = int(generator.integers(1, 6))
        sizes = (*(int(width) for width in generator.integers(2, 9, size=depth + 1)), 1)
        if sizes not in found:
            found.append(sizes)
    return found


def flops(sizes: tuple[int, ...], batch: int) -> int:
    """Operations of a step's products: outputs, weight gradients, later input gradients."""
    products = [fan_in * fan_out for fan_in, fan_out in itertools.pairwise(sizes)]
    return 2 * batch * (3 * sum(products) - products[0])


def write_model(path: pathlib.Path, sizes: tuple[int, ...], seed: int) -> None:
    """MatMul, Add and Relu per layer, as skl2onnx writes an MLPRegressor."""
    generator = np.random.default_rng(seed)
    nodes, initializers, value = [], [], "X"
    layers = list(itertools.pairwise(sizes))
    for layer, (fan_in, fan_out) in enumerate(layers):
        last = layer == len(layers) - 1
        weight = generator.uniform(-1, 1, (fan_in, fan_out)) / np.sqrt(fan_in)
        initializers += [
            numpy_helper.from_array(weight.astype(np.float32), f"W{layer}"),
            numpy_helper.from_array(np.zeros(fan_out, np.float32), f"B{layer}"),
        ]
        total = "Y" if last else f"add{layer}"
        nodes.append(onnx.helper.make_node("MatMul", [value, f"W{layer}"], [f"product{layer}"]))
        nodes.append(onnx.helper.make_node("Add", [f"product{layer}", f"B{layer}"], [total]))
        if not last:
            nodes.append(onnx.helper.make_node("Relu", [total], [f"relu{layer}"]))
            value = f"relu{layer}"
    value_info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "random_mlp",
        [value_info("X", TensorProto.FLOAT, ["N", sizes[0]])],
        [value_info("Y", TensorProto.FLOAT, ["N", sizes[-1]])],
        initializers,
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())


def step_time(
    model: pathlib.Path, sizes: tuple[int, ...], batch: int, steps: int, repeats: int
) -> tuple[int, float]:
    """Kernels in the plan, and nanoseconds of a step: the best of `repeats` trainings."""
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((ROWS, sizes[0]), dtype=np.float32)
    targets = generator.standard_normal((ROWS, sizes[-1]), dtype=np.float32)
    trainer = og.Trainer(
        str(model), loss="squared_error", optimizer=og.optimizers.SGD(1e-4), threads=1, seed=0
    )
    epochs = max(1, steps * batch // ROWS)
    settings = {"batch_size": batch, "shuffle": False, "verbose": 0}
    trainer.fit(inputs, targets, epochs=1, **settings)
    best = float("inf")
    for _ in range(repeats):
        trainer.reset()
        start = time.perf_counter()
        trainer.fit(inputs, targets, epochs=epochs, **settings)
        best = min(best, time.perf_counter() - start)
    kernels = int(trainer.session.plan_summary().split()[2])  # "plan of 11 kernels, arena ..."
    return kernels, best * 1e9 / (epochs * (ROWS // batch))


def measure(sizes: tuple[int, ...], folder: pathlib.Path, steps: int, repeats: int) -> Measurement:
    path = folder / ("mlp_" + "_".join(map(str, sizes)) + ".onnx")
    write_model(path, sizes, seed=1)
    found = {batch: step_time(path, sizes, batch, steps, repeats) for batch in BATCHES}
    counts = {kernels for kernels, _ in found.values()}
    if len(counts) != 1:
        raise SystemExit(f"random_mlps.py: the plans of {sizes} differ in kernels: {found}")
    return Measurement(
        sizes, counts.pop(), {batch: time_ns for batch, (_, time_ns) in found.items()}
    )


def table(measured: list[Measurement]) -> tuple[str, float]:
    """Text, and the largest relative distance of a cost per kernel from the median."""
    median = statistics.median(item.kernel_ns for item in measured)
    small, large = min(BATCHES), max(BATCHES)
    lines = [
        f"{'sizes':>22} {'kernels':>8} {'flops':>7} {f'ns, {small} rows':>11} "
        f"{f'ns, {large} rows':>11} {'overhead':>9} {'ns/kernel':>10} {'from median':>12}"
    ]
    for item in measured:
        distance = item.kernel_ns / median - 1
        lines.append(
            f"{'-'.join(map(str, item.sizes)):>22} {item.kernels:8d} "
            f"{flops(item.sizes, large):7d} {item.step_ns[small]:11.0f} "
            f"{item.step_ns[large]:11.0f} {item.overhead_ns:9.0f} {item.kernel_ns:10.1f} "
            f"{distance:+12.0%}"
        )
    spread = max(abs(item.kernel_ns / median - 1) for item in measured)
    lines.append(f"median {median:.1f} ns per kernel; largest distance from it {spread:.0%}")
    return "\n".join(lines), spread


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100_000, help="of a timed training")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--check", action="store_true", help=f"exit status 1 if the spread is over {LIMIT:.0%}"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = [
            measure(sizes, pathlib.Path(folder), options.steps, options.repeats)
            for sizes in random_sizes(options.models, options.seed)
        ]
    text, spread = table(measured)
    print(text)
    return 1 if options.check and spread > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
