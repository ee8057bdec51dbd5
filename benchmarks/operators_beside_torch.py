#!/usr/bin/env python3
"""Resize, GridSample, TopK, Einsum and quantization, beside PyTorch's.

    .venv/bin/python benchmarks/operators_beside_torch.py                # ours alone
    .venv/bin/python benchmarks/operators_beside_torch.py --torch ENVIRONMENT/bin/python
    .venv/bin/python benchmarks/operators_beside_torch.py --only TopK --threads 2

One operator on float32 of sizes that networks have: the forward pass (InferenceSession; PyTorch
without gradients), then forward and backward for a given gradient of the output (ForwardBackward;
autograd). The systems take turns, each turn in a process of its own; the fastest call of all turns
counts. With one thread it is processor time, which other processes disturb less. Results and
gradients are dense on both sides: a view that PyTorch returns is copied. Each turn compares sums
of the results and of the gradients, so that both compute the same.

The goal: no row slower than PyTorch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import result_files

Shape = tuple[int, ...]
Run = Callable[[], Any]


@dataclasses.dataclass
class Case:
    """One operator in both systems; `nodes` compute y from the inputs, in ONNX's text."""

    operator: str
    title: str
    inputs: dict[str, Shape]
    nodes: str
    torch: Callable[..., Any]  # function of the module torch and the inputs
    constants: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    draw: Callable[[np.random.Generator, Shape], np.ndarray] | None = None
    dtype: str = "float32"  # element type of y
    rank: int | None = None  # rank of y, if it is not that of the first input
    prepare: Callable[..., Any] | None = None  # called once with the module torch and an input
    backward: bool = True

    @property
    def name(self) -> str:
        return f"{self.operator}: {self.title}"

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the inputs: the same in both systems."""
        rng = np.random.default_rng(0)
        draw = self.draw or (lambda generator, shape: generator.uniform(-1, 1, shape))
        drawn = {name: draw(rng, shape) for name, shape in self.inputs.items()}
        return {k: a if a.dtype.kind in "iu" else a.astype(np.float32) for k, a in drawn.items()}


def resize(title: str, shape: Shape, size: Shape, attributes: str, **options: Any) -> Case:
    """Return a Resize to `size`, as torch.nn.functional.interpolate computes it."""

    def run(torch: Any, x: Any) -> Any:
        return torch.nn.functional.interpolate(x, size=size, **options)

    return Case(
        "Resize",
        f"{title}, {by(shape)} to {by(size)}",
        {"x": shape},
        f"y = Resize<{attributes}>(x, , , size)",
        run,
        {"size": np.array((*shape[:2], *size))},
    )


def grid_sample(mode: str, padding: str, shape: Shape, size: Shape) -> Case:
    """Return a GridSample at points of which some are outside the image."""
    onnx_mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)

    def run(torch: Any, x: Any, grid: Any) -> Any:
        return torch.nn.functional.grid_sample(
            x, grid, mode=mode, padding_mode=padding, align_corners=False
        )

    return Case(
        "GridSample",
        f"{mode}, {padding}, {by(shape)} at {by(size)}",
        {"x": shape, "grid": (shape[0], *size, len(size))},
        f'y = GridSample<mode="{onnx_mode}", padding_mode="{padding}">(x, grid)',
        run,
        draw=lambda rng, s: points(rng, s) if s[-1] == len(size) else rng.normal(size=s),
    )


def points(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return the points of a grid a little larger than the image, with noise."""
    axes = [np.linspace(-1.1, 1.1, n) for n in shape[1:-1]]
    grid = np.stack(np.meshgrid(*axes, indexing="ij")[::-1], -1)  # x first
    return grid + rng.normal(0, 0.02, shape)


def top_k(title: str, shape: Shape, k: int, axis: int = -1) -> Case:
    """Return the values of a TopK, largest first."""

    def run(torch: Any, x: Any) -> Any:
        return torch.topk(x, k, dim=axis)[0]

    return Case(
        "TopK",
        f"{title}, {by(shape)}, k = {k}, axis {axis}",
        {"x": shape},
        f"y, i = TopK<axis={axis}>(x, k)",
        run,
        {"k": np.array([k])},
        draw=lambda rng, s: rng.permutation(np.prod(s)).reshape(s) / np.prod(s),  # no ties
    )


def einsum(equation: str, *shapes: Shape) -> Case:
    """Return an Einsum of one or two operands."""

    def run(torch: Any, *operands: Any) -> Any:
        return torch.einsum(equation, *operands).contiguous()  # not a view of its operand

    names = "ab"[: len(shapes)]
    return Case(
        "Einsum",
        f"`{equation}`, {', '.join(by(s) for s in shapes)}",
        dict(zip(names, shapes, strict=True)),
        f'y = Einsum<equation="{equation}">({", ".join(names)})',
        run,
        rank=len(equation.split("->")[1]),
    )


