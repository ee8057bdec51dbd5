"""Embeddings whose gradient is never dense, and normalisations fused with dropout and residuals."""

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxgrad as og
from onnxgrad import optimizers as opt

ROWS, COLUMNS, RATE = 50, 12, 0.05


def build(text, constants):
    model = onnx.parser.parse_model(text)
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    model.graph.initializer.extend(tensors)
    return model


def lookup(dtype, weight, factors):
    kind = {"float32": "float", "float64": "double"}[dtype]
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    lookup (int64[N, 3] ids) => ({kind}[N, 1] Y)
    <int64[2] axes = {{1, 2}}, int64[2] shape = {{-1, 1}}>
    {{ rows = Gather(W, ids)  scaled = Mul(rows, V)
       sums = ReduceSum <keepdims = 0> (scaled, axes)  Y = Reshape(sums, shape) }}"""
    return build(text, {"W": weight.astype(dtype), "V": factors.astype(dtype)})


def batches(steps):
    random = np.random.default_rng(3)
    for _ in range(steps):
        ids = random.integers(-ROWS // 3, ROWS // 3, (8, 3))  # repeated, negative; many never
        yield ids, random.standard_normal((8, 1))


def reference(name, weight, factors, steps):
    """NumPy in float64."""
    w, m, v = weight.copy(), np.zeros_like(weight), np.zeros_like(weight)
    for step, (ids, target) in enumerate(batches(steps), start=1):
        y = (w[ids] * factors).sum((1, 2))[:, None]
        gradient = np.zeros_like(w)
        np.add.at(gradient, ids, (2 * (y - target) / len(y))[:, :, None] * factors)
        if name == "sgd":
            w -= RATE * gradient
        elif name == "momentum":
            m = 0.9 * m + gradient
            w -= RATE * m
        else:
            m = 0.9 * m + 0.1 * gradient
            v = 0.999 * v + 0.001 * gradient**2
            mean, square = m / (1 - 0.9**step), v / (1 - 0.999**step)
            w -= RATE * (mean / (np.sqrt(square) + 1e-8) + (0.1 * w if name == "adamw" else 0))
    return w


OPTIMIZERS = {
    "sgd": opt.SGD(RATE),
    "momentum": opt.SGD(RATE, momentum=0.9),
    "adam": opt.Adam(RATE),
    "adamw": opt.AdamW(RATE, weight_decay=0.1),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_looked_up_rows(name, dtype, threads):
    random = np.random.default_rng(5)
    weight = random.standard_normal((ROWS, COLUMNS)).astype("float32").astype("float64")
    factors = random.standard_normal(COLUMNS).astype("float32").astype("float64")
    session = og.TrainingSession(
        lookup(dtype, weight, factors), "squared_error", OPTIMIZERS[name], trainable=["W"],
        threads=threads,
    )  # fmt: skip
    with session.profiling() as profile:
        for ids, target in batches(6):
            session.step({"ids": ids, "label": target[:, 0].astype(dtype)})
    kernels = {kernel.op_type for kernel in profile.kernels}
    assert kernels & {"ScatterDescent", "ScatterWeightUpdate"}
    assert "ScatterND" not in kernels
    expected = reference(name, weight, factors, 6)
    error = np.abs(session.state()["W"] - expected).max()
    assert error <= (1e-11 if dtype == "float64" else 2e-4 if "adam" in name else 2e-5)


def test_an_index_outside_changes_nothing():
    weight = np.ones((ROWS, COLUMNS))
    session = og.TrainingSession(
        lookup("float32", weight, np.ones(COLUMNS)), "squared_error", opt.Adam(RATE)
    )
    with pytest.raises(og.Error, match="50"):
        session.step({"ids": np.full((8, 3), ROWS), "label": np.zeros(8, "float32")})
    assert (session.state()["W"] == 1).all()


def block(form, dtype, ratio):
    """Two layers of x + f(norm(x)) or norm(x + f(x)) with dropout after f."""
    kind = {"float32": "float", "float64": "double"}[dtype]
    random = np.random.default_rng(7)
    constants, lines, stream = {}, [], "X"
    for i in range(2):
        for part, shape in (("w", (16, 16)), ("b", (16,)), ("c", (16,))):
            constants[f"{part}{i}"] = random.standard_normal(shape).astype("float32") * 0.4
        constants[f"s{i}"] = random.uniform(0.5, 1.5, 16).astype("float32")
        norm = "LayerNormalization <axis = -1, epsilon = 0.001>"
        inner = stream
        if form == "pre":
            lines.append(f"n{i} = {norm}({stream}, s{i}, c{i})")
            inner = f"n{i}"
        lines.append(f"m{i} = MatMul({inner}, w{i})")
        lines.append(f"a{i} = Add(m{i}, b{i})")
        lines.append(f"d{i} = Dropout(a{i}, ratio, mode)")
        lines.append(f"r{i} = Add({stream}, d{i})")
        stream = f"r{i}"
        if form == "post":
            lines.append(f"n{i} = {norm}(r{i}, s{i}, c{i})")
            stream = f"n{i}"
    lines.append(f"Y = MatMul({stream}, head)")
    constants["head"] = random.standard_normal((16, 1)).astype("float32")
    constants = {name: value.astype(dtype) for name, value in constants.items()}
    constants["ratio"] = np.array(ratio, dtype)
    constants["mode"] = np.array(True)
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    block ({kind}[N, 16] X) => ({kind}[N, 1] Y) {{ {"  ".join(lines)} }}"""
    return build(text, constants)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ratio", [0.0, 0.3])
