"""Times a step of onnxruntime-training's Module and Optimizer on small models.

    benchmarks/training_api.py                                  onnxgrad's
    benchmarks/training_api.py --onnxruntime-training PYTHON    beside onnxruntime-training's

PYTHON has version 1.19.2: that of the environment `venv-ort` of benchmarks/peers. A step is a call
of the module with NumPy arrays, `Optimizer.step` and `lazy_reset_grad`, of AdamW on one thread. The
two take turns; the median of the rounds is printed.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Sizes of the layers of a perceptron, and rows of a batch.
MODELS = {"tiny": ((4, 8, 3), 16), "small": ((20, 64, 64, 10), 64)}
STEPS = 2000
ROUNDS = 9


def perceptron(sizes: tuple[int, ...]) -> onnx.ModelProto:
    """Return a perceptron with Relu, of X [N, sizes[0]]."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "X"
    for i, (k, n) in enumerate(itertools.pairwise(sizes)):
        matrix = rng.normal(0, k**-0.5, (k, n)).astype(np.float32)
        weights += [
            numpy_helper.from_array(matrix, f"W{i}"),
            numpy_helper.from_array(np.zeros(n, np.float32), f"b{i}"),
        ]
        is_last = i == len(sizes) - 2
        nodes.append(
            helper.make_node("Gemm", [value, f"W{i}", f"b{i}"], ["Y" if is_last else f"h{i}"])
        )
        if not is_last:
            value = f"a{i}"
            nodes.append(helper.make_node("Relu", [f"h{i}"], [value]))
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", size])
        for name, size in (("X", sizes[0]), ("Y", sizes[-1]))
    ]
    graph = helper.make_graph(nodes, "perceptron", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def training(package: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return artifacts, api and the options of a Module for one thread."""
    if package == "onnxgrad":
        name = "onnxgrad.compat.onnxruntime.training"
        return (
            importlib.import_module(f"{name}.artifacts"),
            importlib.import_module(f"{name}.api"),
            {},
        )
    import onnxruntime

    # Its __init__ imports torch, for a helper that is not used here.
    bare = types.ModuleType("onnxruntime.training")
    bare.__path__ = [str(Path(onnxruntime.__file__).parent / "training")]
    sys.modules["onnxruntime.training"] = bare
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    names = ("onnxruntime.training.artifacts", "onnxruntime.training.api")
    found = [importlib.import_module(name) for name in names]
    return found[0], found[1], {"session_options": options}


def serve(package: str, name: str) -> None:
    """Do a round of steps for each line of the input; print the microseconds of a step."""
    artifacts, api, options = training(package)
    sizes, rows = MODELS[name]
    model = perceptron(sizes)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, sizes[0])).astype(np.float32)
    y = rng.integers(0, sizes[-1], rows)
    with tempfile.TemporaryDirectory() as folder:
        artifacts.generate_artifacts(
            model,
            requires_grad=[one.name for one in model.graph.initializer],
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
        )
        state = api.CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        module = api.Module(f"{folder}/training_model.onnx", state, **options)
        optimizer = api.Optimizer(f"{folder}/optimizer_model.onnx", module)
    module.train()
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(STEPS):
            loss = module(x, y)
            optimizer.step()
            module.lazy_reset_grad()
        took = 1e6 * (time.perf_counter() - begin) / STEPS
        print(json.dumps([took, float(loss)]), flush=True)


def start(python: str, package: str, name: str) -> subprocess.Popen[str]:
    command = [python, __file__, "--serve", package, name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measure(name: str, pythons: dict[str, str]) -> None:
    """Print the median times of the packages on a model."""
    servers = {package: start(python, package, name) for package, python in pythons.items()}
    times: dict[str, list[float]] = {package: [] for package in servers}
    losses: dict[str, float] = {}
    for _ in range(ROUNDS + 1):
        for package, server in servers.items():
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write("\n")
            server.stdin.flush()
            took, losses[package] = json.loads(server.stdout.readline())
            times[package].append(took)
    for server in servers.values():
        server.communicate()
    found = {package: statistics.median(all_[1:]) for package, all_ in times.items()}
    texts = [f"{package} {found[package]:.1f} us (loss {losses[package]:.4g})" for package in found]
    if len(found) > 1:
        texts.append(f"ratio {found['onnxgrad'] / found['onnxruntime-training']:.2f}")
    print(f"{name}: {', '.join(texts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--onnxruntime-training", help="Python with onnxruntime-training")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return
    pythons = {"onnxgrad": sys.executable}
    if given.onnxruntime_training:
        pythons["onnxruntime-training"] = given.onnxruntime_training
    for name in given.models:
        measure(name, pythons)


if __name__ == "__main__":
    main()
