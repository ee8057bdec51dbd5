"""Quantized operators beside stock onnxruntime and ONNX's evaluator; gradients by their formula."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as nh
import onnx.reference
import onnxruntime as ort
import pytest
from onnx import TensorProto

import onnxgrad as og
from contrib_samples import MICROSOFT, Numbers, Sample
from stock_products import largest_weight

F = np.float32

ort.set_default_logger_severity(4)


def run_stock(model: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def model_of(nodes: list, inputs: dict, outputs: list[str], constants: dict, opset: int = 25):
    graph = oh.make_graph(
        nodes,
        "quantized",
        [
            oh.make_tensor_value_info(name, oh.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in inputs.items()
        ],
        [oh.make_empty_tensor_value_info(name) for name in outputs],
        [
            oh.make_tensor(name, *value) if isinstance(value, tuple) else nh.from_array(value, name)
            for name, value in constants.items()
        ],
    )
    opsets = [oh.make_opsetid("", opset), oh.make_opsetid(MICROSOFT, 1)]
    return oh.make_model(graph, opset_imports=opsets, ir_version=11)


INTEGERS = ["INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4"]
FLOATS = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]
OTHERS = ["INT2", "UINT2", "FLOAT4E2M1"]
FORMS = {
    "one": ((), {}),
    "axis": ((3,), {"axis": 1}),
    "first_axis": ((4,), {"axis": 0}),
    "last_axis": ((6,), {"axis": -1}),
    "blocks": ((4, 3, 3), {"axis": 2, "block_size": 2}),
    "short_block": ((4, 3, 2), {"axis": -1, "block_size": 4}),
    "inner_blocks": ((2, 3, 6), {"axis": 0, "block_size": 2}),
}


def quantized_model(kind: str, form: str, *, back: bool = True) -> tuple:
    """X, quantized and back, with a zero point for integers."""
    shape, attributes = FORMS[form]
    rng = np.random.default_rng(len(kind) + len(form))
    x = (rng.normal(size=(4, 3, 6)) * 6).astype(F)
    scale = np.asarray(rng.uniform(0.05, 1.0, shape), F)
    dtype = getattr(TensorProto, kind)
    is_float = kind.startswith("FLOAT")
    low = 0 if kind.startswith("U") or is_float else -1
    zero = np.zeros(shape) if is_float else rng.integers(low, 2, shape)
    constants = {"scale": scale, "zero": (dtype, list(shape), zero.ravel().tolist())}
    nodes = [oh.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **attributes)]
    if back:
        nodes.append(oh.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], **attributes))
    return model_of(nodes, {"x": x}, ["y" if back else "q"], constants), x, scale, zero


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", INTEGERS + FLOATS + OTHERS)
def test_there_and_back(kind: str, form: str) -> None:
    model, x, _, _ = quantized_model(kind, form)
    if kind in INTEGERS or (kind in FLOATS and "block" not in form):
        expected = run_stock(model, {"x": x})[0]
    else:  # onnxruntime has no kernel
        expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    given = og.InferenceSession(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(given, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["INT8", "UINT8", "INT16", "UINT16"])
def test_codes(kind: str) -> None:
    model, x, _, _ = quantized_model(kind, "axis", back=False)
    x = np.concatenate([x.ravel()[:-4], [1e9, -1e9, 0.0, -0.0]]).astype(F).reshape(x.shape)
    expected = run_stock(model, {"x": x})[0]
    given = og.InferenceSession(model).run(None, {"x": x})[0]
    assert given.dtype == expected.dtype
    np.testing.assert_array_equal(given, expected)


def spread(values: np.ndarray, form: str, shape: tuple) -> np.ndarray:
    """The scale (or zero point) of each element."""
    attributes = FORMS[form][1]
    if values.ndim == 0:
        return np.full(shape, values)
    axis = attributes["axis"] % len(shape)
    if "block_size" not in attributes:
        return np.broadcast_to(values.reshape([-1 if i == axis else 1 for i in range(3)]), shape)
    return np.repeat(values, attributes["block_size"], axis).take(range(shape[axis]), axis)


def gather(values: np.ndarray, form: str, shape: tuple) -> np.ndarray:
    """Sums over the elements of each scale, by its number."""
    count = int(np.prod(shape, dtype=int))
    numbers = spread(np.arange(count, dtype=float).reshape(shape), form, values.shape)
    return np.bincount(numbers.astype(int).ravel(), values.ravel(), count).reshape(shape)


RANGES = {"INT8": (-128, 127), "UINT8": (0, 255), "INT4": (-8, 7), "UINT4": (0, 15)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", RANGES)
def test_straight_through_gradients(kind: str, form: str) -> None:
    """Gradients pass unless clipped; the scale's is that of Learned Step Size Quantization."""
    model, x, scale, zero = quantized_model(kind, form)
    model.graph.input.append(
        oh.make_tensor_value_info("scale", TensorProto.FLOAT, list(scale.shape))
    )
    del model.graph.initializer[0]
    gradient = og.gradient(model, ["x", "scale"], ["y"])
    seed = np.random.default_rng(0).normal(size=x.shape).astype(F)
    feeds = {"x": x, "scale": scale, "y_grad": seed}
    low, high = RANGES[kind]
    steps = spread(scale, form, x.shape).astype(float)
    zeros = spread(np.asarray(zero, float), form, x.shape)
    codes = np.round(x / steps) + zeros
    is_kept = (codes >= low) & (codes <= high)
    assert not is_kept.all() or kind in ("INT8", "UINT8")
    by_scale = np.where(is_kept, codes - zeros - x / steps, np.clip(codes, low, high) - zeros)
    expected = [np.where(is_kept, seed, 0), gather(seed * by_scale, form, scale.shape)]
    for ours, theirs in zip(og.InferenceSession(gradient).run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(run_stock(gradient, feeds), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_scales_equal_differences(form: str) -> None:
    """DequantizeLinear is linear in its scale."""
    shape, attributes = FORMS[form]
    rng = np.random.default_rng(0)
    codes = rng.integers(-128, 128, (4, 3, 6)).astype(np.int8)
    scale = np.asarray(rng.uniform(0.1, 1.0, shape), F)
    nodes = [oh.make_node("DequantizeLinear", ["q", "scale"], ["y"], **attributes)]
    model = model_of(nodes, {"q": codes, "scale": scale}, ["y"], {})
    gradient = og.gradient(model, ["scale"], ["y"])
    seed = rng.normal(size=codes.shape).astype(F)
    feeds = {"q": codes, "scale": scale, "y_grad": seed}
    given = og.InferenceSession(gradient).run(None, feeds)[0]
    direction = rng.normal(size=shape)
    step = run_stock(model, {"q": codes, "scale": np.asarray(scale + direction, F)})[0]
    change = float(np.sum(seed * (step - run_stock(model, {"q": codes, "scale": scale})[0])))
    np.testing.assert_allclose(np.sum(given * direction), change, rtol=1e-4)


def test_integer_products_equal_onnxruntimes() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (2, 5, 300)).astype(np.uint8)
    b = rng.integers(-largest_weight(), largest_weight(), (300, 4)).astype(np.int8)
    zeros = {"az": np.uint8(120), "bz": rng.integers(-9, 9, 4).astype(np.int8)}
    product = oh.make_node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])
    model = model_of([product], {"a": a, "b": b}, ["y"], zeros, 17)
    expected = run_stock(model, {"a": a, "b": b})[0]
    given = og.InferenceSession(model).run(None, {"a": a, "b": b})[0]
    np.testing.assert_array_equal(given, expected)

    x = rng.integers(0, 256, (2, 3, 6, 6)).astype(np.uint8)
    w = rng.integers(0, 256, (4, 3, 3, 3)).astype(np.uint8)
    conv = oh.make_node("ConvInteger", ["x", "w", "xz"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2])
    model = model_of([conv], {"x": x, "w": w}, ["y"], {"xz": np.uint8(7)}, 17)
    expected = run_stock(model, {"x": x, "w": w})[0]
    np.testing.assert_array_equal(
        og.InferenceSession(model).run(None, {"x": x, "w": w})[0], expected
    )


