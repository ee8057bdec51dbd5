"""Times calls with one library, for floors.py: `floor_calls.py LIBRARY THREADS`.

Reads the calls as JSON on stdin (see floors.py), writes the shortest time of each, in seconds, null
where the library does not have it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

BUDGET_S = 0.25  # per call

Run = Callable[[], object]


def operands(call: list) -> tuple[np.ndarray, np.ndarray]:
    """A and B of a product as stored, each a matrix or a stack of them; `form` as in BLAS."""
    _, batch, m, n, k, form = call
    generator = np.random.default_rng(0)
    a = generator.standard_normal((batch, *((k, m) if form[0] == "T" else (m, k))), np.float32)
    b = generator.standard_normal((batch, *((n, k) if form[1] == "T" else (k, n))), np.float32)
    return (a, b) if batch > 1 else (a[0], b[0])


def oriented(call: list, a, b, transpose) -> tuple:
    return (
        transpose(a) if call[5][0] == "T" else a,
        transpose(b) if call[5][1] == "T" else b,
    )


def images(call: list) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, w and the gradient of y of a convolution."""
    _, _, x, w, stride, pad, _ = call
    generator = np.random.default_rng(0)
    y = (x[0], w[0], *((size + 2 * pad - w[2]) // stride + 1 for size in x[2:]))
    return tuple(generator.standard_normal(shape, np.float32) for shape in (x, w, y))


def torch_runs(threads: int) -> Callable[[list], list[Run]]:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)

    def product(call: list) -> list[Run]:
        a, b = (torch.from_numpy(array) for array in operands(call))
        a, b = oriented(call, a, b, lambda matrix: matrix.transpose(-2, -1))
        out = torch.matmul(a, b)
        runs: list[Run] = [lambda: torch.matmul(a, b, out=out)]
        if a.ndim == 2:  # MKL above, oneDNN here: a linear layer, whose weight is [n, k]
            linear = torch.ops.mkldnn._linear_pointwise
            weight = b.transpose(0, 1)
            runs.append(lambda: linear(a, weight, None, "none", [], ""))
        return runs

    def convolution(call: list, layout: torch.memory_format) -> Run:
        _, name, _, _, stride, pad, group = call
        x, w, g = (torch.from_numpy(a).contiguous(memory_format=layout) for a in images(call))
        if name == "forward":
            return lambda: torch.conv2d(x, w, None, stride, pad, 1, group)
        mask = [name == "input", name == "weight", False]
        return lambda: torch.ops.aten.convolution_backward(
            g, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], group, mask
        )

    def runs(call: list) -> list[Run]:
        if call[0] == "product":
            return product(call)
        return [convolution(call, f) for f in (torch.contiguous_format, torch.channels_last)]

    return runs


def openblas_runs(_threads: int) -> Callable[[list], list[Run]]:
    def runs(call: list) -> list[Run]:
        if call[0] != "product":
            return []
        a, b = oriented(call, *operands(call), lambda matrix: matrix.swapaxes(-2, -1))
        out = np.matmul(a, b)
        return [lambda: np.matmul(a, b, out=out)]

    return runs


def onnxgrad_runs(threads: int) -> Callable[[list], list[Run]]:
    import onnx
    from onnx import TensorProto, helper

    import onnxgrad as og

    def session(nodes: list, inputs: dict[str, np.ndarray], wrt: str | None = None) -> Run:
        def info(name: str, shape: tuple[int, ...] | None = None) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        formal = [info(name, inputs[name].shape) for name in inputs if name != "y_grad"]
        graph = helper.make_graph(nodes, "call", formal, [info("y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        if wrt is not None:
            model = og.vjp(model, wrt)
        runner = og.InferenceSession(model, threads=threads)
        wanted = {value.name for value in runner.get_inputs()}
        feeds = {name: array for name, array in inputs.items() if name in wanted}
        return lambda: runner.run(None, feeds)

    def product(call: list) -> Run:
        a, b = operands(call)
        nodes, names = [], ["a", "b"]
        for index, name in enumerate("ab"):
            if call[5][index] == "T":
                order = [1, 0] if a.ndim == 2 else [0, 2, 1]
                nodes.append(helper.make_node("Transpose", [name], [name + "_t"], perm=order))
                names[index] = name + "_t"
        nodes.append(helper.make_node("MatMul", names, ["y"]))
        return session(nodes, {"a": a, "b": b})

    def runs(call: list) -> list[Run]:
        if call[0] == "product":
            return [product(call)]
        _, name, _, w_shape, stride, pad, group = call
        x, w, g = images(call)
        node = helper.make_node(
            "Conv", ["x", "w"], ["y"], kernel_shape=w_shape[2:], strides=[stride] * 2,
            pads=[pad] * 4, group=group,
        )  # fmt: skip
        feeds = {"x": x, "w": w}
        if name == "forward":
            return [session([node], feeds)]
        return [session([node], {**feeds, "y_grad": g}, {"input": "x", "weight": "w"}[name])]

    return runs


def shortest(run: Run) -> float:
    run()
    best, end = float("inf"), time.perf_counter() + BUDGET_S
    count = 0
    while count < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        count += 1
    return best


def main() -> None:
    makers = {"torch": torch_runs, "openblas": openblas_runs, "onnxgrad": onnxgrad_runs}
    runs = makers[sys.argv[1]](int(sys.argv[2]))
    answers = []
    for call in json.load(sys.stdin):
        found = [shortest(run) for run in runs(call)]
        answers.append(min(found) if found else None)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
