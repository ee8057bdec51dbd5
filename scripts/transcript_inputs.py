"""Files that the transcripts of docs/transcripts.md begin with; each section has a folder."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx.parser
from onnx import numpy_helper

from source_files import ROOT

_EXAMPLES = ROOT / "examples"


def network(text: str, shapes: dict[str, tuple[int, ...]], seed: int) -> onnx.ModelProto:
    """Return a model of ONNX's text syntax with weights as new layers have them."""
    rng = np.random.default_rng(seed)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for name, shape in shapes.items():
        inputs = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        values = np.zeros(shape) if len(shape) == 1 else rng.normal(size=shape) / inputs**0.5
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return model


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits of scikit-learn as images [N, 1, 8, 8], in an order of their own."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return (X[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8), y[order].astype(np.int64)


def write_one_layer(folder: Path) -> None:
    """Write a network whose file fixes the batch, and its rows."""
    text = """g (float[1, 1, 8, 8] image) => (float[1, 10] scores) <int64[2] shape = {1, 128}> {
      c = Conv <pads = [1, 1, 1, 1]> (image, conv, shift)
      r = Relu (c)
      p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
      f = Reshape (p, shape)
      scores = Gemm (f, dense, bias)
    }"""
    shapes = {"conv": (8, 1, 3, 3), "shift": (8,), "dense": (128, 10), "bias": (10,)}
    onnx.save(network(text, shapes, 0), folder / "cnn.onnx")
    image, digit = digits()
    np.savez(folder / "train.npz", image=image[:200], digit=digit[:200])
    np.savez(folder / "test.npz", image=image[200:300], digit=digit[200:300])


def two_layers(width: int, classes: int) -> onnx.ModelProto:
    """Return a network of two convolutions."""
    text = """g (float[N, 1, 8, 8] image) => (float[N, CLASSES] scores) {
      a = Conv <pads = [1, 1, 1, 1]> (image, conv1, bias1)
      b = Relu (a)
      c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (b, conv2, bias2)
      d = Relu (c)
      e = Flatten (d)
      scores = Gemm (e, dense, bias3)
    }"""
    shapes: dict[str, tuple[int, ...]] = {
        "conv1": (width, 1, 3, 3), "bias1": (width,), "conv2": (2 * width, width, 3, 3),
        "bias2": (2 * width,), "dense": (32 * width, classes), "bias3": (classes,),
    }  # fmt: skip
    return network(text.replace("CLASSES", str(classes)), shapes, 0)


def shared_bias() -> onnx.ModelProto:
    """Return a perceptron whose exporter wrote two biases, which are zeros, as one tensor."""
    text = """g (float[N, 1, 8, 8] image) => (float[N, 10] scores) {
      a = Flatten (image)
      b = Gemm (a, dense1, zeros)
      c = Relu (b)
      d = Gemm (c, dense2, zeros)
      e = Relu (d)
      scores = Gemm (e, dense3, bias)
    }"""
    shapes: dict[str, tuple[int, ...]] = {
        "dense1": (64, 32), "zeros": (32,), "dense2": (32, 32), "dense3": (32, 10), "bias": (10,),
    }  # fmt: skip
    return network(text, shapes, 0)


def write_preferences(folder: Path) -> None:
    """Write verses as answers that are preferred to their letters in reverse."""
    text = (folder / "sonnets.txt").read_text(encoding="utf-8")
    verses = [line for line in text.splitlines() if len(line) > 30][:24]
    pairs = (
        {"prompt": verse[:12], "chosen": verse[12:40], "rejected": verse[12:40][::-1]}
        for verse in verses
    )
    lines = "".join(f"{json.dumps(pair)}\n" for pair in pairs)
    (folder / "preferences.jsonl").write_text(lines, encoding="utf-8")


def write_fine_tuning(folder: Path) -> None:
    """Write the networks, digits, texts and pairs of the section on fine-tuning."""
    onnx.save(shared_bias(), folder / "shared.onnx")
    for name, width, classes in (("cnn", 8, 5), ("big", 16, 10), ("small", 2, 10)):
        onnx.save(two_layers(width, classes), folder / f"{name}.onnx")
    image, digit = digits()
    low = digit < 5
    np.savez(folder / "low.npz", image=image[low], digit=digit[low])
    others, numbers = image[~low], digit[~low] - 5
    np.savez(folder / "few.npz", image=others[:100], digit=numbers[:100])
    np.savez(folder / "other.npz", image=others[100:], digit=numbers[100:])
    np.savez(folder / "train.npz", image=image[:1200], digit=digit[:1200])
    np.savez(folder / "test.npz", image=image[1200:], digit=digit[1200:])
    for name in ("decoder.onnx", "sonnets.txt"):
        shutil.copy(_EXAMPLES / "language" / name, folder)
    write_preferences(folder)

    sys.path.insert(0, str(_EXAMPLES / "sentences"))
    import train as sentences

    onnx.save(sentences.make_encoder(), folder / "encoder.onnx")
    with sentences.PAIRS.open(encoding="utf-8", newline="") as file:
        pairs = list(csv.DictReader(file))
    questions = sentences.numbers_of([pair["question"] for pair in pairs])
    answers = sentences.numbers_of([pair["answer"] for pair in pairs])
    order = np.random.default_rng(0).permutation(len(pairs))
    for name, rows in (("held.jsonl", order[:40]), ("pairs.jsonl", order[40:])):
        lines = (json.dumps({"x": questions[i].tolist(), "x_2": answers[i].tolist()}) for i in rows)
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
