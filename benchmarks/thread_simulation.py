#!/usr/bin/env python3
"""Training steps on 8 to 64 threads, as onnxgrad_thread_simulation foresees them on one.

    cmake --preset bench && cmake --build --preset bench --target onnxgrad_thread_simulation
    .venv/bin/python benchmarks/thread_simulation.py
    .venv/bin/python benchmarks/thread_simulation.py --workloads w5_resnet18 --threads 16

Efficiency is the speed-up over one thread, divided by the threads. Limits of memory bandwidth and
of the clock are not in it (thread_simulation.cpp): a machine with so many cores is slower.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import onnxgrad as og

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import report
import result_files
import workloads

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Classes of the labels: outputs of a model's last axis, of which a transformer without a
# vocabulary of its own has two.
CLASSES = {"w6_bert_tiny": 2, "w6_bert_base_layer": 2}
WORKLOADS = ["w3_mlp784", "w4_cnn", "w5_resnet18", *CLASSES, "w7_causal_lm", "w8_mobilenetv2"]
THREADS = [8, 16, 32, 64]


def simulate(binary: pathlib.Path, model: pathlib.Path, threads: list[int]) -> dict[int, float]:
    """Return the seconds of a step by the number of threads, of 1 too."""
    workload = workloads.WORKLOADS[model.stem]
    classes = CLASSES.get(model.stem, workload.outputs)
    command = [str(word) for word in (binary, model, workload.batch, classes, *threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    alone = re.search(r"^one thread: (\d+) us", done.stdout)
    if alone is None:
        raise ValueError(f"{binary} printed {done.stdout!r}")
    steps = {1: int(alone[1]) * 1e-6}
    for count, step in re.findall(r"^ *(\d+) +(\d+) +[\d.]+ +\d+%", done.stdout, re.MULTILINE):
        steps[int(count)] = int(step) * 1e-6
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--threads", nargs="+", type=int, default=THREADS)
    parser.add_argument(
        "--binary",
        type=pathlib.Path,
        default=ROOT / "build/bench/benchmarks/onnxgrad_thread_simulation",
    )
    result_files.add_option(parser)
    arguments = parser.parse_args()
    entries = []
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        workloads.generate(pathlib.Path(folder), arguments.workloads)
        for name in arguments.workloads:
            model = pathlib.Path(folder) / f"{name}.onnx"
            steps = simulate(arguments.binary, model, arguments.threads)
            counts = [count for count in steps if count > 1]
            rows.append([name, *(f"{steps[1] / steps[n] / n:.0%}" for n in counts)])
            entries += [
                result_files.timed("threads, simulated", name, "onnxgrad", n, seconds)
                for n, seconds in steps.items()
            ]
    print(report.markdown(["workload", *(f"{n} threads" for n in arguments.threads)], rows))
    result_files.add(arguments.results, entries, {"onnxgrad": og.__version__})
    return 0


if __name__ == "__main__":
    sys.exit(main())
