"""com.microsoft's operators beside stock onnxruntime, and their gradients beside differences."""

import dataclasses

import numpy as np
import onnx
import onnx.helper
import onnxruntime as ort
import pytest
from scipy.special import erf

import onnxgrad as og
from contrib_samples import Numbers, Sample, all_samples

STEP = 1e-5
DIRECTIONS = 3

ort.set_default_logger_severity(4)


def run_stock(model, feeds: dict, level: str = "ORT_DISABLE_ALL") -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)


@pytest.mark.parametrize("sample", all_samples(), ids=lambda sample: sample.name)
def test_equals_stock_onnxruntime(sample: Sample) -> None:
    feeds = sample.feeds()
    expected = run_stock(sample.model(), feeds)
    for symbolic in (False, True):
        model = sample.model(symbolic=symbolic and not sample.static_only)
        given = og.InferenceSession(model).run(None, feeds)
        for ours, theirs in zip(given, expected, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "sample", [s for s in all_samples() if s.gradient], ids=lambda sample: sample.name
)
def test_gradients_equal_differences(sample: Sample) -> None:
    """In float64, of every floating-point operand; stock onnxruntime runs the gradient too."""
    model, feeds = sample.model(np.float64), sample.feeds(np.float64)
    rng = np.random.default_rng(0)
    forward = og.InferenceSession(model)
    names = [output.name for output in forward.get_outputs()]
    values = dict(zip(names, forward.run(None, feeds), strict=True))
    names = [name for name in names if values[name].dtype == np.float64]
    seeds = {f"{name}_grad": rng.uniform(-1, 1, values[name].shape) for name in names}
    wrt = [name for name, array in feeds.items() if array.dtype == np.float64]
    gradient = og.gradient(model, wrt, names)
    inputs = {value.name for value in gradient.graph.input}
    fed = {name: array for name, array in {**feeds, **seeds}.items() if name in inputs}
    ours = og.InferenceSession(gradient).run(None, fed)
    # Some operators have float32 kernels only in onnxruntime.
    narrow = og.gradient(sample.model(), wrt, names)
    narrow_feeds = {
        name: array.astype(np.float32) if array.dtype == np.float64 else array
        for name, array in fed.items()
    }
    for given, stock in zip(ours, run_stock(narrow, narrow_feeds), strict=True):
        tolerance = sample.tolerance_float32 * max(1, np.abs(given).max(initial=0))
        np.testing.assert_allclose(stock, given, rtol=0, atol=tolerance)

    def objective(moved: dict[str, np.ndarray]) -> float:
        outputs = forward.run(names, moved)
        return sum(float(np.sum(s * y)) for s, y in zip(seeds.values(), outputs, strict=True))

    for name, given in zip(wrt, ours, strict=True):
        assert np.isfinite(given).all(), f"{name}: {given}"
        for _ in range(DIRECTIONS):
            direction = rng.normal(size=given.shape)
            sides = [
                objective({**feeds, name: feeds[name] + sign * STEP * direction})
                for sign in (1, -1)
            ]
            numeric = (sides[0] - sides[1]) / (2 * STEP)
            np.testing.assert_allclose(np.sum(given * direction), numeric, 1e-6, 1e-6, name)


# Operators that stock onnxruntime has on other devices only.


def test_packed_operands_are_the_separate_ones() -> None:
    n = Numbers(7)
    packed = n(2, 4, 2, 3, 4)  # [batch, sequence, heads, which, size]
    q, k, v = (packed[:, :, :, i].reshape(2, 4, 8) for i in range(3))
    heads = {"num_heads": 2}
    separate = Sample("separate", "MultiHeadAttention", [q, k, v], heads)
    expected = run_stock(separate.model(), separate.feeds())[0]
    pairs = np.ascontiguousarray(packed[:, :, :, 1:])
    for inputs in ([packed], [q, pairs]):
        sample = Sample("packed", "MultiHeadAttention", inputs, heads)
        given = og.InferenceSession(sample.model()).run(None, sample.feeds())[0]
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)


