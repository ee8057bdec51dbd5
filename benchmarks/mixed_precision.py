"""Time of a step and memory of activations with each `precision=`, beside float32.

Run from the repository: .venv/bin/python benchmarks/mixed_precision.py [--threads 1,2] [NAME...]
Workloads are those of benchmarks/peers. The precisions take turns; the figure is the minimum.
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
import workloads

import onnxgrad as og

NAMES = ("w3_mlp784", "w5_resnet18", "w6_bert_tiny", "w7_causal_lm", "w8_mobilenetv2")
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
    for precision, session in sessions.items():
        best = min(times[precision]) * 1e3
        ratio = best / (min(times["float32"]) * 1e3)
        megabytes = session.memory().activations / 1e6
        print(f"| {name} | {threads} | {precision} | {best:.2f} | {ratio:.2f} | {megabytes:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    print("| workload | threads | precision | ms per step | relative | activations, MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in options.names:
        for threads in options.threads.split(","):
            measure(name, int(threads), options.seconds)


if __name__ == "__main__":
    main()
