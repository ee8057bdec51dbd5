#!/usr/bin/env python3
"""Training steps of LSTM and GRU, and of PyTorch's if an interpreter with torch is given.

    .venv/bin/python benchmarks/recurrent.py
    .venv/bin/python benchmarks/recurrent.py --torch ENVIRONMENT/bin/python --threads 1

A step is the forward pass over sequences of 50 steps, the mean squared error of all outputs, the
gradients of all weights and plain gradient descent: 128 inputs, 128 units, float32, batches of 32
and of 1, rows first on both sides. The systems take turns; the fastest of `--repeats` runs of each
counts; with one thread it is processor time, which other processes disturb less. GFLOP/s are
those of the five products of a step: X W, H R and the gradients of H, W and R.

The goal: one and a half times the speed of PyTorch.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import result_files

STEPS, INPUTS, HIDDEN = 50, 128, 128
GATES = {"LSTM": 4, "GRU": 3}
CASES = [(op, batch) for op in GATES for batch in (32, 1)]
RATE = 0.01


def arrays(op: str, batch: int) -> dict[str, np.ndarray]:
    """Weights in ONNX's layout, rows and targets."""
    rng = np.random.default_rng(0)
    width = GATES[op] * HIDDEN
    shapes = {
        "W": (1, width, INPUTS),
        "R": (1, width, HIDDEN),
        "B": (1, 2 * width),
        "x": (batch, STEPS, INPUTS),
        "y": (batch, STEPS, HIDDEN),
    }
    return {name: rng.uniform(-0.1, 0.1, s).astype(np.float32) for name, s in shapes.items()}


def flops(op: str, batch: int) -> float:
    """Operations of the five products of a step."""
    return 2.0 * STEPS * batch * GATES[op] * HIDDEN * (2 * INPUTS + 3 * HIDDEN)


class Ours:
    """A TrainingSession on one ONNX operator."""

    def __init__(self, op: str, batch: int, threads: int) -> None:
        from onnx import TensorProto, helper, numpy_helper

        import onnxgrad as og

        data = arrays(op, batch)
        attributes = {"hidden_size": HIDDEN}
        if op == "GRU":
            attributes["linear_before_reset"] = 1  # the form of torch
        nodes = [
            helper.make_node("Transpose", ["x"], ["steps_first"], perm=[1, 0, 2]),
            helper.make_node(op, ["steps_first", "W", "R", "B"], ["states"], **attributes),
            helper.make_node("Squeeze", ["states", "axis"], ["squeezed"]),
            helper.make_node("Transpose", ["squeezed"], ["scores"], perm=[1, 0, 2]),
        ]
        initializers = [numpy_helper.from_array(data[name], name) for name in "WRB"]
        initializers.append(numpy_helper.from_array(np.array([1]), "axis"))
        shapes = {"x": data["x"].shape, "scores": data["y"].shape}
        values = {
            name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        }
        graph = helper.make_graph(nodes, op, [values["x"]], [values["scores"]], initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
        self.session = og.TrainingSession(
            model, og.losses.SquaredError(), og.optimizers.SGD(RATE), threads=threads
        )
        self.feeds = {"x": data["x"], self.session.target_name: data["y"]}

    def step(self) -> float:
        return float(self.session.step(self.feeds))


class Torch:
    """nn.LSTM or nn.GRU with torch.optim.SGD; runs under the interpreter of `--torch`."""

    def __init__(self, op: str, batch: int, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        data = arrays(op, batch)
        self.net = getattr(torch.nn, op)(INPUTS, HIDDEN, batch_first=True)
        blocks = [0, 2, 3, 1] if op == "LSTM" else [1, 0, 2]  # torch: i f g o; r z n

        def reordered(array: np.ndarray) -> torch.Tensor:
            parts = np.split(array, GATES[op])
            return torch.from_numpy(np.concatenate([parts[i] for i in blocks]).copy())

        biases = np.split(data["B"][0], 2)
        with torch.no_grad():
            self.net.weight_ih_l0.copy_(reordered(data["W"][0]))
            self.net.weight_hh_l0.copy_(reordered(data["R"][0]))
            self.net.bias_ih_l0.copy_(reordered(biases[0]))
            self.net.bias_hh_l0.copy_(reordered(biases[1]))
        self.x, self.y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE)
        self.loss = torch.nn.functional.mse_loss

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(self.net(self.x)[0], self.y)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def measure(kind: type, threads: int, duration_s: float) -> list[dict[str, float]]:
    """Seconds of a step and the first losses, for each of CASES."""
    results = []
    for op, batch in CASES:
        runner = kind(op, batch, threads)
        clock = time.process_time if threads == 1 else time.perf_counter
        losses = [runner.step() for _ in range(3)]
        best, end = float("inf"), time.perf_counter() + duration_s
        while time.perf_counter() < end:
            start = clock()
            runner.step()
            best = min(best, clock() - start)
        results.append({"seconds": best, "loss": losses[-1]})
    return results


def in_turns(arguments: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """The best of all repeats by system."""
    best: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.repeats):
        found = {"onnxgrad": measure(Ours, arguments.threads, arguments.duration)}
        if arguments.torch:
            command = [arguments.torch, __file__, "--worker", "--threads", str(arguments.threads)]
            command += ["--duration", str(arguments.duration)]
            found["torch"] = json.loads(
                subprocess.run(command, check=True, capture_output=True).stdout
            )
        for name, rows in found.items():
            known = best.setdefault(name, rows)
            best[name] = [
                min(a, b, key=lambda r: r["seconds"]) for a, b in zip(known, rows, strict=True)
            ]
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", help="Python interpreter that has torch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--duration", type=float, default=1.0, help="seconds of each run")
    result_files.add_option(parser)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(Torch, arguments.threads, arguments.duration)))
        return 0
    best = in_turns(arguments)
    print("| cell | batch | onnxgrad | torch | ratio | GFLOP/s |")
    print("|---|---|---|---|---|---|")
    for i, (op, batch) in enumerate(CASES):
        ours = best["onnxgrad"][i]
        other, ratio = "-", "-"
        if "torch" in best:
            theirs = best["torch"][i]
            if abs(theirs["loss"] - ours["loss"]) > 1e-4 * abs(ours["loss"]):
                raise AssertionError(f"{op}: losses {ours['loss']} and {theirs['loss']} differ")
            other = f"{1e3 * theirs['seconds']:.2f} ms"
            ratio = f"{theirs['seconds'] / ours['seconds']:.2f}"
        speed = flops(op, batch) / ours["seconds"] / 1e9
        print(
            f"| {op} | {batch} | {1e3 * ours['seconds']:.2f} ms | {other} | {ratio} | {speed:.0f} |"
        )
    entries = [
        result_files.timed("recurrent", f"{op}, batch {batch}", system, arguments.threads, seconds)
        for system, rows in best.items()
        for (op, batch), seconds in zip(CASES, (row["seconds"] for row in rows), strict=True)
    ]
    result_files.add(arguments.results, entries, result_files.versions("onnxgrad"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
