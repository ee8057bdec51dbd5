"""Forms of operators that stock onnxruntime runs: values and gradients beside onnxruntime's.

Old, removed and unusual ones, as exporters and converters wrote them.
"""

from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

Arrays = dict[str, np.ndarray]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(np.float32)


def stock(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})


def ours(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray]:
    session = og.InferenceSession(model, threads=1)
    return session.run(None, {value.name: feeds[value.name] for value in model.graph.input})


class Form(NamedTuple):
    """A model of one node (and perhaps some after it), its weights and what is fed."""

    op_type: str
    inputs: list[str]
    feeds: Arrays
    weights: Arrays = MappingProxyType({})
    opset: int = 7
    domain: str = ""
    imports: list[tuple[str, int]] | None = None  # None: ai.onnx alone
    attributes: dict = MappingProxyType({})
    outputs: int = 1

    def model(self) -> onnx.ModelProto:
        names = [f"y{i}" if i else "y" for i in range(self.outputs)]
        node = helper.make_node(
            self.op_type, self.inputs, names, domain=self.domain, **self.attributes
        )
        imports = [("", self.opset)] if self.imports is None else self.imports
        graph = helper.make_graph(
            [node],
            "form",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in self.feeds.items()
            ],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )
        return helper.make_model(
            graph,
            ir_version=6 if self.opset < 15 else 10,
            opset_imports=[helper.make_opsetid(*one) for one in imports],
        )


IMAGE = {"X": random(2, 3, 4, 5)}
ROW = {"x": random(3, 8)}


def removed(op_type: str, opset: int = 7, **attributes) -> Form:
    return Form(op_type, ["X"], IMAGE, opset=opset, attributes=attributes)


def normalization(rows: int, *shape: int, opset: int = 7) -> Form:
    weights = {name: random(*shape, seed=i) for i, name in enumerate(("s", "b", "m"), 1)}
    weights["v"] = np.abs(random(*shape, seed=4)) + np.float32(0.5)
    return Form(
        "BatchNormalization",
        ["X", "s", "b", "m", "v"],
        {"X": random(rows, *shape)},
        weights,
        opset,
        attributes={"spatial": 0, "epsilon": 0.01},
    )


def resize(opset: int, scale: float, **attributes) -> Form:
    numbers = np.array([1, 1, scale, scale], np.float32)
    weights = {"roi": np.zeros(0, np.float32), "s": numbers}
    attributes = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", **attributes}
    return Form("Resize", ["X", "roi", "s"], IMAGE, weights, opset, attributes=attributes)


def quantized(opset: int, op_type: str, array: np.ndarray, scale: list[float]) -> Form:
    weights = {"s": np.array(scale, np.float32)}
    return Form(op_type, ["q", "s"], {"q": array}, weights, opset)


FORMS = {
    "affine": removed("Affine", alpha=2.0, beta=1.0),
    "affine_default": removed("Affine", opset=9),
    "crop": removed("Crop", border=[1, 0, 2, 1]),
    "crop_scale": removed("Crop", border=[1, 2, 0, 0], scale=[1, 3]),
    "crop_nothing": removed("Crop", border=[0, 0, 0, 0]),
    "dynamic_slice": Form(
        "DynamicSlice",
        ["X", "starts", "ends", "axes"],
        IMAGE,
        {"starts": np.array([1, -3]), "ends": np.array([3, 9]), "axes": np.array([1, 3])},
    ),
    "dynamic_slice_fed": Form(
        "DynamicSlice",
        ["X", "starts", "ends"],
        IMAGE | {"starts": np.array([0, 1]), "ends": np.array([1, 3])},
    ),
    "image_scaler": removed("ImageScaler", scale=0.5, bias=[0.1, 0.2, 0.3]),
    "image_scaler_default": removed("ImageScaler", bias=[0.1, 0.2, 0.3]),
    "parametric_softplus": removed("ParametricSoftplus", alpha=2.0, beta=0.5),
    "scale": removed("Scale", scale=-2.0),
    "scaled_tanh": removed("ScaledTanh", alpha=2.0, beta=0.5, opset=9),
    "thresholded_relu": removed("ThresholdedRelu", alpha=0.1),
    "layer_normalization": Form(
        "LayerNormalization", ["x", "g", "b"], ROW, {"g": random(8), "b": random(8)}, 12, outputs=3
    ),
    "simplified_layer_normalization": Form(
        "SimplifiedLayerNormalization", ["x", "g"], ROW, {"g": random(8)}, 12
    ),
    "normalization_of_rows": normalization(5, 3),
    "normalization_of_elements": normalization(5, 3, 4, 2),
    "normalization_of_elements_8": normalization(2, 3, 4, opset=8),
    "fast_gelu_without_import": Form(
        "FastGelu", ["x", "b"], ROW, {"b": random(8)}, 17, "com.microsoft"
    ),
    "normalizer_without_import": Form(
        "Normalizer", ["x"], ROW, opset=17, domain="ai.onnx.ml", attributes={"norm": "L2"}
    ),
    "softmax_without_import": Form(
        "Softmax", ["x"], ROW, opset=21, imports=[("ai.onnx.ml", 3)], attributes={"axis": 0}
    ),
    **{
        f"dequantize_{opset}_{kind}": quantized(opset, "DequantizeLinear", array, [0.1])
        for opset in (10, 13, 19, 21)
        for kind, array in {
            "vector": np.arange(4).astype(np.int32),
            "matrix": np.arange(6).astype(np.int8).reshape(2, 3),
        }.items()
    },
    "unsqueeze_number": Form("Unsqueeze", ["x", "a"], ROW, {"a": np.array(1)}, 16),
    **{
        f"resize_{opset}_{scale}_{mode}": resize(opset, scale, mode="nearest", nearest_mode=mode)
        for opset in (11, 12, 13)
        for scale in (2.0, 3.0, 0.5)
        for mode in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    },
    "resize_linear": resize(11, 2.0, mode="linear"),
    "resize_cubic": resize(12, 3.0, mode="cubic"),
}


