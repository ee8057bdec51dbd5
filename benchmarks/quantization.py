"""Accuracy of quantized networks: onnxruntime's post-training quantization, and training.

    apt-get install dataset-fashion-mnist fortunes
    python benchmarks/quantization.py                # the table, 3 seeds
    python benchmarks/quantization.py --write        # also into docs/fine-tuning.md

Each network starts from random weights in an ONNX graph and is trained in float32. It is then
trained on, for as many epochs, in float32 and with ``quantize="int8"`` or ``"int4"``; the float
model is quantized by `onnxruntime.quantization.quantize_static` (int8 or int4 weights per channel,
int8 activations, its default calibration). Every quantized file is evaluated by onnxruntime, on
rows that no training and no calibration saw.

- digits: 8 x 8 images of scikit-learn, 1,000 to train on, 797 to test.
- Fashion-MNIST, of Debian's dataset-fashion-mnist: 28 x 28, 5,000 and 10,000.
- fortunes: short texts of Debian's fortunes in six collections, three quarters and one quarter; a
  transformer of two layers on words.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import pathlib
import re
import statistics
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnxruntime import quantization as stock
from sklearn.datasets import load_digits

import onnxgrad as og

ROOT = pathlib.Path(__file__).resolve().parent.parent
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
FORTUNES = pathlib.Path("/usr/share/games/fortunes")
COLLECTIONS = ("definitions", "computers", "songs-poems", "people", "zippy", "knghtbrd")
PACKAGES = "apt-get install dataset-fashion-mnist fortunes"
WORDS, LENGTH = 2000, 32
CALIBRATION_ROWS = 512


class Task(NamedTuple):
    """Rows to train on and to test with, a network, and the epochs of both trainings."""

    train: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    test: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
    network: Callable[[], onnx.ModelProto]
    epochs: int
    more_epochs: int


def network(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """A graph in ONNX's text syntax, with zeros for its weights."""
    header = ", ".join(
        f"float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items()
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]> {text.replace("WEIGHTS", header)}'
    )
    for value in [one for one in model.graph.input if one.name in shapes]:
        model.graph.input.remove(value)
    for name, shape in shapes.items():
        fill = np.ones if name.startswith("scale") else np.zeros
        model.graph.initializer.append(onnx.numpy_helper.from_array(fill(shape, np.float32), name))
    return model


def small_cnn() -> onnx.ModelProto:
    return network(
        """cnn (float[N, 1, 8, 8] x) => (float[N, 10] y) <WEIGHTS> {
             a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
             r = Relu (a)
             p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
             c = Conv <pads = [1, 1, 1, 1]> (p, w2, b2)
             s = Relu (c)
             f = Flatten (s)
             g = Gemm (f, w3, b3)
             h = Relu (g)
             y = Gemm (h, w4, b4)
           }""",
        w1=(8, 1, 3, 3), b1=(8,), w2=(16, 8, 3, 3), b2=(16,),
        w3=(256, 32), b3=(32,), w4=(32, 10), b4=(10,),
    )  # fmt: skip


def cnn() -> onnx.ModelProto:
    return network(
        """cnn (float[N, 1, 28, 28] x) => (float[N, 10] y) <WEIGHTS> {
             a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w1)
             n = BatchNormalization (a, scale1, shift1, mean1, scale_variance1)
             r = Relu (n)
             c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (r, w2)
             m = BatchNormalization (c, scale2, shift2, mean2, scale_variance2)
             s = Relu (m)
             d = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (s, w3, b3)
             t = Relu (d)
             f = Flatten (t)
             y = Gemm (f, w4, b4)
           }""",
        w1=(16, 1, 3, 3), scale1=(16,), shift1=(16,), mean1=(16,), scale_variance1=(16,),
        w2=(32, 16, 3, 3), scale2=(32,), shift2=(32,), mean2=(32,), scale_variance2=(32,),
        w3=(32, 32, 3, 3), b3=(32,), w4=(512, 10), b4=(10,),
    )  # fmt: skip


