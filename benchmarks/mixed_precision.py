"""Time of a step and memory of activations with each `precision=`, beside float32.

    .venv/bin/python benchmarks/mixed_precision.py                     # w3 to w8, 1 and 2 threads
    .venv/bin/python benchmarks/mixed_precision.py w3_mlp784

Workloads are those of benchmarks/peers. The precisions take turns; the shortest step counts.
"""

import argparse
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent / "peers"))
import models
import onnx
import peer_onnxgrad
import report
import result_files
import workloads

import onnxgrad as og

NAMES = [name for name in workloads.WORKLOADS if name[:2] not in ("w1", "w2", "w4")]
PRECISIONS = ("float32", "bf16", "fp16", "stored_bf16")


def measure(name, threads, seconds):
    workload = workloads.WORKLOADS[name]
    x, y = workloads.make_data(name)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        onnx.save(models.build(name)[0], path)
        sessions = {
            precision: og.TrainingSession(
                str(path),
                peer_onnxgrad.make_loss(workload),
                peer_onnxgrad.make_optimizer(workload.optimizer),
                precision=precision,
                threads=threads,
            )
            for precision in PRECISIONS
        }
    times = {precision: [] for precision in PRECISIONS}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times["fp16"]) < 4:
        for precision, session in sessions.items():
            feeds = {"X": x[: workload.batch], session.target_name: y[: workload.batch]}
            start = time.perf_counter()
            session.step(feeds)
            times[precision].append(time.perf_counter() - start)
    best = {precision: min(found) for precision, found in times.items()}
    sizes = {name: s.memory().activations / 1e6 for name, s in sessions.items()}
    row = [
        name,
        str(threads),
        report.duration(best["float32"]),
        *(f"{best[precision] / best['float32']:.2f}" for precision in PRECISIONS[1:]),
        ", ".join(f"{size:.3g}" for size in sizes.values()),
    ]
    return row, entries_of(name, threads, best, sizes)


def entries_of(name, threads, best, sizes):
    """Return the step in float32, the others relative to it, and the sizes of activations."""
    entries = [result_files.timed("precision", name, "float32", threads, best["float32"])]
    for precision in PRECISIONS[1:]:
        ratio = round(best[precision] / best["float32"], 2)
        entries.append(
            result_files.Entry("precision", name, precision, threads, ratio, "x float32")
        )
    for precision, size in sizes.items():
        size = result_files.rounded(size, 3)
        entries.append(result_files.Entry("activations", name, precision, threads, size, "MB"))
    return entries


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=4.0)
    result_files.add_option(parser)
    options = parser.parse_args()
    rows, entries = [], []
    for name in options.names:
        for threads in map(int, options.threads.split(",")):
            row, found = measure(name, threads, options.seconds)
            rows.append(row)
            entries += found
            print(*rows[-1], flush=True)
    head = ["workload", "threads", *PRECISIONS]
    print(report.markdown([*head, f"activations, MB: {', '.join(PRECISIONS)}"], rows))
    result_files.add(options.results, entries, {"onnxgrad": og.__version__})


if __name__ == "__main__":
    main()