def quantization(step: str, dtype: str, shape: Shape, axis: int | None = None) -> Case:
    """Return a QuantizeLinear ("quantize"), a DequantizeLinear or both, of a tensor or a channel.

    Both is what training with quantization has; its gradient passes where nothing is clipped.
    """
    zero_point, low, high = (128, 0, 255) if dtype == "uint8" else (0, -128, 127)
    scale = np.linspace(0.004, 0.008, 1 if axis is None else shape[axis]).astype(np.float32)
    zero = np.full(scale.shape, zero_point, dtype)
    option = "" if axis is None else f"<axis={axis}>"
    q = f"QuantizeLinear{option}(x, s, z)"
    nodes = {"quantize": f"y = {q}", "dequantize": f"y = DequantizeLinear{option}(x, s, z)"}
    nodes["both"] = f"q = {q} y = DequantizeLinear{option}(q, s, z)"

    def quantized(torch: Any, x: Any) -> Any:
        kind = torch.quint8 if dtype == "uint8" else torch.qint8
        if axis is None:
            return torch.quantize_per_tensor(x, scale[0].item(), zero_point, kind)
        scales, zeros = torch.from_numpy(scale), torch.from_numpy(zero.astype(np.int32))
        return torch.quantize_per_channel(x, scales, zeros, axis, kind)

    def both(torch: Any, x: Any) -> Any:
        if axis is None:
            return torch.fake_quantize_per_tensor_affine(x, scale[0].item(), zero_point, low, high)
        scales, zeros = torch.from_numpy(scale), torch.from_numpy(zero.astype(np.int32))
        return torch.fake_quantize_per_channel_affine(x, scales, zeros, axis, low, high)

    def prepare(torch: Any, x: Any) -> Any:
        values = (x.float() - zero_point) * (scale[0].item() if axis is None else 1)
        if axis is not None:
            width = [1] * len(shape)
            width[axis] = -1
            values = values * torch.from_numpy(scale).reshape(width)
        return quantized(torch, values)

    return Case(
        {"both": "Quantize, dequantize"}.get(step, step.capitalize()),
        f"{dtype}, {by(shape)}, by {'tensor' if axis is None else 'channel'}",
        {"x": shape},
        nodes[step],
        {
            "quantize": quantized,
            "dequantize": lambda _, x: x.dequantize(),
            "both": both,
        }[step],
        {"s": scale[0] if axis is None else scale, "z": zero[0] if axis is None else zero},
        draw=None if step != "dequantize" else lambda r, s: r.integers(low, high + 1, s, dtype),
        dtype=dtype if step == "quantize" else "float32",
        prepare=prepare if step == "dequantize" else None,
        backward=step == "both",
    )


def by(shape: Shape) -> str:
    """Return the text of a shape."""
    return " x ".join(str(n) for n in shape)