@pytest.mark.parametrize("form", ["pre", "post"])
@pytest.mark.parametrize("optimizer", [opt.SGD(0.001), opt.AdamW(0.01)], ids=["sgd", "adamw"])
def test_blocks_train_as_their_separate_nodes(form, ratio, threads, optimizer):
    """float64 has the same masks and no fused normalisation."""
    random = np.random.default_rng(9)
    x, y = random.standard_normal((96, 16)), random.standard_normal((96, 1))
    states = {}
    for dtype in ("float32", "float64"):
        session = og.TrainingSession(
            block(form, dtype, ratio), "squared_error", optimizer, threads=threads, seed=4
        )
        with session.profiling() as profile:
            for first in range(0, 96, 32):
                rows = slice(first, first + 32)
                session.step({"X": x[rows].astype(dtype), "label": y[rows].astype(dtype)})
        kernels = [kernel.kernel for kernel in profile.kernels]
        fused = [text for text in kernels if text.startswith("simd rows, ")]
        assert bool(fused) == (dtype == "float32"), kernels
        if ratio > 0 and dtype == "float32":
            assert any("dropout" in text for text in fused)
        states[dtype] = session.state()
    for name, value in states["float64"].items():
        assert np.allclose(states["float32"][name], value, atol=2e-4), name


@pytest.mark.parametrize("form", ["pre", "post"])
def test_separate_passes_agree_with_a_step(form):
    random = np.random.default_rng(11)
    x, y = random.standard_normal((32, 16)), random.standard_normal((32, 1))
    model = block(form, "float32", 0.0)
    step = og.TrainingSession(model, "squared_error", opt.SGD(1.0))
    before = step.state()
    step.step({"X": x.astype("float32"), "label": y.astype("float32")})
    passes = og.ForwardBackward(model, weights=["w0", "s0", "c1", "b1"])
    (output,) = passes.forward({"X": x.astype("float32")})
    found = passes.backward(2 * (output - y.astype("float32")) / 32)
    for name in ("w0", "s0", "c1", "b1"):
        moved = before[name] - step.state()[name]
        assert np.allclose(found.weights[name], moved, atol=2e-5), name


@pytest.mark.parametrize(
    "scores",
    [
        "m = Add(s, s)  p = Softmax(m)  Y = MatMul(p, v)",
        "p = Softmax(s)  Y = MatMul(p, s)",
        "m = Add(s, bias)  r = Reshape(m, places)  p = Softmax(r)  Y = MatMul(p, r)",
    ],
    ids=["as_a_mask", "as_values", "reshaped"],
)
def test_scores_that_are_read_again_are_no_attention(scores):
    """As a mask of their own, or as the values: the kernel of attention has not got them."""
    random = np.random.default_rng(13)
    constants = {
        name: random.standard_normal(shape).astype("float32")
        for name, shape in (("w", (8, 8)), ("bias", (8,)), ("v", (2, 8, 8)))
    }
    constants["places"] = np.array([2, 8, 8])
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    scores (float[2, 8, 8] X) => (float[2, 8, 8] Y) {{ s = MatMul(X, w)  {scores} }}"""
    model = build(text, constants)
    x = random.standard_normal((2, 8, 8)).astype("float32")
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"X": x})
    (given,) = og.InferenceSession(model).run(None, {"X": x})
    assert np.allclose(given, expected, atol=1e-4)
    passes = og.ForwardBackward(model, weights=["w"])
    passes.forward({"X": x})
    found = passes.backward(np.ones_like(expected)).weights["w"]
    step = 1e-2
    for place in ((0, 0), (3, 5)):  # central differences
        sums = []
        for sign in (1, -1):
            moved = dict(constants, w=constants["w"].copy())
            moved["w"][place] += sign * step
            session = onnxruntime.InferenceSession(build(text, moved).SerializeToString())
            sums.append(session.run(None, {"X": x})[0].astype("float64").sum())
        assert np.isclose(found[place], (sums[0] - sums[1]) / (2 * step), rtol=2e-2, atol=2e-2)
