"""Time of a step and memory of activations with each `precision=`, beside float32.

    .venv/bin/python benchmarks/mixed_precision.py                     # w3 to w8, 1 and 2 threads
    .venv/bin/python benchmarks/mixed_precision.py w3_mlp784 --docs docs/benchmarks.md

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
import workloads

import onnxgrad as og

NAMES = [name for name in workloads.WORKLOADS if name[:2] not in ("w1", "w2", "w4")]
PRECISIONS = ("float32", "bf16", "fp16")


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
    activations = [f"{s.memory().activations / 1e6:.3g}" for s in sessions.values()]
    return [
        name,
        str(threads),
        report.duration(best["float32"]),
        *(f"{best[precision] / best['float32']:.2f}" for precision in PRECISIONS[1:]),
        ", ".join(activations),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--docs", type=pathlib.Path, help="put the table into this Markdown file")
    parser.add_argument("--mark", default="", help="there, after the table's name: a machine's")
    options = parser.parse_args()
    rows = []
    for name in options.names:
        for threads in map(int, options.threads.split(",")):
            rows.append(measure(name, threads, options.seconds))
            print(*rows[-1], flush=True)
    head = ["workload", "threads", *PRECISIONS]
    text = report.markdown([*head, f"activations, MB: {', '.join(PRECISIONS)}"], rows)
    print(text)
    if options.docs:
        report.write_marked(options.docs, "half precision" + options.mark, text)


if __name__ == "__main__":
    main()
