#!/usr/bin/env python3
"""InferenceSession beside stock onnxruntime on the workloads of peers/, at batch 1 and 32.

    .venv/bin/python benchmarks/inference.py                     # w3 to w8, 1 and 2 threads
    .venv/bin/python benchmarks/inference.py --workloads w5_resnet18 --threads 1 --check

Both take turns in one process, on the same file and arrays; the shortest of many calls of `run`
counts. Batch normalisation is in inference mode, as in exported models. `--check` fails if onnxgrad
is more than 10 % slower anywhere, or if results differ by more than 1e-4 of the largest.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import catalogue
import environments
import onnx
import onnxruntime
import report
import result_files
import workloads

import onnxgrad as og

LARGE = [name for name in workloads.WORKLOADS if name[:2] not in ("w1", "w2")]
BATCHES = (1, 32)
# At first the caches have been filled by the other one, whose threads may still wait actively.
TURN_S = 0.1


def inference_model(path: pathlib.Path) -> bytes:
    """The file with batch normalisation in inference mode."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            kept = [item for item in node.attribute if item.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend(kept)
    return model.SerializeToString()


def rows(folder: pathlib.Path, name: str, batch: int) -> np.ndarray:
    inputs, _ = workloads.load_data(folder, name)
    return np.ascontiguousarray(np.resize(inputs, (batch, *inputs.shape[1:])))


def compare(model: bytes, inputs: np.ndarray, threads: int, budget_s: float) -> tuple[float, ...]:
    """Shortest times of onnxgrad and onnxruntime in seconds; largest relative difference."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    sessions = [
        og.InferenceSession(model, threads=threads),
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]),
    ]
    feeds = {"X": inputs}
    ours, theirs = (session.run(None, feeds)[0] for session in sessions)
    best = [float("inf")] * 2
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end:
        for index, session in enumerate(sessions):
            turn_end, calls = time.perf_counter() + TURN_S, 0
            while calls < 3 or time.perf_counter() < turn_end:
                start = time.perf_counter()
                session.run(None, feeds)
                best[index] = min(best[index], time.perf_counter() - start)
                calls += 1
    return best[0], best[1], float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(LARGE), help="list; default: w3 to w8")
    parser.add_argument("--threads", default="1,2", help="list; default 1,2")
    parser.add_argument("--budget", type=float, default=3, help="seconds per comparison")
    parser.add_argument("--work", type=pathlib.Path, default=environments.DEFAULT_CACHE)
    parser.add_argument("--check", action="store_true")
    result_files.add_option(parser)
    options = parser.parse_args()
    names = catalogue.choose_workloads(options.workloads)
    folder = environments.Cache(options.work).models(names)
    head = ["workload", "batch", "threads", "onnxgrad", "onnxruntime", "ratio", "difference"]
    lines: list[list[str]] = []
    entries: list[result_files.Entry] = []
    failed = False
    for name in names:
        model = inference_model(folder / f"{name}.onnx")
        for batch in BATCHES:
            inputs = rows(folder, name, batch)
            for threads in map(int, options.threads.split(",")):
                ours, theirs, difference = compare(model, inputs, threads, options.budget)
                failed |= ours > 1.1 * theirs or difference > 1e-4
                lines.append([
                    name, str(batch), str(threads), f"{ours * 1e3:.3f} ms",
                    f"{theirs * 1e3:.3f} ms", f"{ours / theirs:.2f}", f"{difference:.0e}",
                ])  # fmt: skip
                print(*lines[-1], flush=True)
                benchmark = f"inference, {batch} row{'s' if batch > 1 else ''}"
                entries += [
                    result_files.timed(benchmark, name, system, threads, seconds)
                    for system, seconds in (("onnxgrad", ours), ("onnxruntime", theirs))
                ]
    print(report.markdown(head, lines))
    versions = {"onnxgrad": og.__version__, "onnxruntime": onnxruntime.__version__}
    result_files.add(options.results, entries, versions)
    return int(options.check and failed)


if __name__ == "__main__":
    sys.exit(main())
