"""Portable forms of graphs that stock onnxruntime does not run, or breaks in its optimizer."""

import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxgrad as og

LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"]
COUNT = 40_000

ort.set_default_logger_severity(4)


def parse(text: str, opset: int = 26) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{text}')
    onnx.checker.check_model(model)
    return model


def session(model: onnx.ModelProto, level: str) -> ort.InferenceSession:
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options)


def normal_cdf(numbers: np.ndarray) -> np.ndarray:
    return np.array([0.5 * math.erfc(-number / math.sqrt(2)) for number in numbers])


def distance(numbers: np.ndarray, cdf) -> float:
    """The statistic of Kolmogorov and Smirnov times sqrt(n); above 2.2 in one case of 10,000."""
    ordered = np.sort(numbers.astype(np.float64))
    steps = np.arange(1, len(ordered) + 1) / len(ordered)
    return float(np.abs(steps - cdf(ordered)).max() * math.sqrt(len(ordered)))


DRAWS = {
    "RandomNormalLike <mean = 2.0, scale = 0.5, seed = 3.0> (x)": lambda z: normal_cdf((z - 2) * 2),
    f"RandomNormal <shape = [{COUNT}], dtype = DTYPE, seed = 3.0> ()": normal_cdf,
    "RandomUniformLike <low = -1.0, high = 3.0, seed = 3.0> (x)": lambda u: (u + 1) / 4,
    f"RandomUniform <shape = [{COUNT}], dtype = DTYPE, seed = 4.0> ()": lambda u: u,
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("opset", [21, 22, 26])
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("draw", DRAWS)
def test_random_operators_are_drawn_by_stock_onnxruntime(draw, dtype, opset, level) -> None:
    text = draw.replace("DTYPE", "1" if dtype == "float" else "11")
    model = parse(f"g ({dtype}[N] x) => ({dtype}[N] y) {{ r = {text}\n y = Mul(x, r) }}")
    gradient = og.gradient(model, "x", fill_grad=True, target_opset=opset)
    x = np.zeros(COUNT, np.float32 if dtype == "float" else np.float64)
    (numbers,) = session(gradient, level).run(None, {"x": x})
    assert numbers.dtype == x.dtype
    assert np.isfinite(numbers).all()
    assert distance(numbers, DRAWS[draw]) < 2.2
    if dtype == "double":
        assert len(np.unique(numbers)) == COUNT
    if "(x)" in draw:
        assert session(gradient, level).run(None, {"x": x[:0]})[0].shape == (0,)


def test_draws_differ_between_runs_and_nodes() -> None:
    model = parse(
        "g (float[N] x) => (float[N] y) { r = RandomUniformLike(x)\n s = RandomUniformLike(x)\n"
        " p = Mul(x, r)\n q = Mul(x, s)\n y = Sub(p, q) }"
    )
    stock = session(og.gradient(model, "x", fill_grad=True), "ORT_ENABLE_ALL")
    feeds = {"x": np.zeros(100, np.float32)}
    first, second = stock.run(None, feeds)[0], stock.run(None, feeds)[0]
    assert (first != 0).all()
    assert (first != second).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("opset", [14, 21, 26])
def test_bernoulli(opset: int, level: str) -> None:
    """ONNX's definition of it, which onnxruntime runs up to opset 21, gives 1 where it says 0."""
    model = parse(
        "g (float[N] x, float[N] p) => (float[N] y)"
        " { b = Bernoulli <seed = 5.0> (p)\n y = Mul(x, b) }"
    )
    gradient = og.gradient(model, "x", fill_grad=True, target_opset=opset)
    p = np.repeat(np.float32([0, 0.1, 0.5, 0.9, 1]), COUNT)
    (drawn,) = session(gradient, level).run(None, {"x": p, "p": p})
    assert set(np.unique(drawn)) == {0, 1}
    shares = drawn.reshape(5, COUNT).mean(axis=1)
    bounds = 4 * np.sqrt([0, 0.09, 0.25, 0.09, 0]) / math.sqrt(COUNT)
    assert (np.abs(shares - [0, 0.1, 0.5, 0.9, 1]) <= bounds).all()


@pytest.mark.parametrize("level", LEVELS)
def test_multinomial(level: str) -> None:
    model = parse(
        f"g (float[2, 3] logits, float[2, {COUNT}] w) => (float[2, {COUNT}] y)"
        f" {{ m = Multinomial <sample_size = {COUNT}, dtype = 7, seed = 1.0> (logits)\n"
        " f = Cast <to = 1> (m)\n y = Mul(f, w) }"
    )
    gradient = og.gradient(model, "w", fill_grad=True)
    shares = np.float32([[0.2, 0.5, 0.3], [0.7, 0, 0.3]])
    with np.errstate(divide="ignore"):
        feeds = {"logits": np.log(shares), "w": np.zeros((2, COUNT), np.float32)}
    (drawn,) = session(gradient, level).run(
        None, {i.name: feeds[i.name] for i in gradient.graph.input}
    )
    for row, wanted in zip(drawn, shares, strict=True):
        found = [np.mean(row == k) for k in range(3)]
        np.testing.assert_allclose(found, wanted, atol=4 * 0.5 / math.sqrt(COUNT))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool(p: int) -> None:
    model = parse(
        f"g (float[2, 3, 4, 5] x, float w) => (float[2, 3, 1, 1] y)"
        f" {{ q = GlobalLpPool <p = {p}> (x)\n y = Mul(q, w) }}"
    )
    gradient = og.gradient(model, "w", "y")
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    seed = np.ones((2, 3, 1, 1), np.float32)
    feeds = {"x": x, "w": np.array(1, np.float32), "y_grad": seed}
    (found,) = session(gradient, "ORT_ENABLE_ALL").run(
        None, {i.name: feeds[i.name] for i in gradient.graph.input}
    )
    wanted = (np.abs(x.astype(np.float64)) ** p).sum(axis=(2, 3)) ** (1 / p)
    np.testing.assert_allclose(found, wanted.sum(), rtol=1e-5)


@pytest.mark.parametrize("outputs", ["h", "h, mask"])
@pytest.mark.parametrize("opset", [17, 26])
def test_dropout_whose_mask_is_not_read_stays(opset: int, outputs: str) -> None:
    """onnxruntime's optimizer takes such a node out, in training mode too."""
    model = parse(
        "g (float[4, 500] x, float[500, 2] w) => (float[4, 2] y)"
        " <float ratio = {0.25}, bool training = {1}>"
        f" {{ n = Neg(x)\n {outputs} = Dropout <seed = 1> (n, ratio, training)\n"
        " y = MatMul(h, w) }"
    )
    gradient = og.gradient(model, "w", fill_grad=True, target_opset=opset)
    feeds = {"x": np.ones((4, 500), np.float32), "w": np.ones((500, 2), np.float32)}
    (dw,) = session(gradient, "ORT_ENABLE_ALL").run(
        None, {i.name: feeds[i.name] for i in gradient.graph.input}
    )
    kept = -dw[:, 0] * 0.75  # how many of the four rows of a column
    np.testing.assert_allclose(kept, kept.round(), atol=1e-5)
    assert abs(kept.mean() / 4 - 0.75) < 0.05


@pytest.mark.parametrize("level", LEVELS)
def test_pads_of_some_axes_behind_a_transpose(level: str) -> None:
    model = parse(
        "g (float[2, 3, N] x) => (float[2, 3, M] y)"
        " <int64[2] pads = {1, 2}, int64[1] axes = {-2}, float value = {7.0}>"
        " { t = Transpose <perm = [0, 2, 1]> (x)\n p = Pad(t, pads, value, axes)\n"
        " q = Mul(p, p)\n y = Transpose <perm = [0, 2, 1]> (q) }"
    )
    gradient = og.gradient(model, "x", fill_grad=True, keep_outputs=True)
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    dx, y = session(gradient, level).run(None, {"x": x})
    np.testing.assert_allclose(dx, 2 * x, rtol=1e-6)
    padded = np.pad(x, [(0, 0), (0, 0), (1, 2)], constant_values=7)
    np.testing.assert_allclose(y, padded**2, rtol=1e-6)


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp"])
def test_negative_axes_of_an_empty_batch(op_type: str) -> None:
    model = parse(
        f"g (float[N, 3] x) => (float[N] y) <int64[1] axes = {{-1}}>"
        f" {{ y = {op_type} <keepdims = 0> (x, axes) }}"
    )
    gradient = og.gradient(model, "x", fill_grad=True, keep_outputs=True)
    for rows in (0, 2):
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        dx, y = session(gradient, "ORT_ENABLE_ALL").run(None, {"x": x})
        assert dx.shape == (rows, 3)
        assert y.shape == (rows,)


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("level", LEVELS)
def test_floored_mod_of_opset_28(level: str, dtype: str) -> None:
    model = parse(f"g ({dtype}[N] a, {dtype}[N] b) => ({dtype}[N] y) {{ y = Mod(a, b) }}", 28)
    gradient = og.gradient(model, ["a", "b"], fill_grad=True, keep_outputs=True)
    numpy_type = np.float32 if dtype == "float" else np.float64
    a = np.array([-4.3, 4.3, -4.3, 4.3, 0.5, -0.5, 0, 3], numpy_type)
    b = np.array([2.1, 2.1, -2.1, -2.1, 3, 3, 2, -np.inf], numpy_type)
    feeds = {"a": a, "b": b}
    da, db, y = session(gradient, level).run(None, feeds)
    np.testing.assert_allclose(y, np.mod(a, b), rtol=1e-6)
    np.testing.assert_array_equal(da, np.ones(8))
    np.testing.assert_array_equal(db[:6], [3, -2, -2, 3, 0, 1])
    for given, stock in zip(
        og.InferenceSession(gradient).run(None, feeds), (da, db, y), strict=True
    ):
        np.testing.assert_allclose(given, stock, rtol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("opset", [13, 21, 26])
def test_nothing_is_expanded_to_a_shape_without_elements(opset: int, level: str) -> None:
    model = parse("g (float[2, 0] x, float[1, 1] b) => (float s) "
                  "{ y = Add (x, b)  s = ReduceSum <keepdims = 0> (y) }")  # fmt: skip
    gradient = og.gradient(model, ["x", "b"], fill_grad=True, target_opset=opset)
    assert "Expand" not in [node.op_type for node in gradient.graph.node]
    feeds = {"x": np.zeros((2, 0), np.float32), "b": np.ones((1, 1), np.float32)}
    of_x, of_b = session(gradient, level).run(["x_grad", "b_grad"], feeds)
    assert of_x.shape == (2, 0)
    np.testing.assert_array_equal(of_b, [[0]])


AREAS = {
    "RoiAlign": "a = RoiAlign <output_height = 2, output_width = 2> (x, rois, batch)",
    "MaxRoiPool": "a = MaxRoiPool <pooled_shape = [2, 2]> (x, boxes)",
}


@pytest.mark.parametrize("op_type", AREAS)
def test_areas_run_where_their_operators_have_no_kernel(op_type: str) -> None:
    model = parse(
        f"""g (float[1,2,8,8] x, float[3,4] rois, float[3,5] boxes, int64[3] batch)
        => (float[3,2,2,2] y) <float[2,1,1] w = {{1, 2}}> {{ {AREAS[op_type]}\n y = Mul(a, w) }}""",
        16,
    )
    gradient = og.gradient(model, "w", fill_grad=True)  # onnxruntime has them up to opset 21
    stock = session(gradient, "ORT_ENABLE_ALL")
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.uniform(1, 2, size=(1, 2, 8, 8)).astype(np.float32),
        "rois": np.array([[0, 0, 4, 4], [1, 1, 7, 7], [2, 0, 6, 3]], np.float32),
        "batch": np.zeros(3, np.int64),
    }
    feeds["boxes"] = np.hstack([np.zeros((3, 1), np.float32), feeds["rois"]])
    feeds |= {"w": np.ones((2, 1, 1), np.float32)}
    plain = session(model, "ORT_DISABLE_ALL").run(None, {n: feeds[n] for n in list(feeds)[:4]})
    given = {value.name: feeds[value.name] for value in stock.get_inputs()}
    expected = (plain[0] / np.array([1, 2]).reshape(1, 2, 1, 1)).sum(axis=(0, 2, 3))
    np.testing.assert_allclose(stock.run(None, given)[0].ravel(), expected, rtol=1e-5)