@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients(name: str) -> None:
    form = FORMS[name]
    model = form.model()
    want = stock(model, form.feeds)
    for got, other in zip(ours(model, form.feeds), want, strict=True):
        assert got.shape == other.shape
        np.testing.assert_allclose(got, other, rtol=1e-4, atol=1e-5)
    wrt = [key for key, array in form.feeds.items() if array.dtype == np.float32]
    if not wrt:
        return
    gradient = og.gradient(model, wrt, outputs="y", fill_grad=True)
    for got, other in zip(ours(gradient, form.feeds), stock(gradient, form.feeds), strict=True):
        np.testing.assert_allclose(got, other, rtol=1e-4, atol=1e-5)
    assert og.check_gradients(model, form.feeds).ok


def test_training_statistics_of_elements() -> None:
    """spatial=0 with five outputs, which no runtime has: beside NumPy."""
    form = normalization(6, 3, 2)
    model = form._replace(outputs=5).model()
    del model.graph.output[3:]
    X, w = form.feeds["X"], form.weights
    mean, variance = X.mean(axis=0), X.var(axis=0)
    y, running_mean, running_variance = ours(model, form.feeds)
    np.testing.assert_allclose(
        y, (X - mean) / np.sqrt(variance + 0.01) * w["s"] + w["b"], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(running_mean, 0.9 * w["m"] + 0.1 * mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(running_variance, 0.9 * w["v"] + 0.1 * variance, rtol=1e-4)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (removed("Crop", border=[1, 2]), "Crop.*'border' has 2"),
        (removed("Crop", border=[1, 2, -1, 0]), "Crop.*-1 pixels"),
        (removed("ImageScaler", bias=[1.0]), "ImageScaler.*1 numbers"),
        (removed("ScaledTanh", alpha=1.0), "ScaledTanh.*'beta' is missing"),
        (removed("Affine", gamma=1.0), "Affine.*'gamma' is unknown"),
        (removed("Affine", opset=13), "Affine"),
        (Form("Foo", ["x"], ROW, opset=17, domain="foo"), "domain 'foo' is not among"),
    ],
)
def test_what_is_refused(form: Form, words: str) -> None:
    with pytest.raises(og.Error, match=words):
        og.InferenceSession(form.model())


TEXTS = {
    "float32": [1, 1.5, 0.1, 1e10, 1e-10, 12345678.9, np.nan, np.inf, -np.inf, -0.0, 1e38, 3e-42],
    "float64": [1, 0.1, 1e17, 123456789, np.nan, np.inf, -np.inf, -0.0, 1e308, np.pi, 5e-324],
    "float16": [1, 0.1, 65504, 1e-5, np.nan, -np.inf, -0.0],
    "bool": [True, False],
    **{
        f"{kind}{bits}": [np.iinfo(f"{kind}{bits}").min, 0, 7, np.iinfo(f"{kind}{bits}").max]
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
}


@pytest.mark.parametrize("dtype", TEXTS)
def test_numbers_as_text(dtype: str) -> None:
    array = np.array(TEXTS[dtype], dtype)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)],
            "texts",
            [helper.make_tensor_value_info("x", kind, ["N"])],
            [helper.make_tensor_value_info("y", TensorProto.STRING, ["N"])],
        ),
        ir_version=10,
        opset_imports=[helper.make_opsetid("", 21)],
    )
    for part in (array, array[:0]):
        assert list(ours(model, {"x": part})[0]) == list(stock(model, {"x": part})[0])


