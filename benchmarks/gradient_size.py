"""Nodes of the gradient of ten models, here and in other systems.

Writes docs/gradient-sizes.md. The others are called where their Python is given:

    --onnx-ad PYTHON                 with onnx-ad 0.3.0
    --onnxruntime-training PYTHON    with onnxruntime-training 1.19.2 (Python 3.11)
"""

import argparse
import collections
import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference
import onnxruntime as ort
from onnx import helper

import onnxgrad as og

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "python"))
import zoo  # noqa: E402

PAGE = ROOT / "docs/gradient-sizes.md"
MODELS = {
    "implicit_image": "perceptron with sines",
    "text_convolutions": "convolutions over words",
    "residual_network": "ResNet, three blocks",
    "timm_mobilenet_v3": "MobileNetV3",
    "unet_bilinear": "U-Net with Resize",
    "bert_classifier": "BERT, one layer",
    "gpt2_language_model": "GPT-2, one block",
    "lstm_tagger_packed": "tagger with a bidirectional LSTM",
    "vit_classifier": "ViT, one layer",
    "moe_top2_gather": "mixture of experts with TopK",
}
RUNS = 50
HEAD = """# Sizes of gradients

Written by `python benchmarks/gradient_size.py`. Nodes of the model with its loss (the mean of
squared differences) and of its gradient by all weights, with the forward pass in it, functions
inlined and without nodes of constants; in brackets the least time of {runs} runs in stock
onnxruntime {version}, one thread, where it runs the file. The models are
those of [tests/data/zoo](zoo.md), with batches of a few rows: times are mostly those of calls.

| model | forward | onnxgrad | onnx-ad 0.3.0 | onnxruntime-training 1.19.2 |
| --- | --- | --- | --- | --- |
"""


TAIL = """
onnxruntime-training writes fewer nodes for the U-Net: ConvGrad, ReluGrad, ResizeGrad and others are
one node each, of its own domain, which no other runtime has and which have no gradient. Here
all nodes are standard ONNX: the gradient of a convolution by its weights is a convolution between
transposed operands, and shapes that are not known beforehand are computed in the graph.
"""


def with_weights_as_inputs(name: str) -> tuple[onnx.ModelProto, list[str]]:
    """A model with its loss in plain operators, in which the weights are inputs."""
    model = onnx.inliner.inline_local_functions(zoo.load(name))
    output = next(v for v in model.graph.output if v.name == zoo.ROWS[name]["loss_output"])
    label = onnx.ValueInfoProto()
    label.CopyFrom(output)
    label.name = "target"
    model.graph.input.append(label)
    model.graph.node.extend(
        [
            helper.make_node("Sub", [output.name, "target"], ["difference"]),
            helper.make_node("Mul", ["difference", "difference"], ["squares"]),
            helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0),
        ]
    )
    weights = zoo.weights_to_train(name)
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in weights]
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    model.ir_version = min(model.ir_version, 10)
    values = inputs_of(name)
    for value in model.graph.input:  # the others want to know all shapes
        if value.name in values:
            shape = value.type.tensor_type.shape
            shape.Clear()
            shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=size) for size in values[value.name].shape
            )
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model, data_prop=True), weights


def inputs_of(name: str) -> dict[str, np.ndarray]:
    """Weights, inputs and a target of zeros."""
    output = zoo.stored(name)[f"out/{zoo.ROWS[name]['loss_output']}"]
    return {**zoo.values(name), "target": np.zeros_like(output)}


def count(graph: onnx.GraphProto) -> collections.Counter[str]:
    """Nodes by operator, with those of bodies and without constants."""
    found: collections.Counter[str] = collections.Counter()
    for node in graph.node:
        found[node.op_type] += node.op_type != "Constant"
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += count(attribute.g)
    return found


def seconds(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> float | None:
    """The least time of a run, or None where stock onnxruntime does not run the file."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
        feeds = {v.name: feed(v, values) for v in session.get_inputs()}
        session.run(None, feeds)
    except Exception:
        return None
    best = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run(None, feeds)
        best = min(best, time.perf_counter() - start)
    return best


def feed(value: Any, values: dict[str, np.ndarray]) -> np.ndarray:
    """A stored value, or a seed of ones."""
    if value.name in values:
        return values[value.name]
    return np.ones([d if isinstance(d, int) else 1 for d in value.shape], np.float32)


def others(python: str | None, system: str, files: dict[str, tuple], folder: Path) -> dict:
    """Gradients of another system by model, or why there is none."""
    if python is None:
        return {}
    lines = []
    for name, (model, weights) in files.items():
        onnx.save(model, folder / f"{name}.onnx")
        lines.append("\t".join([f"{folder}/{name}.onnx", f"{folder}/{name}.{system}", *weights]))
    done = subprocess.run(
        [python, Path(__file__).with_name("gradient_size_peers.py"), system],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    answers = dict(zip(files, done.stdout.splitlines(), strict=True))
    return {
        name: onnx.load(folder / f"{name}.{system}") if answer == "ok" else answer
        for name, answer in answers.items()
    }


def cell(gradient: onnx.ModelProto | str | None, values: dict[str, np.ndarray]) -> str:
    if gradient is None:
        return "not measured"
    if isinstance(gradient, str):
        return "none"
    with contextlib.suppress(Exception):
        gradient = onnx.inliner.inline_local_functions(gradient)
    spent = seconds(gradient, values)
    size = sum(count(gradient.graph).values())
    return f"{size} ({spent * 1e6:.0f} µs)" if spent is not None else f"{size} (not run)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--onnx-ad", help="Python with onnx-ad")
    parser.add_argument("--onnxruntime-training", help="Python with onnxruntime-training")
    parser.add_argument("--show", nargs="*", default=[], help="print operators of these models")
    given = parser.parse_args()
    files = {name: with_weights_as_inputs(name) for name in MODELS}
    with tempfile.TemporaryDirectory() as folder:
        peers = {
            "onnx-ad": others(given.onnx_ad, "onnx-ad", files, Path(folder)),
            "onnxruntime-training": others(
                given.onnxruntime_training, "onnxruntime-training", files, Path(folder)
            ),
        }
    lines, reasons = [], []
    for name, (model, weights) in files.items():
        values = inputs_of(name)
        ours = og.gradient(model, weights, ["loss"], fill_grad=True, keep_outputs=True, inline=True)
        cells = [str(sum(count(model.graph).values())), cell(ours, values)]
        for system, results in peers.items():
            cells.append(cell(results.get(name), values))
            if isinstance(results.get(name), str):
                reasons.append(f"- {system}, `{name}`: {results[name][:160]}")
            if name in given.show and isinstance(results.get(name), onnx.ModelProto):
                print(name, system, count(ours.graph) - count(results[name].graph))
        lines.append(f"| {MODELS[name]} (`{name}`) | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    text = HEAD.format(runs=RUNS, version=ort.__version__) + "\n".join(lines) + "\n"
    if reasons:
        text += "\nWhere there is none:\n\n" + "\n".join(reasons) + "\n"
    text += TAIL
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
