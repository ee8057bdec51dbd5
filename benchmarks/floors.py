#!/usr/bin/env python3
"""Time of the matrix products and convolutions of a training step alone: a floor for the step.

    benchmarks/floors.py                                  # w3 to w8, 1 and 2 threads
    benchmarks/floors.py --workloads w7_causal_lm --threads 1
    benchmarks/floors.py --steps ~/.cache/onnxgrad/peers/results.json

The calls of a step are read from the workload's ONNX file: each product and convolution forward,
and the gradient of each operand that needs one, with the shapes of the workload's batch. Every
distinct call is timed alone, with operands and results in place, in each library: PyTorch (products
with MKL and with oneDNN, convolutions with oneDNN in both layouts of images, the fastest counts),
OpenBLAS (NumPy; products only) and onnxgrad itself. libxsmm has kernels for small products alone.
The floor is the sum over the calls of the fastest library's time. `--steps` names a results file of
peers/run.py, from which the times of the whole steps are taken.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

import catalogue  # noqa: E402
import environments  # noqa: E402
import result_files  # noqa: E402
import workloads  # noqa: E402

Call = tuple  # ("product", batch, m, n, k, transposes) or ("conv", pass, x, w, stride, pad, group)
LIBRARIES = {"torch": "torch", "openblas": "sklearn", "onnxgrad": "project"}
LARGE = [name for name in workloads.WORKLOADS if name[:2] not in ("w1", "w2")]


def calls_of(folder: pathlib.Path, name: str) -> collections.Counter[Call]:
    """The products and convolutions of a training step, each with how often it is called."""
    import onnx
    from onnx import shape_inference

    model = onnx.load(folder / f"{name}.onnx")
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_value = workloads.WORKLOADS[name].batch
    graph = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    shapes = {item.name: list(item.dims) for item in graph.initializer}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        shapes[value.name] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    needs = set(workloads.load_trainable(folder, name))  # values that a gradient flows to
    calls: collections.Counter[Call] = collections.Counter()
    for node in graph.node:
        flowing = [value in needs for value in node.input]
        if any(flowing):
            needs.update(node.output)
        if node.op_type in ("MatMul", "Gemm"):
            calls.update(product_calls(node, shapes, flowing))
        elif node.op_type == "Conv":
            calls.update(convolution_calls(node, shapes, flowing))
    return calls


def product_calls(node, shapes: dict[str, list[int]], flowing: list[bool]) -> list[Call]:
    a, b = shapes[node.input[0]], shapes[node.input[1]]
    is_transposed = any(item.name == "transB" and item.i for item in node.attribute)
    n, k = (b[-2], b[-1]) if is_transposed else (b[-1], b[-2])
    rows = 1
    for size in a[:-1]:
        rows *= size
    batch = rows // a[-2] if len(b) > 2 else 1
    m = rows // batch
    form = "NT" if is_transposed else "NN"
    found: list[Call] = [("product", batch, m, n, k, form)]
    if flowing[0]:
        found.append(("product", batch, m, k, n, "NN" if is_transposed else "NT"))
    if flowing[1]:
        found.append(("product", batch, *((n, k) if is_transposed else (k, n)), m, "TN"))
    return found


def convolution_calls(node, shapes: dict[str, list[int]], flowing: list[bool]) -> list[Call]:
    attributes = {item.name: list(item.ints) or item.i for item in node.attribute}
    geometry = (
        tuple(shapes[node.input[0]]), tuple(shapes[node.input[1]]),
        attributes.get("strides", [1])[0], attributes.get("pads", [0])[0],
        attributes.get("group", 1) or 1,
    )  # fmt: skip
    passes = ["forward"] + ["input"] * flowing[0] + ["weight"] * flowing[1]
    return [("conv", name, *geometry) for name in passes]


def flops(call: Call) -> float:
    if call[0] == "product":
        return 2.0 * call[1] * call[2] * call[3] * call[4]
    x, w, stride, pad = call[2:6]
    out = [(size + 2 * pad - w[2]) // stride + 1 for size in x[2:]]
    return 2.0 * x[0] * w[0] * out[0] * out[1] * w[1] * w[2] * w[3]


def times(cache: environments.Cache, library: str, calls: list[Call], threads: int) -> list:
    """Seconds of each call, null for one that the library does not have."""
    count = str(threads)
    environment = dict(
        os.environ, OMP_NUM_THREADS=count, OPENBLAS_NUM_THREADS=count, MKL_NUM_THREADS=count,
        MALLOC_MMAP_THRESHOLD_=str(1 << 30), MALLOC_TRIM_THRESHOLD_=str(1 << 30),
    )  # fmt: skip
    command = [cache.python(LIBRARIES[library]), str(HERE / "floor_calls.py"), library, count]
    done = subprocess.run(
        command, input=json.dumps(calls), capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"floors.py: {library}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def step_of(results: dict, name: str, threads: int) -> float | None:
    """The shortest step of onnxgrad in a results file of peers/run.py, in seconds."""
    answer = results.get("workloads", {}).get(name, {}).get(str(threads), {}).get("onnxgrad")
    if not answer or not answer["runs"]:
        return None
    return min(run["s"] for run in answer["runs"]) / workloads.WORKLOADS[name].steps


def row(
    name: str, threads: int, calls: collections.Counter, seconds: dict, steps: dict
) -> tuple[str, list[result_files.Entry]]:
    distinct = list(calls)
    total, wins = 0.0, collections.Counter()
    sums = dict.fromkeys(seconds, 0.0)
    for index, call in enumerate(distinct):
        found = {key: value[index] for key, value in seconds.items() if value[index] is not None}
        best = min(found, key=found.__getitem__)
        total += calls[call] * found[best]
        wins[best] += calls[call] * found[best]
        for key in sums:
            sums[key] += calls[call] * found.get(key, found[best])
    work = sum(flops(call) * count for call, count in calls.items())
    shares = ", ".join(f"{key} {value / total:.0%}" for key, value in wins.most_common())
    step = step_of(steps, name, threads)
    cells = [
        name, str(threads), str(sum(calls.values())), f"{work * 1e-9:.2f}", f"{total * 1e3:.2f} ms",
        f"{work / total * 1e-9:.0f}", shares,
        *(f"{sums[key] * 1e3:.2f} ms" for key in LIBRARIES),
        "-" if step is None else f"{step * 1e3:.2f} ms",
        "-" if step is None else f"{step / total:.2f}",
    ]  # fmt: skip
    found = {"fastest library": total, **sums}
    entries = [
        result_files.timed("floor", name, key, threads, value) for key, value in found.items()
    ]
    return "| " + " | ".join(cells) + " |", entries


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default=",".join(LARGE), help="list; default: w3 to w8")
    parser.add_argument("--threads", default="1,2", help="list; default 1,2")
    parser.add_argument("--steps", type=pathlib.Path, help="results file of peers/run.py")
    parser.add_argument("--work", type=pathlib.Path, default=environments.DEFAULT_CACHE)
    result_files.add_option(parser)
    options = parser.parse_args()
    cache = environments.Cache(options.work)
    names = catalogue.choose_workloads(options.workloads)
    folder = cache.models(names)
    path = options.steps or cache.results
    steps = json.loads(path.read_text()) if path.exists() else {}
    entries: list[result_files.Entry] = []
    print(
        "| workload | threads | calls | GFLOP | floor | GFLOP/s | fastest library, by time | "
        "PyTorch alone | OpenBLAS alone* | onnxgrad alone | step | step / floor |"
    )
    print("|" + "---|" * 12)
    for name in names:
        calls = calls_of(folder, name)
        for threads in map(int, options.threads.split(",")):
            seconds = {key: times(cache, key, list(calls), threads) for key in LIBRARIES}
            line, found = row(name, threads, calls, seconds, steps)
            entries += found
            print(line, flush=True)
    print("\n\\* convolutions at the fastest library's time")
    result_files.add(options.results, entries, result_files.versions("onnxgrad"))


if __name__ == "__main__":
    main()