def close_codes(given: np.ndarray, expected: np.ndarray) -> None:
    """Products of floats and of integers may round a tie differently, rarely."""
    assert given.dtype == expected.dtype
    difference = np.abs(given.astype(int) - expected.astype(int))
    assert difference.max(initial=0) <= 1
    assert np.mean(difference) < 0.02


def test_quantized_products_are_onnxruntimes() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (5, 40)).astype(np.uint8)
    b = rng.integers(-largest_weight(), largest_weight(), (40, 6)).astype(np.int8)
    constants = {
        "as": F(0.02), "az": np.uint8(128),
        "bs": F(0.01), "bz": np.int8(2),
        "ys": F(0.05), "yz": np.uint8(100),
    }  # fmt: skip
    product = oh.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])
    model = model_of([product], {"a": a, "b": b}, ["y"], constants, 17)
    feeds = {"a": a, "b": b}
    close_codes(og.InferenceSession(model).run(None, feeds)[0], run_stock(model, feeds)[0])

    x = rng.integers(0, 256, (2, 3, 6, 6)).astype(np.uint8)
    constants = {
        "xs": F(0.02), "xz": np.uint8(120),
        "w": rng.integers(-largest_weight(), largest_weight(), (4, 3, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.005, 0.02, 4).astype(F), "wz": np.zeros(4, np.int8),
        "ys": F(0.03), "yz": np.uint8(110), "bias": rng.integers(-500, 500, 4).astype(np.int32),
    }  # fmt: skip
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "bias"]
    conv = oh.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])
    model = model_of([conv], {"x": x}, ["y"], constants, 17)
    close_codes(og.InferenceSession(model).run(None, {"x": x})[0], run_stock(model, {"x": x})[0])