def transformer() -> onnx.ModelProto:
    block = """
      n{i} = LayerNormalization (h{i}, scale_a{i}, shift_a{i})
      q{i} = MatMul (n{i}, wq{i})
      k{i} = MatMul (n{i}, wk{i})
      v{i} = MatMul (n{i}, wv{i})
      t{i} = Attention <q_num_heads = 4, kv_num_heads = 4> (q{i}, k{i}, v{i})
      o{i} = MatMul (t{i}, wo{i})
      r{i} = Add (h{i}, o{i})
      m{i} = LayerNormalization (r{i}, scale_b{i}, shift_b{i})
      u{i} = MatMul (m{i}, wu{i})
      b{i} = Add (u{i}, bu{i})
      g{i} = Gelu (b{i})
      d{i} = MatMul (g{i}, wd{i})
      h{next} = Add (r{i}, d{i})"""
    blocks = "".join(block.format(i=i, next=i + 1) for i in range(2))
    shapes: dict[str, tuple[int, ...]] = {"table": (WORDS, 64), "places": (LENGTH, 64)}
    for i in range(2):
        shapes |= {f"{name}{i}": (64, 64) for name in ("wq", "wk", "wv", "wo")}
        shapes |= {f"{name}{i}": (64,) for name in ("scale_a", "shift_a", "scale_b", "shift_b")}
        shapes |= {f"wu{i}": (64, 128), f"bu{i}": (128,), f"wd{i}": (128, 64)}
    shapes |= {"head": (64, len(COLLECTIONS)), "bias": (len(COLLECTIONS),)}
    model = network(
        f"""transformer (int64[N, {LENGTH}] x) => (float[N, {len(COLLECTIONS)}] y) <WEIGHTS> {{
              e = Gather (table, x)
              h0 = Add (e, places)
              {blocks}
              z = ReduceMean <keepdims = 0> (h2, axes)
              p = MatMul (z, head)
              y = Add (p, bias)
            }}""",
        **shapes,
    )
    axes = onnx.numpy_helper.from_array(np.array([1]), "axes")
    model.graph.initializer.append(axes)
    model.opset_import[0].version = 23
    # Attention of opset 23 is written out: onnxruntime quantizes products, not attentions.
    return written_out(model)


def written_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each Attention as products and a softmax, in opset 21."""
    nodes = []
    for node in model.graph.node:
        if node.op_type != "Attention":
            nodes.append(node)
            continue
        (name,) = node.output

        def heads(value: str, perm: list[int], name: str = name) -> str:
            split, moved = f"{name}_{value}_split", f"{name}_{value}"
            nodes.append(onnx.helper.make_node("Reshape", [value, "heads"], [split]))
            nodes.append(onnx.helper.make_node("Transpose", [split], [moved], perm=perm))
            return moved

        query, value = heads(node.input[0], [0, 2, 1, 3]), heads(node.input[2], [0, 2, 1, 3])
        key = heads(node.input[1], [0, 2, 3, 1])
        for op_type, inputs, output, attributes in (
            ("MatMul", [query, key], "dots", {}),
            ("Mul", [f"{name}_dots", "scaling"], "scaled", {}),
            ("Softmax", [f"{name}_scaled"], "shares", {"axis": -1}),
            ("MatMul", [f"{name}_shares", value], "mixed", {}),
            ("Transpose", [f"{name}_mixed"], "back", {"perm": [0, 2, 1, 3]}),
        ):
            nodes.append(onnx.helper.make_node(op_type, inputs, [f"{name}_{output}"], **attributes))
        nodes.append(onnx.helper.make_node("Reshape", [f"{name}_back", "joined"], [name]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for name, numbers in (
        ("heads", np.array([0, LENGTH, 4, 16])),
        ("joined", np.array([0, LENGTH, 64])),
        ("scaling", np.array(0.25, np.float32)),
    ):
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    model.opset_import[0].version = 21
    return model


def digits() -> Task:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = (X[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8), y[order]
    return Task((X[:1000], y[:1000]), (X[1000:], y[1000:]), small_cnn, 30, 12)


def fashion() -> Task:
    def read(name: str, header: int) -> np.ndarray[Any, Any]:
        data = gzip.decompress((FASHION / name).read_bytes())
        return np.frombuffer(data, np.uint8, offset=header)

    def images(part: str, rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        X = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[:rows]
        labels = read(f"{part}-labels-idx1-ubyte.gz", 8)[:rows]
        return X.astype(np.float32) / 255, labels.astype(np.int64)

    return Task(images("train", 5000), images("t10k", 10000), cnn, 10, 5)


def fortunes() -> Task:
    texts, labels = [], []
    for label, name in enumerate(COLLECTIONS):
        for text in (FORTUNES / name).read_text(errors="replace").split("\n%\n"):
            words = re.findall(r"[a-z]+|[^a-z\s]", text.lower())[:LENGTH]
            if words:
                texts.append(words)
                labels.append(label)
    order = np.random.default_rng(0).permutation(len(texts))
    cut = 3 * len(texts) // 4
    counts = collections.Counter(word for i in order[:cut] for word in texts[i])
    known = {word: i + 2 for i, (word, _) in enumerate(counts.most_common(WORDS - 2))}
    X = np.zeros((len(texts), LENGTH), np.int64)  # 0: nothing; 1: another word
    for row, i in enumerate(order):
        X[row, : len(texts[i])] = [known.get(word, 1) for word in texts[i]]
    y = np.array(labels)[order]
    return Task((X[:cut], y[:cut]), (X[cut:], y[cut:]), transformer, 5, 3)


TASKS = {"CNN, digits": digits, "CNN, Fashion-MNIST": fashion, "transformer, fortunes": fortunes}


def accuracy(model: onnx.ModelProto | str, task: Task) -> float:
    source = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source)
    X, y = task.test
    hits = [
        session.run(None, {"x": X[i : i + 100]})[0].argmax(1) == y[i : i + 100]
        for i in range(0, len(X), 100)
    ]
    return 100 * float(np.concatenate(hits).mean())


class Rows(stock.CalibrationDataReader):  # type: ignore[misc]
    """The rows of a calibration, as quantize_static reads them."""

    def __init__(self, X: np.ndarray[Any, Any]) -> None:
        self.batches = iter([{"x": X[i : i + 32]} for i in range(0, len(X), 32)])

    def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
        return next(self.batches, None)


def stock_accuracy(model: onnx.ModelProto, task: Task, weights: str) -> float:
    """Return the accuracy after onnxruntime's static quantization."""
    types = {"int8": stock.QuantType.QInt8, "int4": stock.QuantType.QInt4}
    with tempfile.TemporaryDirectory() as folder:
        before, prepared, after = (f"{folder}/{name}.onnx" for name in ("float", "ready", "small"))
        onnx.save(model, before)
        stock.shape_inference.quant_pre_process(before, prepared)
        stock.quantize_static(
            prepared,
            after,
            Rows(task.train[0][:CALIBRATION_ROWS]),
            quant_format=stock.QuantFormat.QDQ,
            op_types_to_quantize=["Conv", "Gemm", "MatMul"],
            per_channel=True,
            weight_type=types[weights],
            activation_type=stock.QuantType.QInt8,
        )
        return accuracy(after, task)


