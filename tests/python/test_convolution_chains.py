"""Depthwise convolutions of many images, computed with their neighbours some images at a time,
beside stock onnxruntime."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import onnxgrad as og

NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
network (float[N, 3, S, S] x) => (float[N, 4] y{declared})
<float[16] b0, float[96] b1, float[96] scale, float[96] shift, float[96] mean, float[96] var,
 float[16] b3, float low = {{0}}, float high = {{6}}>
{{
    stem = Conv <pads = [1, 1, 1, 1]> (x, w0, b0)
    h = Relu (stem)
    wide0 = Conv (h, w1, b1)
    wide1 = Clip (wide0, low, high)
    wide2 = Conv <group = 96, pads = [2, 2, 2, 2]> (wide1, w2)
    wide3 = BatchNormalization (wide2, scale, shift, mean, var)
    wide4 = HardSwish (wide3)
    narrow = Conv (wide4, w3, b3)
    block = Add (narrow, h)
    deep = Conv <group = 16, strides = [2, 2]> (block, w4)
    last = Conv (deep, w5)
    pooled = GlobalAveragePool (last)
    y = Flatten (pooled)
}}
"""
SHAPES = {
    "w0": (16, 3, 3, 3), "b0": (16,), "w1": (96, 16, 1, 1), "b1": (96,), "w2": (96, 1, 5, 5),
    "scale": (96,), "shift": (96,), "mean": (96,), "var": (96,), "w3": (16, 96, 1, 1), "b3": (16,),
    "w4": (16, 1, 3, 3), "w5": (4, 16, 1, 1),
}  # fmt: skip


def network(declared=(), activation="Clip"):
    """`declared`: further outputs. The activation after the depthwise convolution may be HardSwish,
    which no convolution takes in."""
    text = NETWORK.format(declared="".join(f", float[N, C, T, U] {name}" for name in declared))
    if activation == "Clip":
        text = text.replace("HardSwish (wide3)", "Clip (wide3, low, high)")
    head, body = text.split("\n<float[16]")
    body = body.partition(">\n")[2]
    model = parser.parse_model(head + "\n" + body)
    generator = np.random.default_rng(7)
    for name, shape in SHAPES.items():
        value = generator.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))
        value = np.abs(value) + 0.5 if name in ("scale", "var") else value
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    for name, bound in (("low", 0), ("high", 1.5)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(bound), name))
    return model


def images(rows, size=24, seed=3):
    return np.random.default_rng(seed).standard_normal((rows, 3, size, size)).astype(np.float32)


def expected(model, x):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})


def chains(session):
    return session.plan_summary().count("ConvChain")


@pytest.mark.parametrize(
    ("rows", "threads", "activation"),
    list(itertools.product([1, 2, 7, 8, 33], [1, 2, 3], ["Clip", "HardSwish"])),
)
def test_inference_agrees_with_onnxruntime(rows, threads, activation):
    model, x = network(activation=activation), images(rows)
    session = og.InferenceSession(model, threads=threads)
    given = session.run(None, {"x": x})[0]
    np.testing.assert_allclose(given, expected(model, x)[0], rtol=1e-4, atol=1e-5)
    # Results of 24 x 24 of 96 channels: from five images on more than a cache; of 16: from 29 on,
    # which are one chain with the others where nothing is in between.
    assert chains(session) == (rows > 4) + (rows > 28 and activation == "HardSwish")


def test_batches_and_sizes_take_turns():
    """Each has a plan of its own, with chains or without, that reads the same constants."""
    model = network()
    session = og.InferenceSession(model, threads=2)
    for rows, size in [(9, 24), (2, 24), (3, 40), (1, 9), (9, 24), (30, 15)]:
        x = images(rows, size, seed=rows + size)
        given = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(given, expected(model, x)[0], rtol=1e-4, atol=1e-5)


def test_what_is_asked_for_is_computed():
    model, x = network(declared=("wide1", "wide4", "narrow")), images(8)
    session = og.InferenceSession(model)
    for given, wanted in zip(session.run(None, {"x": x}), expected(model, x), strict=True):
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
    assert chains(session) == 0


def test_results_between_take_no_memory():
    x, one = images(32), 4 * 96 * 24 * 24
    used = []
    for declared in ((), ("wide1", "wide4")):
        session = og.InferenceSession(network(declared), threads=1)
        session.run(None, {"x": x})
        used.append(session.memory().activations + session.memory().scratch)
    assert used[0] < 12 * one
    assert used[1] > 2 * 32 * one


def test_same_bits_in_a_second_session():
    model, x = network(), images(8)
    runs = [og.InferenceSession(model, threads=2).run(None, {"x": x})[0] for _ in range(3)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_trained_network_predicts_what_onnxruntime_does(precision):
    """Training reads what is between the convolutions; evaluation and predictions do not."""
    x, y = images(24), np.arange(24) % 4
    trainer = og.Trainer(
        network(), loss="softmax_cross_entropy", optimizer=og.optimizers.SGD(0.01),
        precision=precision, threads=2,
    )  # fmt: skip
    trainer.fit(x, y, validation=(x, y), epochs=2, batch_size=8, verbose=0)
    model = trainer.trained_model()
    given = og.InferenceSession(model, threads=2).run(None, {"x": x})[0]
    wanted = expected(model, x)[0]
    np.testing.assert_allclose(given, wanted, rtol=1e-3, atol=1e-4)
    predicted = trainer.predict(x)
    tolerance = 1e-4 if precision == "float32" else 0.05
    np.testing.assert_allclose(predicted, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sizes", [(3000,), (12, 13, 19)])
def test_one_and_three_axes(sizes):
    rank = len(sizes)
    model = parser.parse_model(
        f"""
        <ir_version: 8, opset_import: ["" : 17]>
        network (float[N, {",".join(["4", *"STU"[:rank]])}] x) =>
            (float[N, {",".join(["24", *"VWX"[:rank]])}] y)
        {{
            wide = Conv (x, w0)
            y = Conv <group = 24, auto_pad = "SAME_UPPER"> (wide, w1)
        }}"""
    )
    generator = np.random.default_rng(2)
    for name, shape in (("w0", (24, 4, *[1] * rank)), ("w1", (24, 1, *[3] * rank))):
        value = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    x = generator.standard_normal((5, 4, *sizes)).astype(np.float32)
    session = og.InferenceSession(model, threads=2)
    given = session.run(None, {"x": x})[0]
    np.testing.assert_allclose(given, expected(model, x)[0], rtol=1e-4, atol=1e-5)
    assert chains(session) == 1