@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4"])
def test_small_numbers_as_text_before_a_label_encoder(name: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 2]>
        codes (float[N] x) => (float[N] y, string[N] s) {{
            small = Cast <to = {getattr(TensorProto, name)}> (x)
            s = Cast <to = {TensorProto.STRING}> (small)
            y = ai.onnx.ml.LabelEncoder <keys_strings = ["1", "2", "-3", "0.10009766"],
                values_floats = [0.1, 0.2, 0.3, 0.4], default_float = -1.0> (s)
        }}""")
    feeds = {"x": np.array([1, 2, -3, 0.1], np.float32)}
    for got, want in zip(ours(model, feeds), stock(model, feeds), strict=True):
        assert list(got) == list(want)


def test_multinomial_draws_by_probability() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 15]>
        policy (float[N, 3] scores) => (int64[N, 4000] action) {
            action = Multinomial <sample_size = 4000, dtype = 7> (scores)
        }""")
    p = np.array([[0.2, 0.3, 0.5], [0, 0.9, 0.1]])
    with np.errstate(divide="ignore"):
        scores = np.log(p).astype(np.float32) + np.float32(50)
    session = og.InferenceSession(model)
    drawn = session.run(None, {"scores": scores})[0]
    for row in range(2):
        shares = np.bincount(drawn[row], minlength=3) / 4000
        np.testing.assert_allclose(shares, p[row], atol=0.03)
    assert (drawn[0] != drawn[1]).any()
    with pytest.raises(og.DataError, match="row 1 has no class"):
        session.run(None, {"scores": np.array([[0, 0, 0], [np.nan] * 3], np.float32)})


def test_a_policy_trains_and_predicts() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 15]>
        policy (float[N, 4] obs) => (int64[N, 1] action, float[N, 3] p)
        <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
            logits = MatMul (obs, w)
            p = Softmax <axis = 1> (logits)
            action = Multinomial <sample_size = 1, dtype = 7> (logits)
        }""")
    X, y = random(30, 4), np.arange(30) % 3
    trainer = og.Trainer(model, "auto")
    trainer.fit(X, y, epochs=2, verbose=0, validation=0.2)
    assert trainer.predict(X).shape[0] == 30
    (p,) = og.InferenceSession(model).run(["p"], {"obs": X})
    np.testing.assert_allclose(p, stock(model, {"obs": X})[1], atol=1e-6)


def squeezing(conditional: bool, after: str, w: np.ndarray) -> onnx.ModelProto:
    """As torch exports x.squeeze(-1) of an open dimension, or without a condition."""
    if_text = f"""
        sizes = Shape (c)
        size = Gather (sizes, two)
        is_one = Equal (size, one)
        q = If (is_one) <
            then_branch = then () => (float[] t) {{ t = Squeeze (c, last) }},
            else_branch = other () => (float[] e) {{ e = Identity (c) }}
        >
        y = {after} (q)"""
    shape = "" if conditional else "[N, 4]"
    body = if_text if conditional else f"q = Squeeze (c, last)\ny = {after} (q)"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 16]>
        squeezed (float[N, 2, T] X) => (float{shape} y)
        <int64 two = {{2}}, int64 one = {{1}}, int64[1] last = {{-1}}> {{
            c = Conv (X, w)
            {body}
        }}""")
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    if conditional:  # ONNX's text has no tensor of unknown rank
        outputs = [model.graph.output[0]]
        for attribute in model.graph.node[4].attribute:
            outputs.append(attribute.g.output[0])
        for output in outputs:
            output.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("after", ["Relu", "Identity", "Sigmoid"])
def test_a_branch_of_another_rank(after: str) -> None:
    w, X, dy = random(4, 2, 3), random(2, 2, 3, seed=1), random(2, 4, seed=2)
    straight = og.gradient(squeezing(False, after, w), ["X", "w"])
    arrays = {"X": X, "w": w, "y_grad": dy}
    want = ours(straight, arrays)
    model = squeezing(True, after, w)
    gradient = og.gradient(model, ["X", "w"])
    for got in (ours(gradient, arrays), stock(gradient, arrays)):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    # The other branch: T = 5 leaves three columns.
    longer = {"X": random(2, 2, 5, seed=3), "w": w, "y_grad": random(2, 4, 3, seed=4)}
    for a, b in zip(ours(gradient, longer), stock(gradient, longer), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert og.check_gradients(model, {"X": X}).ok
    passes = og.ForwardBackward(model)
    (y,), context = passes.forward({"X": X}, training=True), passes
    assert y.shape == (2, 4)
    del context
