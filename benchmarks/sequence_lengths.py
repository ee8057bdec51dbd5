"""Time per token of sequences of one length and of many, and what ten thousand lengths cost.

    python benchmarks/sequence_lengths.py [--check]
    make lengths                                # with --check: exit status 1 if a goal is missed

A causal layer of attention (width 128, vocabulary 1000), batches of 16 sequences, Adam: all of
length 256, or of lengths from 16 to 496, in buckets and each batch at its own length. Then a small
network without attention on 10,000 sequences, each of another length, in batches of 4. Times are
those of the shortest epoch of a fit but its first, divided by the tokens that are not padding. The
last line is the worst case: 10,000 batches of 10,000 lengths without buckets, each of which has a
plan of its own.

The goals: time per token with buckets within 15 % of one length; a second epoch of ten thousand
lengths needs no more memory than the first.
"""

import argparse
import resource
import sys
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

VOCABULARY = 1000


def network(width: int, classes: int, longest: int, *, attention: bool) -> onnx.ModelProto:
    """Return a network from ids [N, T] to scores [N, T, classes]."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def op(kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(array: object) -> str:
        weights.append(numpy_helper.from_array(np.asarray(array), f"c{len(weights)}"))
        return weights[-1].name

    def weight(*shape: int) -> str:
        return constant((0.05 * rng.standard_normal(shape)).astype(np.float32))

    x = op("Gather", weight(VOCABULARY, width), "ids")
    if attention:
        length = op("Gather", op("Shape", "ids"), constant(np.array([1])))
        places = op("Slice", weight(longest, width), constant(np.array([0])), length)
        x = op("Add", x, places)
        query, key, value = (op("MatMul", x, weight(width, width)) for _ in range(3))
        scores = op("MatMul", query, op("Transpose", key, perm=[0, 2, 1]))
        above = np.triu(np.full((longest, longest), -1e9, np.float32), 1)
        both = op("Concat", length, length, axis=0)
        axes = constant(np.array([0, 1]))
        mask = op("Slice", constant(above), constant(np.array([0, 0])), both, axes)
        x = op("Add", x, op("MatMul", op("Softmax", op("Add", scores, mask)), value))
    x = op("Relu", op("MatMul", x, weight(width, 4 * width)))
    y = op("MatMul", x, weight(4 * width, classes))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", "T"])
    result = helper.make_tensor_value_info(y, TensorProto.FLOAT, ["N", "T", classes])
    graph = helper.make_graph(nodes, "g", [ids], [result], weights)
    opset = helper.make_opsetid("", 18)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def measure(
    label: str,
    model: onnx.ModelProto,
    lengths: np.ndarray,
    batch: int,
    classes: int = VOCABULARY,
    epochs: int = 5,
    **options: object,
) -> tuple[float, float]:
    """Fit and print a line; return microseconds per token and the growth of the peak."""
    rng = np.random.default_rng(1)
    ids = [rng.integers(0, VOCABULARY, length) for length in lengths]
    data = og.data.Sequences(ids, [one % classes for one in ids], batch_size=batch, **options)
    loss = og.losses.SoftmaxCrossEntropy(ignore_index=-100)
    trainer = og.Trainer(model, loss, "adam", threads=1)
    starts = [time.perf_counter()]
    resident = []

    def note(*_: object) -> None:
        starts.append(time.perf_counter())
        resident.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    trainer.fit(data, epochs=epochs, callbacks=[note], verbose=0)
    seconds = np.diff(starts)[1:].min()
    print(
        f"{label:<34}{1e6 * seconds / lengths.sum():8.2f} us per token,"
        f"{trainer.session.num_compiled:5} plans, first epoch {starts[1] - starts[0]:6.2f} s, "
        f"later {seconds:6.2f} s, peak {resident[0]:.0f} and {resident[1]:.0f} MB",
        flush=True,
    )
    return 1e6 * seconds / lengths.sum(), resident[1] / resident[0] - 1


def main() -> int:
    """Print a line for each kind of data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    arguments = parser.parse_args()
    rng = np.random.default_rng(2)
    model = network(128, VOCABULARY, 512, attention=True)
    lengths = rng.integers(16, 497, 384)
    fixed, _ = measure("all of length 256", model, np.full(384, 256), 16)
    for number in (8, 16):
        bucketed, _ = measure(
            f"16 to 496, {number} buckets", model, lengths, 16, bucket_by_length=number
        )
    measure("16 to 496, each batch its own", model, lengths, 16, bucket_by_length=False)
    small = network(8, 4, 0, attention=False)
    every = rng.permutation(np.arange(1, 10001))
    measure("all of length 5000", small, np.full(10000, 5000), 4, classes=4, epochs=2)
    _, growth = measure("1 to 10,000, 16 buckets", small, every, 4, classes=4, epochs=2)
    _, own_growth = measure(
        "1 to 10,000, a plan for each", small, every, 1, classes=4, epochs=2, bucket_by_length=False
    )
    missed = []
    if bucketed > 1.15 * fixed:
        missed.append(f"{bucketed / fixed:.2f} times the time per token of one length")
    missed += [f"the peak grows by {g:.0%}" for g in (growth, own_growth) if g > 0.05]
    for line in missed:
        print(f"sequence_lengths.py: {line}", file=sys.stderr)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