def test_bias_split_gelu() -> None:
    n = Numbers(8)
    x, bias = n(2, 3, 8), n(8)
    sample = Sample("split", "BiasSplitGelu", [x, bias])
    left, right = np.split(x + bias, 2, axis=-1)
    expected = left * right * 0.5 * (1 + erf(right / np.sqrt(2)))
    given = og.InferenceSession(sample.model()).run(None, sample.feeds())[0]
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)


def test_nhwc_conv_is_conv_with_channels_last() -> None:
    n = Numbers(9)
    x, w, bias = n(2, 4, 6, 5), n(6, 2, 3, 3), n(6)
    attributes = {"group": 2, "pads": [1, 0, 1, 0], "strides": [2, 1], "kernel_shape": [3, 3]}
    conv = Sample("conv", "Conv", [x, w, bias], attributes, domain="")
    expected = run_stock(conv.model(), conv.feeds())[0].transpose(0, 2, 3, 1)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    sample = Sample("nhwc", "NhwcConv", [last, w, bias], attributes)
    given = og.InferenceSession(sample.model()).run(None, sample.feeds())[0]
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)


# Operators without a standard form: the error names the node and gives a hint.

N = Numbers(10)
ATTENTION = [N(2, 3, 4), N(4, 12), N(12)]
PROMPT = [np.array([2], np.int32), np.array([3], np.int32)]
GROUPS = [N(1, 3, 8), N(1, 3, 4), N(1, 3, 4), None, None, *PROMPT]
REFUSED = [
    ("Attention", [ATTENTION[0]], {"num_heads": 2}, "input weights is missing"),
    ("Attention", ATTENTION, {}, "attribute 'num_heads' is missing"),
    ("Attention", ATTENTION, {"num_heads": 5}, "12 columns"),
    ("Attention", ATTENTION, {"num_heads": 2, "do_rotary": 1}, "do_rotary"),
    ("Attention", ATTENTION, {"num_heads": 2, "past_present_share_buffer": 1}, "share_buffer"),
    ("Attention", [*ATTENTION, np.ones((2, 1, 9, 9), np.int32)], {"num_heads": 2}, "mask"),
    ("MultiHeadAttention", [N(2, 3, 8), N(2, 3, 8)], {"num_heads": 2}, "do not go together"),
    ("GroupQueryAttention", GROUPS, {"num_heads": 3, "kv_num_heads": 2}, "3 heads"),
    ("GroupQueryAttention", GROUPS, {"num_heads": 2, "kv_num_heads": 1, "causal": 0}, "causal"),
    ("GroupQueryAttention", GROUPS, {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1}, "cache"),
    ("RotaryEmbedding", [N(2, 4), PROMPT[1], N(4, 2), N(4, 2)], {}, "input 'x0'"),
    ("FusedGemm", [N(2, 3), N(3, 4)], {"activation": "Sine"}, "'Sine'"),
    ("FusedConv", [N(1, 1, 3, 3), N(1, 1, 2, 2)], {"activation": "Clip"}, "expected 2 for Clip"),
    ("FusedMatMul", [N(2, 3), N(3, 4)], {"transC": 1}, "transC"),
    ("FastGelu", [N(2, 3)] * 3, {}, "3 inputs"),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "fragment"), REFUSED)
def test_forms_without_a_standard_one_are_refused(
    op_type: str, inputs: list, attributes: dict, fragment: str
) -> None:
    with pytest.raises((og.ModelError, og.UnsupportedOperatorError)) as error:
        og.InferenceSession(Sample("refused", op_type, inputs, attributes).model())
    assert fragment in str(error.value)
    assert "the_node" in str(error.value)
    assert error.value.hint


def first_samples() -> dict[str, Sample]:
    return {sample.op_type: sample for sample in reversed(all_samples())}