NEAREST = 'mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"'
HALF = 'mode="linear", coordinate_transformation_mode="half_pixel"'
CORNERS = 'mode="linear", coordinate_transformation_mode="align_corners"'
CUBIC = 'mode="cubic", coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75'
SMOOTH = 'coordinate_transformation_mode="half_pixel", antialias=1, exclude_outside=1'
CASES = [
    resize("nearest", (4, 64, 64, 64), (128, 128), NEAREST, mode="nearest"),
    resize("nearest", (4, 64, 32, 32), (96, 96), NEAREST, mode="nearest"),
    resize("nearest", (1, 256, 20, 20), (40, 40), NEAREST, mode="nearest"),
    resize("nearest", (4, 64, 64, 64), (48, 48), NEAREST, mode="nearest"),
    resize("linear", (4, 64, 64, 64), (128, 128), HALF, mode="bilinear"),
    resize("linear", (1, 256, 20, 20), (40, 40), HALF, mode="bilinear"),
    resize(
        "linear, corners", (4, 64, 64, 64), (128, 128), CORNERS, mode="bilinear", align_corners=True
    ),
    resize("linear", (1, 21, 65, 65), (513, 513), HALF, mode="bilinear"),
    resize("linear", (4, 3, 512, 512), (224, 224), HALF, mode="bilinear"),
    resize(
        "linear, antialias",
        (4, 3, 512, 512),
        (224, 224),
        f'mode="linear", {SMOOTH}',
        mode="bilinear",
        antialias=True,
    ),
    resize("cubic", (4, 3, 128, 128), (256, 256), CUBIC, mode="bicubic"),
    resize("cubic", (1, 768, 14, 14), (24, 24), CUBIC, mode="bicubic"),
    resize(
        "cubic, antialias",
        (4, 3, 512, 512),
        (224, 224),
        f'mode="cubic", cubic_coeff_a=-0.5, {SMOOTH}',
        mode="bicubic",
        antialias=True,
    ),
    resize("linear", (1, 16, 16, 32, 32), (32, 64, 64), HALF, mode="trilinear"),
    grid_sample("bilinear", "zeros", (8, 64, 28, 28), (28, 28)),
    grid_sample("bilinear", "zeros", (32, 1, 28, 28), (28, 28)),
    grid_sample("bilinear", "border", (4, 3, 224, 224), (224, 224)),
    grid_sample("bilinear", "reflection", (4, 3, 224, 224), (224, 224)),
    grid_sample("nearest", "zeros", (8, 64, 28, 28), (28, 28)),
    grid_sample("nearest", "border", (4, 3, 224, 224), (224, 224)),
    grid_sample("bicubic", "zeros", (4, 3, 224, 224), (224, 224)),
    grid_sample("bilinear", "zeros", (1, 8, 16, 32, 32), (16, 32, 32)),
    top_k("experts", (4096, 8), 2),
    top_k("classes", (256, 1000), 1),
    top_k("classes", (256, 1000), 5),
    top_k("words", (16, 32000), 64),
    top_k("long row", (1, 1000000), 100),
    top_k("half of it", (64, 1024), 512),
    top_k("channels", (8, 256, 1024), 5, axis=1),
    einsum("ij,jk->ik", (256, 256), (256, 256)),
    einsum("bij,bjk->bik", (32, 64, 64), (32, 64, 64)),
    einsum("bhqd,bhkd->bhqk", (8, 8, 128, 64), (8, 8, 128, 64)),
    einsum("bqhd,bkhd->bhqk", (8, 128, 8, 64), (8, 128, 8, 64)),
    einsum("bhqk,bkhd->bqhd", (8, 8, 128, 128), (8, 128, 8, 64)),
    einsum("bsd,dhk->bshk", (8, 128, 256), (256, 8, 32)),
    einsum("bhwc,hkc->bhwk", (8, 14, 14, 64), (14, 14, 64)),
    einsum("i,j->ij", (1024,), (1024,)),
    einsum("bi,bi->b", (512, 512), (512, 512)),
    einsum("bij->bji", (32, 256, 256)),
    einsum("bii->bi", (256, 64, 64)),
    einsum("bii->b", (256, 64, 64)),
    quantization("quantize", "uint8", (8, 64, 56, 56)),
    quantization("quantize", "int8", (8, 64, 56, 56)),
    quantization("quantize", "int8", (256, 256, 3, 3), 0),
    quantization("dequantize", "uint8", (8, 64, 56, 56)),
    quantization("dequantize", "int8", (256, 256, 3, 3), 0),
    quantization("both", "uint8", (8, 64, 56, 56)),
    quantization("both", "int8", (8, 64, 56, 56)),
    quantization("both", "int8", (256, 256, 3, 3), 0),
    quantization("both", "int8", (8, 64, 56, 56), 1),
]


class Ours:
    """InferenceSession and ForwardBackward on a model of the case."""

    def __init__(self, case: Case, threads: int) -> None:
        import onnxgrad as og

        feeds = case.arrays()
        model = self.model(case, feeds)
        session = og.InferenceSession(model, threads=threads)
        self.forward: Run = lambda: session.run(None, feeds)[0]
        self.both: Run | None = None
        if not case.backward:
            return
        layer = og.ForwardBackward(model, frozen="*", threads=threads)
        cotangent = gradient_of(self.forward())

        def both() -> list[np.ndarray]:
            layer.forward(feeds)
            gradients = layer.backward([cotangent])
            return [gradients.inputs[name] for name in feeds]

        self.both = both

    @staticmethod
    def model(case: Case, feeds: dict[str, np.ndarray]) -> Any:
        import onnx.helper
        import onnx.parser

        def info(name: str, dtype: Any, shape: Any) -> Any:
            element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            return onnx.helper.make_tensor_value_info(name, element, shape)

        rank = len(next(iter(case.inputs.values()))) if case.rank is None else case.rank
        parsed = onnx.parser.parse_graph(f"g (float x) => (float y) {{ {case.nodes} }}")
        graph = onnx.helper.make_graph(
            parsed.node,
            "one_operator",
            [info(name, array.dtype, array.shape) for name, array in feeds.items()],
            [info("y", case.dtype, [None] * rank)],
            [onnx.numpy_helper.from_array(a, name) for name, a in case.constants.items()],
        )
        return onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 22)], ir_version=10
        )


