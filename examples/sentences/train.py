"""Train a small sentence encoder on pairs of questions and answers, and ask it questions.

    python examples/sentences/train.py

The encoder reads numbers of character trigrams, hashed into 2048 buckets: their vectors are
averaged and go through two layers. InfoNCE brings a question near to its answer, and away from the
other answers of a batch. A quarter of the pairs is held out: the table counts how often their
questions find their own answers among all that are held out.
"""

import csv
import zlib
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

PAIRS = Path(__file__).with_name("pairs.csv")
BUCKETS, LENGTH, WIDTH = 2048, 64, 48


def numbers_of(texts):
    """Return the trigrams of texts [N, LENGTH] as numbers from 1; 0 fills up."""
    rows = np.zeros((len(texts), LENGTH), np.int64)
    for row, text in zip(rows, texts, strict=True):
        padded = f" {text.lower()} "
        grams = [padded[i : i + 3] for i in range(len(padded) - 2)][:LENGTH]
        row[: len(grams)] = [1 + zlib.crc32(gram.encode()) % (BUCKETS - 1) for gram in grams]
    return rows


def make_encoder(seed=0):
    """Return a model: x [N, LENGTH] numbers of trigrams, embedding [N, WIDTH]."""
    rng = np.random.default_rng(seed)

    def weight(name, *shape, scale=1.0):
        return numpy_helper.from_array((scale * rng.normal(size=shape)).astype(np.float32), name)

    nodes = [
        helper.make_node("Gather", ["table", "x"], ["vectors"]),
        helper.make_node("Sign", ["x"], ["signs"]),
        helper.make_node("Cast", ["signs"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["vectors", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "places"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "places"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("Gemm", ["mean", "first", "bias"], ["hidden"]),
        helper.make_node("Tanh", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "second"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["N", LENGTH])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["N", WIDTH])],
        [
            weight("table", BUCKETS, WIDTH),
            weight("first", WIDTH, WIDTH, scale=WIDTH**-0.5),
            weight("bias", WIDTH, scale=0.01),
            weight("second", WIDTH, WIDTH, scale=WIDTH**-0.5),
            numpy_helper.from_array(np.array([2], np.int64), "last"),
            numpy_helper.from_array(np.array([1], np.int64), "places"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 8
    return model


def main(epochs=60):
    """Train, print a table, and return recall@1 before and after."""
    with PAIRS.open(encoding="utf-8", newline="") as file:
        pairs = list(csv.DictReader(file))
    order = np.random.default_rng(0).permutation(len(pairs))
    held_out, kept = order[: len(pairs) // 4], order[len(pairs) // 4 :]
    questions = numbers_of([pair["question"] for pair in pairs])
    answers = numbers_of([pair["answer"] for pair in pairs])

    loss = og.losses.InfoNCE(views=2, symmetric=True, temperature=0.1)
    trainer = og.Trainer(make_encoder(), loss, og.optimizers.Adam(lr=0.01))

    def measured():
        embeddings = trainer.predict(questions[held_out]), trainer.predict(answers[held_out])
        return og.embeddings.retrieval(*embeddings)

    before = measured()
    rows = {"x": questions[kept], "x_2": answers[kept]}
    trainer.fit(rows, epochs=epochs, batch_size=40, verbose=0)
    after = measured()
    print(f"{len(kept)} pairs to learn from, {len(held_out)} held out")
    print(f"{'':12}{'before':>8}{'after':>8}")
    for name in before:
        print(f"{name:12}{before[name]:8.2f}{after[name]:8.2f}")
    return before["recall@1"], after["recall@1"]


if __name__ == "__main__":
    main()
