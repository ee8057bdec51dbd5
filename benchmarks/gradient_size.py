"""Nodes of the gradient of known models, here and in other systems.

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
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.inliner
import onnx.shape_inference
import onnxruntime as ort
from onnx import helper

import onnxgrad as og

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "python"))
import known_models  # noqa: E402

import zoo  # noqa: E402

PAGE = ROOT / "docs/gradient-sizes.md"
BUILT = {"lenet": known_models.lenet(), "resnet18": known_models.resnet18(64),
         "resnet50": known_models.resnet50(64)}  # fmt: skip
MODELS = {
    "lenet": "LeNet-5, digits",
    "resnet18": "ResNet-18, 64 by 64",
    "resnet50": "ResNet-50, 64 by 64",
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
RUNS = 200  # at most, of each file
SECONDS = 5.0  # at most, of one model
HEAD = """# Sizes of gradients

Written by `python benchmarks/gradient_size.py`. Each cell has the number of nodes of the gradient
by all weights, with the forward pass and a squared loss, functions inlined, constants not counted;
in brackets the shortest run in stock onnxruntime {version} with one thread. "none": the system
refuses the model. LeNet and the ResNets have all their layers and two images; the others are models
of [tests/data/zoo](zoo.md) with batches of a few rows.

| model | forward | onnxgrad | onnx-ad 0.3.0 | onnxruntime-training 1.19.2 |
| --- | --- | --- | --- | --- |
"""


TAIL = """
onnxruntime-training writes fewer nodes where it runs, because ConvGrad, ReluGrad and others are one
node each. These operators are of its own domain, run in no other runtime, and have no gradient
themselves. onnxgrad writes standard ONNX only, and fewer nodes than onnx-ad, which does so too.
"""


class Source(NamedTuple):
    """A model, what is trained, and feeds with a target of zeros."""

    model: onnx.ModelProto
    output: str
    weights: list[str]
    values: dict[str, np.ndarray]


def source(name: str) -> Source:
    """Return one that is built here, or one of the zoo."""
    if name not in BUILT:
        output = zoo.ROWS[name]["loss_output"]
        target = np.zeros_like(zoo.stored(name)[f"out/{output}"])
        model = onnx.inliner.inline_local_functions(zoo.load(name))
        values = {**zoo.values(name), "target": target}
        return Source(model, output, zoo.weights_to_train(name), values)
    model = onnx.ModelProto()
    model.CopyFrom(BUILT[name])
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    weights = [tensor for tensor in arrays if not tensor.startswith("running")]
    dims = model.graph.input[0].type.tensor_type.shape.dim
    image = np.random.default_rng(0).standard_normal([2, *(d.dim_value for d in dims[1:])])
    feeds = {"x": image.astype(np.float32)}
    session = ort.InferenceSession(model.SerializeToString())
    (result,) = session.run(None, feeds)
    values = {**arrays, **feeds, "target": np.zeros_like(result)}
    return Source(model, model.graph.output[0].name, weights, values)


def with_weights_as_inputs(given: Source) -> onnx.ModelProto:
    """Return a model with its loss in plain operators, in which the weights are inputs."""
    model, weights, values = given.model, given.weights, given.values
    output = next(v for v in model.graph.output if v.name == given.output)
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
    for value in model.graph.input:  # the others want to know all shapes
        if value.name in values:
            shape = value.type.tensor_type.shape
            shape.Clear()
            shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=size) for size in values[value.name].shape
            )
    del model.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def count(graph: onnx.GraphProto) -> collections.Counter[str]:
    """Nodes by operator, with those of bodies and without constants."""
    found: collections.Counter[str] = collections.Counter()
    for node in graph.node:
        found[node.op_type] += node.op_type != "Constant"
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += count(attribute.g)
    return found


def least_times(
    models: dict[str, onnx.ModelProto], values: dict[str, np.ndarray]
) -> dict[str, float]:
    """Return the least time of a run of each, in turn; of those that stock onnxruntime runs."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    runs = {}
    for system, model in models.items():
        with contextlib.suppress(Exception):
            session = ort.InferenceSession(model.SerializeToString(), options)
            feeds = {v.name: feed(v, values) for v in session.get_inputs()}
            session.run(None, feeds)
            runs[system] = (session, feeds)
    best = dict.fromkeys(runs, float("inf"))
    stop = time.monotonic() + SECONDS
    for number in range(RUNS):
        for system, (session, feeds) in runs.items():
            start = time.perf_counter()
            session.run(None, feeds)
            best[system] = min(best[system], time.perf_counter() - start)
        if number > 4 and time.monotonic() > stop:
            break
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


def cells(results: dict[str, Any], values: dict[str, np.ndarray]) -> list[str]:
    """Return number of nodes and time of each system."""
    found = {}
    for system, gradient in results.items():
        if isinstance(gradient, onnx.ModelProto):
            found[system] = gradient
            with contextlib.suppress(Exception):
                found[system] = onnx.inliner.inline_local_functions(gradient)
    times = least_times(found, values)
    texts = []
    for system, gradient in results.items():
        if system not in found:
            texts.append("not measured" if gradient is None else "none")
            continue
        size = sum(count(found[system].graph).values())
        spent = times.get(system)
        texts.append(f"{size} ({spent * 1e6:.0f} µs)" if spent else f"{size} (not run)")
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--onnx-ad", help="Python with onnx-ad")
    parser.add_argument("--onnxruntime-training", help="Python with onnxruntime-training")
    parser.add_argument("--show", nargs="*", default=[], help="print operators of these models")
    given = parser.parse_args()
    sources = {name: source(name) for name in MODELS}
    files = {
        name: (with_weights_as_inputs(given), given.weights) for name, given in sources.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        peers = {
            "onnx-ad": others(given.onnx_ad, "onnx-ad", files, Path(folder)),
            "onnxruntime-training": others(
                given.onnxruntime_training, "onnxruntime-training", files, Path(folder)
            ),
        }
    lines = []
    for name, (model, weights) in files.items():
        ours = og.gradient(model, weights, ["loss"], fill_grad=True, keep_outputs=True, inline=True)
        results = {"onnxgrad": ours} | {peer: found.get(name) for peer, found in peers.items()}
        forward = str(sum(count(model.graph).values()))
        row = [forward, *cells(results, sources[name].values)]
        for system, found in peers.items():
            if isinstance(found.get(name), str):
                print(f"{system}, {name}: {found[name]}", file=sys.stderr)
            if name in given.show and isinstance(found.get(name), onnx.ModelProto):
                print(name, system, count(ours.graph) - count(found[name].graph))
        lines.append(f"| {MODELS[name]} (`{name}`) | " + " | ".join(row) + " |")
        print(lines[-1], flush=True)
    text = HEAD.format(version=ort.__version__) + "\n".join(lines) + "\n" + TAIL
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
