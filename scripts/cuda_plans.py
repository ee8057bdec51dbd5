"""Asks the real cuDNN for plans of pools, attention and the zoo's convolutions, without a card.

`python scripts/cuda_plans.py BUILD [--sample N]`; the card is that of tests/cuda/h100_device.json.
The library comes from its wheel (nvidia-cudnn-cu13) or CUDA's toolkit; without one nothing is
asked, which is said. Each plan is kept as JSON, and made again from it. Attention is compiled at
run time, for which the build has a driver that loads kernels and runs none.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.shape_inference

ROOT = Path(__file__).resolve().parents[1]
_PLACES = [
    *(Path(entry) / "nvidia/cudnn/lib" for entry in sys.path if entry),
    Path("/usr/local/cuda/lib64"),
]
# Sizes of x, of the window and of y, strides, dilations, pads before and after.
_POOLS = [
    "32,64,56,56 3,3 32,64,28,28 2,2 1,1 1,1 0,0",
    "8,192,28,28 3,3 8,192,28,28 1,1 1,1 1,1 1,1",
    "4,16,1,100 1,4 4,16,1,50 1,2 1,1 0,1 0,2",
    "2,8,16,28,28 2,2,2 2,8,8,14,14 2,2,2 1,1,1 0,0,0 0,0,0",
]
# Sequences, heads, queries, keys, elements of a key and of a value; a mask of keys or scores.
_ATTENTION = [
    "8,12,128,128,64,64 plain none",
    "8,12,128,128,64,64 plain keys",
    "16,2,128,128,64,64 plain keys",
    "4,8,256,256,32,32 causal none",
    "4,8,256,256,32,32 plain scores",
    "2,16,1024,1024,128,128 causal none",
    "2,4,70,33,40,24 plain keys",
]


def find_library() -> Path | None:
    """Return the folder of the first cuDNN that is found."""
    return next((place for place in _PLACES if (place / "libcudnn.so.9").exists()), None)


def _shapes(model: onnx.ModelProto) -> dict[str, list[int | None]]:
    values = [*model.graph.input, *model.graph.value_info, *model.graph.output]
    shapes: dict[str, list[int | None]] = {
        value.name: [
            dim.dim_value if dim.HasField("dim_value") else None
            for dim in value.type.tensor_type.shape.dim
        ]
        for value in values
    }
    return shapes | {tensor.name: [*tensor.dims] for tensor in model.graph.initializer}


def _pads(given: dict[str, Any], lists: list[list[int]], strides: list[int]) -> list[int]:
    """Return the pads before all axes, then those behind."""
    x, w, y, dilations = lists
    auto = given.get("auto_pad", b"NOTSET")
    if not auto.startswith(b"SAME"):
        return list(given.get("pads", [0] * 2 * len(strides)))
    total = [
        max((y[i] - 1) * strides[i] + (w[i] - 1) * dilations[i] + 1 - x[i], 0)
        for i in range(len(strides))
    ]
    half = [size // 2 for size in total]
    rest = [size - before for size, before in zip(total, half, strict=True)]
    return half + rest if auto == b"SAME_UPPER" else rest + half


def convolutions(path: Path) -> Iterator[str]:
    """Yield a line for onnxgrad_cudnn_plans for each convolution of known shape."""
    model = onnx.load(path)
    if all(node.op_type != "Conv" for node in model.graph.node):
        return
    for value in model.graph.input:  # a batch of four, other free sizes 32
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_value = 32 if i else 4
    shapes = _shapes(onnx.shape_inference.infer_shapes(model, data_prop=True))
    for node in model.graph.node:
        found = [shapes.get(name) for name in (*node.input[:2], node.output[0])]
        if node.op_type != "Conv" or any(not dims or None in dims for dims in found):
            continue
        x, w, y = ([int(dim or 0) for dim in dims or []] for dims in found)
        given = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        axes = len(x) - 2
        strides = list(given.get("strides", [1] * axes))
        dilations = list(given.get("dilations", [1] * axes))
        pads = _pads(given, [x[2:], w[2:], y[2:], dilations], strides)
        begins, ends = pads[:axes], pads[axes:]
        if axes == 1:  # cuDNN has two axes at least
            x, w, y = ([*dims[:2], 1, *dims[2:]] for dims in (x, w, y))
            strides, dilations = [1, *strides], [1, *dilations]
            begins, ends = [0, *begins], [0, *ends]
        lists = (x, w, y, strides, dilations, begins, ends)
        yield "convolution " + " ".join(",".join(map(str, numbers)) for numbers in lists)


def main() -> int:
    """Ask for the plans; return 1 if one is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--sample", type=int, default=0, help="so many of them; 0: all")
    arguments = parser.parse_args()
    library = find_library()
    if library is None:
        print("cuDNN is not there (wheel nvidia-cudnn-cu13): no plan was asked for")
        return 0
    files = sorted((ROOT / "tests/data/zoo").glob("*.onnx"))
    lines = sorted({line for path in files for line in convolutions(path)})
    if 0 < arguments.sample < len(lines):
        lines = lines[:: len(lines) // arguments.sample][: arguments.sample]
    count = len(lines)
    lines += [f"pool {line}" for line in _POOLS]
    lines += [f"attention {line}" for line in _ATTENTION[: arguments.sample // 4 or None]]
    tests = arguments.build / "tests"
    places = [str(tests / "cuda/loader"), str(library), os.environ.get("LD_LIBRARY_PATH", "")]
    done = subprocess.run(
        [tests / "onnxgrad_cudnn_plans", ROOT / "tests/cuda/h100_device.json"],
        input="\n".join(lines) + "\n",
        env={
            **os.environ,
            "ONNXGRAD_CUDA_PATH": str(library),
            "LD_LIBRARY_PATH": os.pathsep.join(places),
        },
        text=True,
        check=False,
    )
    print(f"{count} convolutions, {len(lines) - count} pools and attentions")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
