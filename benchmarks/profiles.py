#!/usr/bin/env python3
"""Where a training step's time goes: the kernels of each workload of peers/, by what they compute.

    .venv/bin/python benchmarks/profiles.py                          # w1 to w8, 1 and 2 threads
    .venv/bin/python benchmarks/profiles.py --workloads w5_resnet18

`TrainingSession.profiling` times every kernel of `Trainer.fit`; of several fits the shortest time
of each kernel counts, and the shortest whole step without profiling stands beside their sum.
GFLOP/s count the operations of the definition, so that Winograd's algorithm can exceed what the
processor has.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

import catalogue  # noqa: E402
import environments  # noqa: E402
import peer_onnxgrad  # noqa: E402
import report  # noqa: E402
import worker  # noqa: E402
import workloads  # noqa: E402

OTHER = 0.01  # kinds below this share of a step are one row
Kinds = dict[str, tuple[float, float]]  # kind of kernel: seconds and operations per step


def kind_of(op_type: str, kernel: str) -> str:
    """The row of a kernel, from its operator and its implementation."""
    if op_type.startswith(("GemmWeightUpdate", "GemmUpdate")):
        return "weight gradients of products, with updates"
    if op_type in ("Gemm", "MatMul"):
        return "products"
    if op_type == "LinearStep":
        return "the step of a linear model"
    if op_type.startswith("Attention"):
        return "attention" if op_type == "Attention" else "attention, gradient"
    if op_type == "ConvChain":
        return "convolutions, forward, in chains"
    passes = {"Conv": "forward", "ConvTranspose": "input gradient"}
    if op_type in passes or op_type.startswith(("ConvWeight", "ConvDescent")):
        ways = {"winograd": "Winograd", "depthwise": "depthwise"}
        way = next((ways[name] for name in ways if kernel.startswith(name)), "others")
        return f"convolutions, {passes.get(op_type, 'weight gradient')}, {way}"
    if op_type.startswith(("BatchNormalization", "LayerNormalization")):
        return "normalizations and what is fused with them"
    if op_type.startswith(("MaxPool", "AveragePool", "GlobalAveragePool")):
        return "pooling"
    if op_type.startswith("SoftmaxCrossEntropyLoss"):
        return "cross-entropy"
    if op_type.startswith(("Gather", "ScatterWeightUpdate", "ScatterDescent")):
        return "embeddings"
    if op_type.startswith("WeightUpdate"):
        return "updates of weights"
    if op_type == "Activation":
        return "GELU with its slope"
    return "element-wise work and sums" if op_type == "Elementwise" else "other kernels"


def measure(task: worker.Task, budget: float) -> tuple[Kinds, float]:
    """Seconds and operations of each kind in a step; the shortest whole step, in seconds."""
    workload = task.workload
    peer = peer_onnxgrad.Peer(task)
    peer.first()
    whole, best, flops = float("inf"), {}, {}
    end, rounds = time.perf_counter() + budget, 0
    while rounds < 2 or time.perf_counter() < end:
        peer.reset()
        start = time.perf_counter()
        peer.run()
        whole = min(whole, (time.perf_counter() - start) / workload.steps)
        peer.reset()
        with peer.trainer.session.profiling() as profile:
            peer.run()
        for kernel in profile.kernels:
            key = (kernel.op_type, kernel.node, kernel.kernel)
            seconds = kernel.total_s / workload.steps
            best[key] = min(best.get(key, seconds), seconds)
            flops[key] = kernel.flops * kernel.calls / workload.steps
        rounds += 1
    kinds: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for key, seconds in best.items():
        row = kinds[kind_of(key[0], key[2])]
        row[0] += seconds
        row[1] += flops[key]
    return {kind: (seconds, work) for kind, (seconds, work) in kinds.items()}, whole


def table(name: str, measured: dict[int, tuple[Kinds, float]]) -> str:
    """Rows by kind, slowest first; those that are short at every thread count are one row."""
    counts = sorted(measured)
    totals = {n: sum(seconds for seconds, _ in measured[n][0].values()) for n in counts}
    kinds = sorted(measured[counts[0]][0], key=lambda k: -measured[counts[0]][0][k][0])
    small = [
        kind
        for kind in kinds
        if all(measured[n][0].get(kind, (0, 0))[0] < OTHER * totals[n] for n in counts)
    ]

    def cells(of: list[str]) -> list[str]:
        row = []
        for n in counts:
            seconds = sum(measured[n][0].get(kind, (0.0, 0.0))[0] for kind in of)
            work = sum(measured[n][0].get(kind, (0.0, 0.0))[1] for kind in of)
            products = of[0].startswith(("products", "weight g", "convol", "attention"))
            rate = f"{work / seconds * 1e-9:.0f}" if products and seconds else ""
            row += [report.duration(seconds), f"{seconds / totals[n]:.0%}", rate]
        return row

    lines = [
        "| kernels | " + " | ".join(f"{n}T | share | GFLOP/s" for n in counts) + " |",
        "|" + "---|" * (1 + 3 * len(counts)),
    ]
    rows = [(kind, cells([kind])) for kind in kinds if kind not in small]
    if small:
        rows.append(("the rest", cells(small)))
    lines += ["| " + " | ".join([kind, *row]) + " |" for kind, row in rows]
    sums = [[report.duration(totals[n]), "", ""] for n in counts]
    whole = [[report.duration(measured[n][1]), "", ""] for n in counts]
    for title, found in (("all kernels", sums), ("a whole step, not profiled", whole)):
        lines.append("| " + " | ".join([title, *(cell for row in found for cell in row)]) + " |")
    return f"### {name}\n\n" + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workloads", default="all", help="list; default: all")
    parser.add_argument("--threads", default="1,2", help="list; default 1,2")
    parser.add_argument("--system", default="onnxgrad", help="or onnxgrad-bf16")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds for each measurement")
    parser.add_argument("--work", type=pathlib.Path, default=environments.DEFAULT_CACHE)
    options = parser.parse_args()
    names = catalogue.choose_workloads(options.workloads)
    folder = environments.Cache(options.work).models(names)
    tables = []
    for name in names:
        inputs, targets = workloads.load_data(folder, name)
        measured = {
            threads: measure(
                worker.Task(options.system, name, threads, folder, inputs, targets), options.budget
            )
            for threads in map(int, options.threads.split(","))
        }
        tables.append(table(name, measured))
        print(tables[-1] + "\n", flush=True)


if __name__ == "__main__":
    main()
