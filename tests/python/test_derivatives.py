"""vjp, jvp, hvp, hessian and stop_gradient: beside JAX, differences, each other and onnxruntime."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from typer.testing import CliRunner

import gradient_models
import onnxgrad as og
from onnxgrad.cli import app

VALUES = json.loads(
    (Path(__file__).parents[1] / "data/derivatives/values.json").read_text(encoding="utf-8")
)["values"]

Arrays = dict[str, np.ndarray]


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')


def run(model: onnx.ModelProto, arrays: Arrays, stock: bool = True) -> list[np.ndarray]:
    """Run a model in our engine and, with `stock`, in onnxruntime; both must agree."""
    onnx.checker.check_model(model)
    feeds = {value.name: arrays[value.name] for value in model.graph.input}
    ours = og.InferenceSession(model, threads=2).run(None, feeds)
    if stock:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        session = ort.InferenceSession(model.SerializeToString(), options)
        for mine, theirs in zip(ours, session.run(None, feeds), strict=True):
            assert mine.shape == theirs.shape
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-9)
    return ours


# ------------------------------------------------------------------------------------- beside JAX

JAX_MODELS = {
    "classifier": """m (double[N, 2] x, double[2, 3] w1, double[3] b1, double[3, 3] w2)
        => (double y) <int64[3] t = {0, 2, 1}> {
            p = MatMul (x, w1)
            a = Add (p, b1)
            h = Tanh (a)
            s = MatMul (h, w2)
            y = SoftmaxCrossEntropyLoss (s, t)
        }""",
    "recurrent": """m (double[2] s, double[2, 2] u, double[N, 2] x) => (double y) {
            last, all = Scan <num_scan_inputs = 1, body = step (double[2] s0, double[2] row)
                => (double[2] s1, double[2] out) {
                    p = MatMul (s0, u)
                    a = Add (p, row)
                    s1 = Tanh (a)
                    out = Identity (s1)
                }> (s, x)
            y = ReduceSumSquare <keepdims = 0> (all)
        }""",
    "attention": """m (double[T, 2] q, double[T, 2] k, double[T, 3] v) => (double[T, 3] y)
        <double scale = {0.7071067811865476}, double low = {-1e30}> {
            kt = Transpose <perm = [1, 0]> (k)
            p = MatMul (q, kt)
            z = Mul (p, scale)
            n = Trilu <upper = 0> (z)
            o = Sub (p, p)
            one = Exp (o)
            below = Trilu <upper = 0> (one)
            seen = Cast <to = 9> (below)
            m = Where (seen, n, low)
            a = Softmax <axis = -1> (m)
            y = MatMul (a, v)
        }""",
}


def tensors(tree: dict[str, Any], suffix: str = "") -> Arrays:
    return {f"{name}{suffix}": np.array(value) for name, value in tree.items()}


@pytest.mark.parametrize("name", JAX_MODELS)
def test_the_derivatives_are_those_of_jax(name: str) -> None:
    model, stored = parse(JAX_MODELS[name]), VALUES[name]
    wrt = list(stored["point"])
    arrays = tensors(stored["point"]) | tensors(stored["tangents"], "_tangent")
    arrays["y_grad"] = np.array(stored["cotangent"])
    (jvp,) = run(og.jvp(model, wrt), arrays)
    np.testing.assert_allclose(jvp, stored["jvp"], rtol=1e-9, atol=1e-12)
    for value, theirs in zip(run(og.vjp(model, wrt), arrays), stored["vjp"].values(), strict=True):
        np.testing.assert_allclose(value, theirs, rtol=1e-9, atol=1e-12)
    if "hvp" not in stored:
        return
    for value, theirs in zip(run(og.hvp(model, wrt), arrays), stored["hvp"].values(), strict=True):
        np.testing.assert_allclose(value, theirs, rtol=1e-9, atol=1e-12)
    blocks = iter(run(og.hessian(model, wrt), arrays))
    for first in wrt:
        for second in wrt:
            theirs = stored["hessian"][first][second]
            np.testing.assert_allclose(next(blocks), theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", JAX_MODELS)
def test_they_are_right_in_float32(name: str) -> None:
    stored = VALUES[name]
    model = parse(JAX_MODELS[name].replace("double", "float"))
    arrays = tensors(stored["point"]) | tensors(stored["tangents"], "_tangent")
    arrays = {key: value.astype(np.float32) for key, value in arrays.items()}
    (jvp,) = run(og.jvp(model, list(stored["point"])), arrays, stock=False)
    assert jvp.dtype == np.float32
    np.testing.assert_allclose(jvp, stored["jvp"], rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------- beside differences


def hessian_by_differences(model: onnx.ModelProto, wrt: list[str], arrays: Arrays) -> list:
    gradient = og.gradient(model, wrt, fill_grad=True)
    session = og.InferenceSession(gradient, threads=1)
    names = [value.name for value in gradient.graph.input]

    def at(name: str, element: int, step: float) -> list[np.ndarray]:
        moved = arrays[name].copy()
        moved.reshape(-1)[element] += step
        return session.run(None, {key: (arrays | {name: moved})[key] for key in names})

    step = 1e-5
    blocks = {}
    for second in wrt:
        columns = [
            [
                (right - left) / (2 * step)
                for right, left in zip(at(second, e, step), at(second, e, -step), strict=True)
            ]
            for e in range(arrays[second].size)
        ]
        for j, first in enumerate(wrt):
            shape = arrays[first].shape + arrays[second].shape
            block = np.stack([c[j] for c in columns], -1) if columns else np.zeros(shape)
            blocks[first, second] = block.reshape(shape)
    return [blocks[first, second] for first in wrt for second in wrt]


def drawn(**shapes: tuple[int, ...]) -> Arrays:
    rng = np.random.default_rng(5)
    return {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()}


LOOP = """m (int64 n, double[2] s) => (double y) {
    last, all = Loop <body = step (int64 i, bool go, double[2] s0)
        => (bool on, double[2] s1, double[2] o) {
            on = Identity (go)
            s1 = Sin (s0)
            o = Mul (s1, s)
        }> (n, , s)
    p = ReduceSumSquare <keepdims = 0> (all)
    q = ReduceSumSquare <keepdims = 0> (s)
    y = Add (p, q)
}"""
IF = """m (bool c, double[2] x) => (double y) {
    t = If (c) <then_branch = a () => (double[2] e) { e = Exp (x) },
                else_branch = b () => (double[2] r) { r = Mul (x, x) }>
    p = Mul (t, x)
    y = ReduceSum <keepdims = 0> (p)
}"""
CELL = """m (double[T, 1, 2] x, double[1, {rows}, 2] w, double[1, {rows}, 3] r) => (double y) {{
    all, last = {name} <hidden_size = 3> (x, w, r)
    y = ReduceSumSquare <keepdims = 0> (all)
}}"""
LINEAR = "m (double[3, 2] x) => (double y) { y = ReduceSum <keepdims = 0> (x) }"
CUBES = """m (double[N, 2] x, double z) => (double[1, 1] y) {
    a = Mul (x, x)
    b = Mul (a, x)
    c = Mul (b, z)
    y = ReduceSum (c)
}"""
CONV = """m (double[1, 2, 4, 4] x, double[2, 2, 3, 3] w) => (double y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
    y = ReduceSumSquare <keepdims = 0> (p)
}"""
RESIZE = """m (double[1, 1, 3, 2] x) => (double y)
<float[4] scales = {{1.0, 1.0, 2.0, 1.5}}> {{
    z = Mul (x, x)
    r = Resize <mode = "{mode}"> (z, , scales)
    y = ReduceSumSquare <keepdims = 0> (r)
}}"""

# Text, values, what to differentiate by, whether stock onnxruntime has the operators in float64.
SECOND: dict[str, tuple[str, Arrays, list[str], bool]] = {
    "linear": (LINEAR, drawn(x=(3, 2)), ["x"], True),
    "cubes": (CUBES, drawn(x=(3, 2), z=()), ["x", "z"], True),
    "no_rows": (CUBES, drawn(x=(0, 2), z=()), ["z", "x"], True),
    "then": (IF, drawn(x=(2,)) | {"c": np.array(True)}, ["x"], True),
    "else": (IF, drawn(x=(2,)) | {"c": np.array(False)}, ["x"], True),
    "loop": (LOOP, drawn(s=(2,)) | {"n": np.array(3)}, ["s"], True),
    "no_iteration": (LOOP, drawn(s=(2,)) | {"n": np.array(0)}, ["s"], True),
    "lstm": (
        CELL.format(rows=12, name="LSTM"),
        drawn(x=(3, 1, 2), w=(1, 12, 2), r=(1, 12, 3)),
        ["x", "r"],
        False,
    ),
    "gru": (
        CELL.format(rows=9, name="GRU"),
        drawn(x=(3, 1, 2), w=(1, 9, 2), r=(1, 9, 3)),
        ["x", "w"],
        False,
    ),
    "conv": (CONV, drawn(x=(1, 2, 4, 4), w=(2, 2, 3, 3)), ["w"], False),
    **{
        f"resize_{mode}": (RESIZE.format(mode=mode), drawn(x=(1, 1, 3, 2)), ["x"], False)
        for mode in ("nearest", "linear", "cubic")
    },
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_are_those_of_differences(name: str) -> None:
    text, arrays, wrt, stock = SECOND[name]
    model = parse(text)
    expected = hessian_by_differences(model, wrt, arrays)
    result = og.hessian(model, wrt)
    assert [value.name for value in result.graph.output] == [
        f"{first}_{second}_hessian" for first in wrt for second in wrt
    ]
    blocks = run(result, arrays, stock)
    for block, theirs in zip(blocks, expected, strict=True):
        assert block.shape == theirs.shape
        np.testing.assert_allclose(block, theirs, rtol=1e-6, atol=1e-6)
    tangents = {name: drawn(v=arrays[name].shape)["v"] for name in wrt}
    fed = arrays | {f"{name}_tangent": value for name, value in tangents.items()}
    products = run(og.hvp(model, wrt), fed, stock)
    for j, name in enumerate(wrt):
        rows = expected[j * len(wrt) : (j + 1) * len(wrt)]
        theirs = sum(
            np.tensordot(row, tangents[by], arrays[by].ndim)
            for row, by in zip(rows, wrt, strict=True)
        )
        np.testing.assert_allclose(products[j], theirs, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", gradient_models.MODELS)
def test_jvp_is_the_transpose_of_vjp(name: str) -> None:
    """<u, J v> = <J^T u, v>, for whatever there is a gradient of."""
    small = gradient_models.MODELS[name]
    model, wrt = small.model(), list(small.shapes)
    arrays = dict(zip(wrt, small.inputs(), strict=True))
    rng = np.random.default_rng(2)
    outputs = og.InferenceSession(model).run(None, arrays)
    seeds = {
        f"{value.name}_grad": rng.normal(size=array.shape)
        for value, array in zip(model.graph.output, outputs, strict=True)
    }
    tangents = {f"{name}_tangent": rng.normal(size=arrays[name].shape) for name in wrt}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about zero derivatives
        forward, backward = og.jvp(model, wrt), og.vjp(model, wrt)
    assert [value.name for value in forward.graph.input] == [*wrt, *tangents]
    moved = run(forward, arrays | tangents, stock=False)
    gradients = run(backward, arrays | seeds, stock=False)
    left = sum(np.sum(a * u) for a, u in zip(moved, seeds.values(), strict=True))
    right = sum(np.sum(a * v) for a, v in zip(gradients, tangents.values(), strict=True))
    rtol = 1e-6 if name == "quantize" else 1e-9  # that model computes in float32
    np.testing.assert_allclose(left, right, rtol=rtol, atol=1e-12)


# ------------------------------------------------------------------------------- names and messages

TWO = """m (float[N, 2] x, float[3] z) => (float[N, 3] y, float[N] q, int64[2] s)
    <float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
        y = MatMul (x, w)
        r = Mul (x, x)
        q = ReduceSum <keepdims = 0> (r, one)
        s = Shape (x)
    }"""


def two_outputs() -> onnx.ModelProto:
    model = parse(TWO)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    return model


def test_names_types_and_zeros_of_what_is_independent() -> None:
    with pytest.warns(UserWarning, match="gradient of 'z' is zero"):
        backward = og.vjp(two_outputs(), ["x", "w", "z"], keep_outputs=True)
    names = [value.name for value in backward.graph.input]
    assert names == ["x", "z", "w", "y_grad", "q_grad"]
    assert [v.name for v in backward.graph.output] == ["x_grad", "w_grad", "z_grad", "y", "q"]
    forward = og.jvp(two_outputs(), ["w"])
    assert [value.name for value in forward.graph.input] == ["x", "z", "w", "w_tangent"]
    assert [value.name for value in forward.graph.output] == ["y_tangent", "q_tangent"]
    x, w = np.float32([[1, 2], [3, 4]]), np.ones((2, 3), np.float32)
    arrays = {"x": x, "z": w[0], "w": w, "w_tangent": w}
    y, q = run(forward, arrays)
    np.testing.assert_array_equal(y, x @ w)
    np.testing.assert_array_equal(q, np.zeros(2, np.float32))
    with pytest.warns(UserWarning, match="derivative of 'q' is zero"):
        og.jvp(two_outputs(), "w", "q")


def test_more_than_one_element_has_no_hessian() -> None:
    for function in (og.hvp, og.hessian):
        with pytest.raises(
            og.ModelError, match=r"output 'y' is float32\[N, 3\], expected a single"
        ):
            function(two_outputs(), "x")


def test_an_old_opset_and_no_functions() -> None:
    model = parse(JAX_MODELS["classifier"])
    stored = VALUES["classifier"]
    arrays = tensors(stored["point"]) | tensors(stored["tangents"], "_tangent")
    result = og.hvp(model, ["w1"], target_opset=17, inline=True)
    assert not result.functions
    assert result.opset_import[0].version == 17
    expected = hessian_by_differences(model, ["w1"], tensors(stored["point"]))[0]
    (product,) = run(result, arrays)
    theirs = np.tensordot(expected, arrays["w1_tangent"], 2)
    np.testing.assert_allclose(product, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["vjp", "jvp", "hvp", "hessian"])
def test_the_commands_write_what_the_functions_return(kind: str, tmp_path: Path) -> None:
    file, written = tmp_path / "model.onnx", tmp_path / "written.onnx"
    onnx.save(parse(CUBES), file)
    flags = ["--wrt", "x", "--of", "y", "--stop-gradient", "b", "--keep-outputs"]
    done = CliRunner().invoke(app, [kind, str(file), "-o", str(written), *flags])
    assert done.exit_code == 0, done.output
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        returned = getattr(og, kind)(str(file), "x", "y", stop_gradient="b", keep_outputs=True)
    assert onnx.load(written) == returned


# ------------------------------------------------------------------------------------ stop_gradient

STOPPED = """m (double[2] x) => (double y) {
    a = Sin (x)
    [square] b = Mul (a, x)
    c = Mul (b, a)
    d = Mul (c, x)
    y = ReduceSum <keepdims = 0> (d)
}"""
# STOPPED with the value 'b' as an input, which nothing flows past.
CUT = """m (double[2] x, double[2] b) => (double y) {
    a = Sin (x)
    c = Mul (b, a)
    d = Mul (c, x)
    y = ReduceSum <keepdims = 0> (d)
}"""


@pytest.mark.parametrize("stop", ["b", "square"])
def test_a_stopped_value_is_a_constant_for_every_derivative(stop: str) -> None:
    x = np.array([0.3, -0.7])
    arrays = {
        "x": x,
        "b": np.sin(x) * x,
        "x_tangent": np.array([1.0, 2.0]),
        "y_grad": np.array(2.0),
    }
    for function in (og.gradient, og.vjp, og.jvp, og.hvp, og.hessian):
        stopped = function(parse(STOPPED), "x", stop_gradient=stop)
        assert not stopped.functions
        for ours, theirs in zip(
            run(stopped, arrays), run(function(parse(CUT), "x"), arrays), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)


BODY = """m (double[2] s, double[3, 2] x) => (double y) {{
    last, all = Scan <num_scan_inputs = 1, body = step (double[2] s0, double[2] row)
        => (double[2] s1, double[2] o) {{
            t = Mul (s0, row)
            s1 = Tanh (t)
            {row} = Identity (row)
            {state} = Identity (s1)
            o = Mul (r, u)
        }}> (s, x)
    y = ReduceSum <keepdims = 0> (all)
}}"""


def test_values_of_a_body_stop_gradients_and_gradients_of_gradients() -> None:
    arrays = drawn(s=(2,), x=(3, 2))
    model = parse(BODY.format(row="r", state="u"))
    x, s = arrays["x"], arrays["s"]
    states = []
    for row in x:
        s = np.tanh(s * row)
        states.append(s)
    (by_x,) = run(og.gradient(model, "x", fill_grad=True, stop_gradient="u"), arrays)
    np.testing.assert_allclose(by_x, np.stack(states), rtol=1e-12)
    (by_s,) = run(og.gradient(model, "s", fill_grad=True, stop_gradient="s1"), arrays)
    np.testing.assert_array_equal(by_s, np.zeros(2))
    # Linear in what is left: no second derivative.
    (second,) = run(og.hessian(model, "x", stop_gradient=["u"]), arrays)
    np.testing.assert_array_equal(second, np.zeros((3, 2, 3, 2)))


LAYERS = """m (float[N, 2] x) => (float[N, 3] y)
    <float[2, 4] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[4] b = {1, 0, 1, 0},
     float[4, 3] v = {1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1, 0}> {
        p = MatMul (x, w)
        a = Add (p, b)
        [act] h = Tanh (a)
        y = MatMul (h, v)
    }"""


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lbfgs"])
def test_training_with_a_stop_trains_what_is_after_it(optimizer: str) -> None:
    x, y = np.float32([[1, 0], [0, 1]]) / 8, np.zeros((2, 3), np.float32)
    session = og.TrainingSession(
        parse(LAYERS), "squared_error", optimizer, trainable=["v"], stop_gradient="h"
    )
    plain = og.TrainingSession(parse(LAYERS), "squared_error", optimizer, trainable=["v"])
    for _ in range(3):
        assert session.step({"x": x, "label": y}) == plain.step({"x": x, "label": y})
    np.testing.assert_array_equal(session.state()["v"], plain.state()["v"])
    trainer = og.Trainer(
        parse(LAYERS), "squared_error", optimizer, stop_gradient=["a"], trainable=["b", "v"]
    )
    start = trainer.session.state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 'b' does not change
        trainer.fit(x, y, epochs=2, verbose=0)
    state = trainer.session.state()
    if optimizer != "adamw":  # which also decays it
        np.testing.assert_array_equal(state["b"], np.float32([1, 0, 1, 0]))
    assert not np.array_equal(state["v"], start["v"])


def test_stops_between_layers_do_not_change_which_weights_are_trained() -> None:
    stopped = og.TrainingSession(parse(LAYERS), "squared_error", stop_gradient="p")
    plain = og.TrainingSession(parse(LAYERS), "squared_error")
    assert [w.name for w in stopped.trained_weights] == [w.name for w in plain.trained_weights]


def test_separate_passes_and_steps_stop_too() -> None:
    x = np.float32([[1, 0], [0, 1]])
    layer = og.ForwardBackward(parse(LAYERS), stop_gradient="act")
    (y,) = layer.forward({"x": x})
    gradients = layer.backward(np.ones_like(y))
    assert not gradients.weights["w"].any()
    assert not gradients.inputs["x"].any()
    assert gradients.weights["v"].all()
    step = og.training_step(
        parse(LAYERS), "squared_error", stop_gradient="act", gradients=True, inline=True
    )
    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in step.graph.initializer}
    rate = np.array(0.1, np.float32)
    arrays |= {"x": x, "label": np.zeros((2, 3), np.float32), "learning_rate": rate}
    results = dict(zip([o.name for o in step.graph.output], run(step, arrays), strict=True))
    assert not results["w_grad"].any()
    assert results["v_grad"].any()


def test_what_cannot_be_stopped_is_reported() -> None:
    with pytest.raises(og.ModelError, match=r"no value and no node 'acc'.*\n.*Did you mean 'act'"):
        og.gradient(parse(LAYERS), stop_gradient="acc")
    with pytest.raises(og.ModelError, match=r"'w' is a weight\n.*frozen="):
        og.TrainingSession(parse(LAYERS), "squared_error", stop_gradient="w")
    with pytest.raises(og.GradientError, match="gradient of all weights is zero"):
        og.TrainingSession(parse(LAYERS), "squared_error", stop_gradient="y")


SHARED = """
import sys
import numpy as np, onnx
from onnx import helper, numpy_helper
from onnxgrad import _core

def peak():
    with open("/proc/self/status") as status:
        found = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    return found / 1024

weight = numpy_helper.from_array(np.ones((4096, 4096), np.float32), "w")  # 64 MiB
ends = [helper.make_tensor_value_info(n, 1, ["N", 4096]) for n in ("x", "y")]
nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
loaded = _core.Model.from_bytes(model.SerializeToString())
loaded.weights
peak()
before = peak()
for wrt in (["x"], ["w"]):
    for function in (_core.vjp, _core.jvp):
        kept = function(loaded, wrt, ["y"], True, [], 26, False)[0]
        assert len(kept.inputs) >= 2
print(peak() - before)
"""


def test_weights_are_shared_and_not_copied() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHARED], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 16  # MiB, of a weight of 64