@pytest.mark.parametrize("kind", FLOATS + OTHERS + ["INT4", "UINT4"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_casts(kind: str, saturate: int) -> None:
    """To the type and back, beside ONNX's evaluator."""
    edges = [0.0, -0.0, 0.5, 1.5, 2.5, -1.25, 5.0, 7.0, 240.0, 448.0, 57344.0, 0.001953125, 1e-4]
    x = np.array([*edges, *np.random.default_rng(0).normal(size=20) * 3], F)
    if kind in ("INT2", "UINT2", "INT4", "UINT4"):
        x = np.abs(x[:13]).clip(0, 1 if kind == "INT2" else 3 if kind == "UINT2" else 7)
    options = {"saturate": saturate} if kind in FLOATS else {}
    nodes = [
        oh.make_node("Cast", ["x"], ["q"], to=getattr(TensorProto, kind), **options),
        oh.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, {"x": x}, ["y"], {})
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_array_equal(og.InferenceSession(model).run(None, {"x": x})[0], expected)


def n_bits_sample(name: str, k: int, block: int, bits: int, **given) -> Sample:
    n = Numbers(20)
    rows, blocks = 3, -(-k // block)
    packed = n.integers(0, 256, (rows, blocks, block * bits // 8), np.uint8)
    scales = n.positive(rows, blocks)
    inputs = [n(2, 4, k), packed, scales]
    if given.get("zeros") == "packed":
        inputs.append(n.integers(0, 256, (rows, -(-blocks * bits // 8)), np.uint8))
    elif given.get("zeros") == "float":
        inputs.append(n(rows, blocks))
    else:
        inputs.append(None)
    inputs.append(np.arange(k, dtype=np.int32) // block if given.get("order") else None)
    inputs.append(n(rows) if given.get("bias") else None)
    attributes = {"K": k, "N": rows, "block_size": block, "bits": bits}
    while inputs[-1] is None:
        inputs.pop()
    return Sample(name, "MatMulNBits", inputs, attributes)


N_BITS = [
    n_bits_sample("four", 64, 32, 4),
    n_bits_sample("four_rest", 48, 32, 4),
    n_bits_sample("four_zeros", 96, 32, 4, zeros="packed"),
    n_bits_sample("four_float_zeros", 64, 16, 4, zeros="float"),
    n_bits_sample("four_bias", 64, 32, 4, bias=True),
    n_bits_sample("four_order", 64, 32, 4, order=True),
    n_bits_sample("eight", 64, 32, 8, zeros="packed"),
    n_bits_sample("two", 64, 32, 2, zeros="packed"),
]


@pytest.mark.parametrize("sample", N_BITS, ids=lambda sample: sample.name)
def test_products_with_few_bits(sample: Sample) -> None:
    """The quantized weights are constant; the scales have gradients."""
    whole = [1, 4] + ([3] if len(sample.inputs) > 3 and sample.inputs[3] is not None else [])
    fixed = tuple(i for i in whole if i < len(sample.inputs) and sample.inputs[i] is not None)
    model = sample.model(constants=fixed)
    feeds = {k: v for k, v in sample.feeds().items() if int(k[1:]) not in fixed}
    given = og.InferenceSession(model).run(None, feeds)[0]
    np.testing.assert_allclose(given, run_stock(model, feeds)[0], rtol=2e-4, atol=2e-4)
    gradient = og.gradient(model, ["x2"], ["y"])
    seed = np.random.default_rng(0).normal(size=given.shape).astype(F)
    by_scale = og.InferenceSession(gradient).run(None, {**feeds, "y_grad": seed})[0]
    direction = np.random.default_rng(1).normal(size=by_scale.shape).astype(F)
    moved = run_stock(model, {**feeds, "x2": feeds["x2"] + direction})[0]  # linear in the scales
    np.testing.assert_allclose(
        np.sum(by_scale * direction), np.sum(seed * (moved - given)), rtol=2e-3
    )


def test_quantized_attention_is_onnxruntimes() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, 4, 8)).astype(np.uint8)
    w = rng.integers(-largest_weight(), largest_weight(), (8, 24)).astype(np.int8)
    inputs = [
        x, w, rng.normal(size=24).astype(F), np.array(0.02, F), np.array(0.01, F),
        np.array([3, 4], np.int32), np.array(128, np.uint8), np.array(1, np.int8),
    ]  # fmt: skip
    sample = Sample("qattention", "QAttention", inputs, {"num_heads": 2})
    model = sample.model(constants=(1, 3, 4, 6, 7))
    feeds = {k: v for k, v in sample.feeds().items() if k in ("x0", "x2", "x5")}
    given = og.InferenceSession(model).run(None, feeds)[0]
    np.testing.assert_allclose(given, run_stock(model, feeds)[0], rtol=1e-4, atol=1e-4)


A, B = (
    np.random.default_rng(i).integers(0, 256, s).astype(np.uint8)
    for i, s in enumerate([(5, 8), (8, 6)])
)
ONE, TWO = (np.array(s, F) for s in (0.02, 0.03))
ZERO = np.array(120, np.uint8)
BIAS = np.random.default_rng(3).normal(size=6).astype(F)
PRODUCTS = {
    "to_float": ("MatMulIntegerToFloat", [A, B, ONE, TWO, ZERO, ZERO, BIAS], {}),
    "dynamic": ("DynamicQuantizeMatMul", [A.astype(F) / 50, B, ONE, ZERO, BIAS], {}),
    "gemm": (
        "QGemm",
        [A, ONE, ZERO, B, TWO, ZERO, np.arange(6, dtype=np.int32) * 99, np.array(0.2, F), ZERO],
        {"alpha": 1.0},
    ),
    "gemm_to_float": ("QGemm", [A.T, ONE, ZERO, B.T, TWO, ZERO], {"transA": 1, "transB": 1}),
    "quantize": ("QuantizeLinear", [BIAS, ONE, np.array(3, np.uint16)], {}),
    "dequantize": ("DequantizeLinear", [A, ONE, ZERO], {}),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_quantized_products_of_quantizers(name: str) -> None:
    op_type, inputs, attributes = PRODUCTS[name]
    inputs = [np.ascontiguousarray(array) for array in inputs]
    inputs = [
        array.reshape(given.shape) for array, given in zip(inputs, PRODUCTS[name][1], strict=True)
    ]
    sample = Sample(name, op_type, inputs, attributes)
    fixed = tuple(i for i, array in enumerate(inputs) if array.ndim == 0)
    model = sample.model(constants=fixed)
    feeds = {k: v for k, v in sample.feeds().items() if int(k[1:]) not in fixed}
    given = og.InferenceSession(model).run(None, feeds)[0]
    expected = run_stock(model, feeds)[0]
    if expected.dtype == F:
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)
    else:
        close_codes(given, expected)


def layer(op_type: str, count: int, **attributes) -> tuple:
    rng = np.random.default_rng(count)
    scales = [np.array(s, F) for s in (0.02, 0.03)][:count]
    parts = [rng.integers(0, 256, (2, 3, 4, 4)).astype(np.uint8) for _ in range(count)]
    operands = [v for p, s in zip(parts, scales, strict=True) for v in (p, s, np.uint8(120))]
    result = [np.array(0.05, F), np.array(100, np.uint8)]
    ordered = [*result, *operands] if op_type == "QLinearConcat" else [*operands, *result]
    return op_type, ordered, attributes


LAYERS = [
    layer("QLinearAdd", 2),
    layer("QLinearMul", 2),
    layer("QLinearSigmoid", 1),
    layer("QLinearLeakyRelu", 1, alpha=0.2),
    layer("QLinearGlobalAveragePool", 1),
    layer("QLinearAveragePool", 1, kernel_shape=[3, 1], strides=[1, 2]),
    layer("QLinearConcat", 2, axis=1),
    layer("QLinearSoftmax", 1, axis=-1, opset=13),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes"), LAYERS)
def test_quantized_layers_are_onnxruntimes(op_type: str, inputs: list, attributes: dict) -> None:
    inputs = [np.asarray(i) for i in inputs]
    if op_type == "QLinearSoftmax":
        inputs[-2:] = [np.array(1 / 256, F), np.array(0, np.uint8)]
    sample = Sample("layer", op_type, inputs, attributes)
    fixed = tuple(i for i, a in enumerate(inputs) if a.ndim == 0)
    model = sample.model(constants=fixed)
    feeds = {k: v for k, v in sample.feeds().items() if int(k[1:]) not in fixed}
    close_codes(og.InferenceSession(model).run(None, feeds)[0], run_stock(model, feeds)[0])


def test_a_quantized_network_is_trained_through() -> None:
    """As the quantizer writes it: weights and activations through QuantizeLinear and back."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype(F)
    y = (x @ rng.normal(size=(4, 1))).astype(F)
    constants = {
        "w1": (rng.normal(size=(4, 8)) * 0.5).astype(F), "s1": F(0.02), "z1": np.int8(0),
        "sa": F(0.05), "za": np.uint8(128),
        "w2": (rng.normal(size=(8, 1)) * 0.5).astype(F), "s2": F(0.02), "z2": np.int8(0),
    }  # fmt: skip
    nodes = []
    for weight, scale, zero in (("w1", "s1", "z1"), ("w2", "s2", "z2")):
        nodes.append(oh.make_node("QuantizeLinear", [weight, scale, zero], [weight + "_q"]))
        nodes.append(
            oh.make_node("DequantizeLinear", [weight + "_q", scale, zero], [weight + "_d"])
        )
    nodes += [
        oh.make_node("MatMul", ["X", "w1_d"], ["a"]),
        oh.make_node("Relu", ["a"], ["r"]),
        oh.make_node("QuantizeLinear", ["r", "sa", "za"], ["r_q"]),
        oh.make_node("Reshape", ["r_q", "shape"], ["r_s"]),
        oh.make_node("DequantizeLinear", ["r_s", "sa", "za"], ["r_d"]),
        oh.make_node("MatMul", ["r_d", "w2_d"], ["Y"]),
    ]
    constants["shape"] = np.array([-1, 8])
    model = model_of(nodes, {"X": x}, ["Y"], constants, 21)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
        value.type.tensor_type.shape.ClearField("dim")
        value.type.tensor_type.shape.dim.add().dim_param = "N"
    model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = 4
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 1
    trainer = og.Trainer(model, loss="mse", optimizer="adam", lr=0.01, trainable=["w1", "w2"])
    before = trainer.evaluate(x, y).loss
    trainer.fit(x, y, epochs=60, batch_size=16, verbose=False)
    after = trainer.evaluate(x, y).loss
    assert after < 0.1 * before
    trained = trainer.trained_model()
    stock = run_stock(trained, {"X": x})[0]
    assert np.mean((stock - y) ** 2) < 0.1 * before
    kinds = [[n.op_type for n in one.graph.node] for one in (model, trained)]
    assert kinds[0] == kinds[1]