@pytest.mark.parametrize("sample", first_samples().values(), ids=lambda sample: sample.op_type)
def test_attributes_are_those_of_onnxruntime(sample: Sample) -> None:
    """Each attribute that stock onnxruntime knows is taken, with the same default."""
    schemas = {
        (one.domain, one.name): one
        for one in ort.capi.onnxruntime_pybind11_state.get_all_operator_schema()
    }
    feeds = sample.feeds()
    expected = og.InferenceSession(sample.model()).run(None, feeds)
    for name, known in schemas[(sample.domain, sample.op_type)].attributes.items():
        default = onnx.AttributeProto.FromString(known._default_value)
        if name in sample.attributes or default.type == onnx.AttributeProto.UNDEFINED:
            continue
        value = onnx.helper.get_attribute_value(default)
        written = dataclasses.replace(sample, attributes={**sample.attributes, name: value})
        for ours, theirs in zip(
            og.InferenceSession(written.model()).run(None, feeds), expected, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs, name)


# Whole models, as onnxruntime saves them.

BLOCK = """
<ir_version: 8, opset_import: ["" : 17]>
block (float[N, 3, 8] X) => (float[N, 3, 2] Y)
<float[8] scale, float[8] shift>
{
  residual = Add(X, X)
  h = LayerNormalization<axis = -1, epsilon = 0.00001>(residual, scale, shift)
  a = MatMul(h, w1)
  b = Add(a, b1)
  half = Div(b, root)
  e = Erf(half)
  t = Add(e, one)
  u = Mul(b, t)
  c = Mul(u, factor)
  d = MatMul(c, w2)
  f = Add(d, b2)
  s = Add(f, residual)
  n = LayerNormalization<axis = -1, epsilon = 0.00001>(s, scale2, shift2)
  p = MatMul(n, w3)
  Y = Add(p, b3)
}
"""


def transformer_block() -> onnx.ModelProto:
    n = Numbers(11)
    numbers = {
        "scale": n.positive(8),
        "shift": n(8),
        "w1": n(8, 16, scale=0.3),
        "b1": n(16),
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "factor": np.float32(0.5),
        "w2": n(16, 8, scale=0.3),
        "b2": n(8),
        "scale2": n.positive(8),
        "shift2": n(8),
        "w3": n(8, 2, scale=0.3),
        "b3": n(2),
    }
    model = onnx.parser.parse_model(BLOCK.replace("<float[8] scale, float[8] shift>\n", ""))
    tensors = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in numbers.items()]
    model.graph.initializer.extend(tensors)
    return model


def saved_by_onnxruntime(model: onnx.ModelProto, path) -> onnx.ModelProto:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(model.SerializeToString(), options)
    return onnx.load(path)


def test_a_model_that_onnxruntime_optimized_trains_alike(tmp_path) -> None:
    plain = transformer_block()
    fused = saved_by_onnxruntime(plain, tmp_path / "fused.onnx")
    assert {"BiasGelu", "SkipLayerNormalization"} <= {node.op_type for node in fused.graph.node}
    n = Numbers(12)
    x, y = n(16, 3, 8), n(16, 3, 2)
    weights = ["scale", "shift", "w1", "b1", "w2", "b2", "scale2", "shift2", "w3", "b3"]
    trained = []
    for model in (plain, fused):
        trainer = og.Trainer(model, loss="mse", optimizer="sgd", lr=0.05, trainable=weights)
        trainer.fit(x, y, epochs=4, batch_size=8, shuffle=False, verbose=False)
        trained.append(trainer.trained_model())
    expected, given = ({t.name: t for t in model.graph.initializer} for model in trained)
    before = {t.name: t for t in fused.graph.initializer}
    for name in weights:
        ours, theirs = map(onnx.numpy_helper.to_array, (given[name], expected[name]))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=name)
        assert not np.allclose(ours, onnx.numpy_helper.to_array(before[name]), atol=1e-4), name
    # The file is what it was, with other numbers.
    for tensor in trained[1].graph.initializer:
        tensor.CopyFrom(before[tensor.name])
    assert trained[1] == fused


def test_an_unknown_domain_says_what_to_do() -> None:
    sample = Sample("unknown", "Mystery", [N(2, 3)], domain="my.domain")
    model = sample.model()
    model.opset_import.append(onnx.helper.make_opsetid("my.domain", 1))
    with pytest.raises(og.UnsupportedOperatorError, match=r"my\.domain\.Mystery") as error:
        og.InferenceSession(model)
    assert "define Mystery by standard operators with register_operator()" in error.value.hint