def trained(
    model: onnx.ModelProto, epochs: int, task: Task, seed: int, lr: float = 1e-3, **options: Any
) -> onnx.ModelProto:
    """Return the model after a training with Adam whose rate falls to 0."""
    trainer = og.Trainer(model, optimizer="adam", lr=lr, schedule="cosine", seed=seed, **options)
    trainer.fit(*task.train, epochs=epochs, batch_size=64, verbose=0)
    return trainer.trained_model()


def measured(task: Task, seed: int) -> dict[str, float]:
    """The accuracies of one network in percent."""
    start = og.initialize(task.network(), seed=seed)
    first = trained(start, task.epochs, task, seed, lr=2e-3)
    longer = trained(first, task.more_epochs, task, seed)
    found = {"float": accuracy(longer, task)}
    for weights in ("int8", "int4"):
        found[f"onnxruntime {weights}"] = stock_accuracy(longer, task, weights)
        ours = trained(first, task.more_epochs, task, seed, quantize=weights)
        found[f"onnxgrad {weights}"] = accuracy(ours, task)
    return found


COLUMNS = ("float", "onnxruntime int8", "onnxgrad int8", "onnxruntime int4", "onnxgrad int4")


def table(results: dict[str, list[dict[str, float]]]) -> str:
    lines = [f"| accuracy, % | {' | '.join(COLUMNS)} |", "| --- |" + " --- |" * len(COLUMNS)]
    for name, found in results.items():
        means = [statistics.mean(one[column] for one in found) for column in COLUMNS]
        lines.append(f"| {name} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
    return "\n".join(lines) + "\n"


def write(text: str) -> None:
    page = ROOT / "docs" / "fine-tuning.md"
    before, begin, rest = page.read_text().partition("<!-- accuracy of quantized networks -->\n")
    _, end, after = rest.partition("<!-- end -->")
    page.write_text(before + begin + text + end + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", default="", help="part of the name of a task")
    parser.add_argument("--write", action="store_true", help="replace the table of the document")
    options = parser.parse_args()
    if not FASHION.is_dir() or not FORTUNES.is_dir():
        parser.error(f"the data are missing: {PACKAGES}")
    results = {}
    for name, make in TASKS.items():
        if options.tasks not in name:
            continue
        task = make()
        results[name] = [measured(task, seed) for seed in range(options.seeds)]
        print(table({name: results[name]}), flush=True)
    text = table(results)
    print(text)
    if options.write:
        write(text)


if __name__ == "__main__":
    main()