class Torch:
    """Autograd; runs under the interpreter of `--torch`."""

    def __init__(self, case: Case, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        inputs = [torch.from_numpy(array) for array in case.arrays().values()]
        if case.prepare is not None:
            inputs = [case.prepare(torch, tensor) for tensor in inputs]

        def forward() -> Any:
            with torch.no_grad():
                return case.torch(torch, *inputs)

        self.forward: Run = forward
        self.both: Run | None = None
        if not case.backward:
            return
        cotangent = torch.from_numpy(gradient_of(forward().numpy()))
        leaves = [tensor.requires_grad_() for tensor in inputs]

        def both() -> Any:
            y = case.torch(torch, *leaves)
            return [dx.contiguous() for dx in torch.autograd.grad(y, leaves, cotangent)]

        self.both = both


def gradient_of(y: np.ndarray) -> np.ndarray:
    """Return what is given as the gradient of y: not smooth, the same in both systems."""
    return np.cos(np.arange(y.size, dtype=np.float32) % 1009).reshape(y.shape)


def sums(results: Any) -> list[float]:
    """Return weighted sums of arrays or tensors."""
    values = []
    for result in results if isinstance(results, list | tuple) else [results]:
        array = result if isinstance(result, np.ndarray) else None
        if array is None:
            array = (result.int_repr() if result.is_quantized else result).detach().numpy()
        flat = np.asarray(array, np.float64).ravel()
        values += [float(flat @ np.sin(np.arange(flat.size) % 101)), float(np.abs(flat).sum())]
    return values


def shortest(run: Run, threads: int, duration_s: float) -> float:
    clock = time.process_time if threads == 1 else time.perf_counter
    for _ in range(3):
        run()
    best, end = float("inf"), time.perf_counter() + duration_s
    while time.perf_counter() < end:
        start = clock()
        run()
        best = min(best, clock() - start)
    return best


def measure(kind: type, arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return seconds and sums of the forward pass, then of both, for each case."""
    found = {}
    for case in chosen(arguments.only):
        system = kind(case, arguments.threads)
        runs = [system.forward, *([system.both] if system.both else [])]
        found[case.name] = [
            {"seconds": shortest(run, arguments.threads, arguments.duration), "sums": sums(run())}
            for run in runs
        ]
    return found


def chosen(part: str) -> list[Case]:
    return [case for case in CASES if part in case.name]


def turn(python: str, system: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [python, __file__, "--worker", system, "--threads", str(arguments.threads)]
    command += ["--duration", str(arguments.duration), "--only", arguments.only]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def check_equal(name: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        for (a, size_a), (b, size_b) in zip(
            zip(mine["sums"][::2], mine["sums"][1::2], strict=True),
            zip(other["sums"][::2], other["sums"][1::2], strict=True),
            strict=True,
        ):
            if abs(a - b) > 1e-4 * size_a or abs(size_a - size_b) > 1e-4 * size_a:
                raise AssertionError(f"{name}: results differ, sums {mine} and {other}")


def report(best: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    print("| operator | forward | torch | ratio | and backward | torch | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, ours in best["onnxgrad"].items():
        theirs = best.get("torch", {}).get(name)
        if theirs is not None:
            check_equal(name, ours, theirs)
        cells = [name]
        for i in range(2):
            if i == len(ours):
                cells += ["", "", ""]
                continue
            own = ours[i]["seconds"]
            cells.append(f"{1e6 * own:.0f} µs")
            cells += (
                ["-", "-"]
                if theirs is None
                else [
                    f"{1e6 * theirs[i]['seconds']:.0f} µs",
                    f"{own / theirs[i]['seconds']:.2f}",
                ]
            )
        print("| " + " | ".join(cells) + " |")


def entries_of(
    best: dict[str, dict[str, list[dict[str, Any]]]], threads: int
) -> list[result_files.Entry]:
    return [
        result_files.timed(f"operators, {kind}", name, system, threads, row["seconds"])
        for system, cases in best.items()
        for name, rows in cases.items()
        for kind, row in zip(("forward", "with gradients"), rows, strict=False)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", help="Python interpreter that has torch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--duration", type=float, default=0.1, help="seconds of each run")
    parser.add_argument("--only", default="", help="a part of the name of a case")
    result_files.add_option(parser)
    parser.add_argument("--worker", choices=["onnxgrad", "torch"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(Ours if arguments.worker == "onnxgrad" else Torch, arguments)))
        return 0
    systems = {"onnxgrad": sys.executable}
    if arguments.torch:
        systems["torch"] = arguments.torch
    best: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for _ in range(arguments.repeats):
        for system, python in systems.items():
            found = turn(python, system, arguments)
            known = best.setdefault(system, found)
            for name, rows in found.items():
                known[name] = [
                    min(pair, key=lambda row: row["seconds"])
                    for pair in zip(known[name], rows, strict=True)
                ]
    report(best)
    result_files.add(
        arguments.results, entries_of(best, arguments.threads), result_files.versions("onnxgrad")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
