"""The operators of ai.onnx.preview.training in a model: Gradient, Adagrad, Adam, Momentum."""

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import onnx.parser
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxgrad as og

HEADER = '<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>'
GRADIENT = "ai.onnx.preview.training.Gradient"


def run(text, feeds, header=HEADER):
    model = onnx.parser.parse_model(header + text)
    return og.InferenceSession(model).run(None, feeds)


def numeric_gradient(function, x, step=1e-6):
    """Central differences of a function of one float64 array to a number."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("name", ["test_gradient_of_add", "test_gradient_of_add_and_mul"])
def test_models_of_onnx(name):
    folder = Path(onnx.backend.test.__file__).parent / "data" / "simple" / name
    data = folder / "test_data_set_0"
    model = onnx.load(folder / "model.onnx")

    def tensors(kind):
        count = len(list(data.glob(f"{kind}_*.pb")))
        return [
            numpy_helper.to_array(onnx.load_tensor(data / f"{kind}_{i}.pb")) for i in range(count)
        ]

    names = [value.name for value in model.graph.input]
    outputs = og.InferenceSession(model).run(None, dict(zip(names, tensors("input"), strict=True)))
    for output, expected in zip(outputs, tensors("output"), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-6)


# ------------------------------------------------------------------------------------- Gradient


def test_gradient_by_inputs_at_other_points_and_of_inner_tensors():
    text = f"""
    g (double[N,3] x, double[3,2] w, double[3,2] w_1, double[N,2] h_1)
        => (double y, double[3,2] dw, double[3,2] dw_1, double[N,3] dx_1, double[N,2] dh,
            double[N,2] dh_1) {{
      h = MatMul (x, w)
      t = Tanh (h)
      s = Mul (t, h)
      y = ReduceSum <keepdims = 0> (s)
      dw = {GRADIENT} <xs = ["w"], zs = ["x"], y = "y"> (w, x)
      dw_1, dx_1 = {GRADIENT} <xs = ["w", "x"], y = "y"> (w_1, x)
      dh = {GRADIENT} <xs = ["h"], y = "y"> (h)
      dh_1 = {GRADIENT} <xs = ["h"], y = "y"> (h_1)
    }}"""
    x, w, w_1, h_1 = normal(4, 3), normal(3, 2, seed=1), normal(3, 2, seed=2), normal(4, 2, seed=3)
    y, dw, dw_1, dx_1, dh, dh_1 = run(text, {"x": x, "w": w, "w_1": w_1, "h_1": h_1})

    def of_h(h):
        return np.sum(np.tanh(h) * h)

    assert y == pytest.approx(of_h(x @ w))
    np.testing.assert_allclose(dw, numeric_gradient(lambda v: of_h(x @ v), w), rtol=1e-6)
    np.testing.assert_allclose(dw_1, numeric_gradient(lambda v: of_h(x @ v), w_1), rtol=1e-6)
    np.testing.assert_allclose(dx_1, numeric_gradient(lambda v: of_h(v @ w_1), x), rtol=1e-6)
    np.testing.assert_allclose(dh, numeric_gradient(of_h, x @ w), rtol=1e-6)
    np.testing.assert_allclose(dh_1, numeric_gradient(of_h, h_1), rtol=1e-6)


def test_another_point_may_have_another_shape():
    text = f"""
    g (double[N,2] x, double[M,2] x_1) => (double y, double[M,2] dx) {{
      s = Sin (x)
      m = ReduceMean <keepdims = 0> (s)
      y = Identity (m)
      dx = {GRADIENT} <xs = ["x"], y = "y"> (x_1)
    }}"""
    x_1 = normal(5, 2)
    _, dx = run(text, {"x": normal(3, 2, seed=1), "x_1": x_1})
    np.testing.assert_allclose(dx, np.cos(x_1) / 10, rtol=1e-12)


def test_named_tensors_are_independent_of_each_other():
    # ONNX would allow only one of x and u, which is computed from x: here both are named, as in a
    # function of two variables.
    text = f"""
    g (double[3] x) => (double[3] dx, double[3] du, double[3] whole) {{
      u = Exp (x)
      p = Mul (u, x)
      y = ReduceSum <keepdims = 0> (p)
      dx, du = {GRADIENT} <xs = ["x", "u"], y = "y"> (x, u)
      whole = {GRADIENT} <xs = ["x"], y = "y"> (x)
    }}"""
    x = normal(3)
    dx, du, whole = run(text, {"x": x})
    np.testing.assert_allclose(dx, np.exp(x), rtol=1e-12)
    np.testing.assert_allclose(du, x, rtol=1e-12)
    np.testing.assert_allclose(whole, np.exp(x) * (1 + x), rtol=1e-12)


def test_absent_outputs_and_tensors_without_influence():
    text = f"""
    g (double[2] a, double[2] b, double[2] c) => (double[2] db, double[2] dc) {{
      p = Mul (a, b)
      y = ReduceSum <keepdims = 0> (p)
      , db, dc = {GRADIENT} <xs = ["a", "b", "c"], y = "y"> (a, b, c)
    }}"""
    a, b = normal(2), normal(2, seed=1)
    db, dc = run(text, {"a": a, "b": b, "c": b})
    np.testing.assert_allclose(db, a)
    np.testing.assert_array_equal(dc, [0, 0])


def test_third_derivative_by_nested_nodes():
    text = f"""
    g (double x) => (double y, double d, double dd, double ddd) {{
      s = Sin (x)
      y = Mul (s, x)
      d = {GRADIENT} <xs = ["x"], y = "y"> (x)
      dd = {GRADIENT} <xs = ["x"], y = "d"> (x)
      ddd = {GRADIENT} <xs = ["x"], y = "dd"> (x)
    }}"""
    x = np.array(0.7)
    y, first, second, third = run(text, {"x": x})
    s, c = np.sin(x), np.cos(x)
    np.testing.assert_allclose(
        [y, first, second, third],
        [s * x, c * x + s, 2 * c - s * x, -3 * s - c * x],
        rtol=1e-12,
    )


def test_a_nested_node_at_another_point():
    # d/dx of g(x) = y'(x), at x_1; the inner node is evaluated there too.
    text = f"""
    g (double x, double x_1) => (double d, double dd) {{
      q = Mul (x, x)
      y = Mul (q, x)
      d = {GRADIENT} <xs = ["x"], y = "y"> (x)
      dd = {GRADIENT} <xs = ["x"], y = "d"> (x_1)
    }}"""
    d, dd = run(text, {"x": np.array(2.0), "x_1": np.array(5.0)})
    assert (float(d), float(dd)) == (12.0, 30.0)


def test_a_node_before_what_it_names():
    text = f"""
    g (double[3] x) => (double[3] d) {{
      d = {GRADIENT} <xs = ["x"], y = "y"> (x)
      e = Exp (x)
      y = ReduceSum <keepdims = 0> (e)
    }}"""
    x = normal(3)
    np.testing.assert_allclose(run(text, {"x": x})[0], np.exp(x), rtol=1e-12)


def test_in_a_branch_of_what_is_outside():
    text = f"""
    g (double[3] x, bool c) => (double[3] d) {{
      e = Exp (x)
      y = ReduceSum <keepdims = 0> (e)
      d = If (c) <then_branch = then () => (double[3] a) {{
            a = {GRADIENT} <xs = ["x"], y = "y"> (x)
          }}, else_branch = other () => (double[3] b) {{
            z = Mul (x, x)
            s = ReduceSum <keepdims = 0> (z)
            b = {GRADIENT} <xs = ["x"], y = "s"> (x)
          }}>
    }}"""
    x = normal(3)
    np.testing.assert_allclose(run(text, {"x": x, "c": np.array(True)})[0], np.exp(x), rtol=1e-12)
    np.testing.assert_allclose(run(text, {"x": x, "c": np.array(False)})[0], 2 * x, rtol=1e-12)


def test_gradient_descent_in_a_loop():
    # Ten steps x -= 0.1 f'(x) for f = sum(exp(x) - 2 x), in the body.
    text = f"""
    g (double[3] x0, int64 n, bool c) => (double[3] x) {{
      x = Loop (n, c, x0) <body = body (int64 i, bool go, double[3] v) =>
          (bool again, double[3] next) {{
            again = Identity (go)
            e = Exp (v)
            two = Constant <value = double {{2.0}}> ()
            t = Mul (v, two)
            f = Sub (e, t)
            y = ReduceSum <keepdims = 0> (f)
            d = {GRADIENT} <xs = ["v"], y = "y"> (v)
            r = Constant <value = double {{0.1}}> ()
            s = Mul (d, r)
            next = Sub (v, s)
          }}>
    }}"""
    x = normal(3)
    found = run(text, {"x0": x, "n": np.array(10), "c": np.array(True)})[0]
    for _ in range(10):
        x = x - 0.1 * (np.exp(x) - 2)
    np.testing.assert_allclose(found, x, rtol=1e-12)


def test_in_a_scan_and_through_a_loop():
    text = f"""
    g (double[4,3] xs, double[3] w) => (double[3] last, double[4,3] rows, double[3] dw) {{
      zero = Sub (w, w)
      last, rows = Scan <num_scan_inputs = 1, body = body (double[3] h, double[3] x) =>
          (double[3] next, double[3] slope) {{
            p = Mul (x, w)
            s = Add (p, h)
            next = Tanh (s)
            y = ReduceSum <keepdims = 0> (next)
            slope = {GRADIENT} <xs = ["s"], y = "y"> (s)
          }}> (zero, xs)
      all = ReduceSum <keepdims = 0> (last)
      dw = {GRADIENT} <xs = ["w"], y = "all"> (w)
    }}"""
    xs, w = normal(4, 3), normal(3, seed=1)

    def scan(w):
        h, slopes = np.zeros(3), []
        for x in xs:
            h = np.tanh(x * w + h)
            slopes.append(1 - h**2)
        return h, np.array(slopes)

    last, rows, dw = run(text, {"xs": xs, "w": w})
    np.testing.assert_allclose(last, scan(w)[0], rtol=1e-12)
    np.testing.assert_allclose(rows, scan(w)[1], rtol=1e-9)
    expected = numeric_gradient(lambda v: np.sum(scan(v)[0]), w)
    np.testing.assert_allclose(dw, expected, rtol=1e-6, atol=1e-9)


def test_in_a_function():
    text = f"""
    g (double[3] a, double[3] b) => (double[3] da, double[3] db) {{
      da = my.slope (a)
      db = my.slope (b)
    }}
    <domain: "my", opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
    slope (x) => (d) {{
      e = Sin (x)
      y = ReduceSum <keepdims = 0> (e)
      d = {GRADIENT} <xs = ["x"], y = "y"> (x)
    }}"""
    header = HEADER.replace("]>", ', "my" : 1]>')
    a, b = normal(3), normal(3, seed=1)
    da, db = run(text, {"a": a, "b": b}, header)
    np.testing.assert_allclose(da, np.cos(a), rtol=1e-12)
    np.testing.assert_allclose(db, np.cos(b), rtol=1e-12)


def test_dropout_is_the_same_in_the_gradient():
    text = f"""
    g (float[1000] x, bool t) => (float[1000] d, float[1000] at_1, float[1000] dx) {{
      r = Constant <value = float {{0.5}}> ()
      d = Dropout <seed = 3> (x, r, t)
      y = ReduceSum <keepdims = 0> (d)
      dx = {GRADIENT} <xs = ["x"], y = "y"> (x)
      one = Div (x, x)
      at_1 = {GRADIENT} <xs = ["x"], y = "y"> (one)
    }}"""
    x = np.ones(1000, np.float32)
    d, at_1, dx = run(text, {"x": x, "t": np.array(True)})
    assert 300 < np.count_nonzero(d) < 700
    np.testing.assert_array_equal(dx, d)
    np.testing.assert_array_equal(at_1, d)


PHYSICS = f"""
g (double[N,1] x, double[N,1] label) => (double[N,1] u, double[N,1] u_x, double loss)
<double[1,8] w = {{{",".join(f"{v:.3f}" for v in normal(8))}}},
 double[8] b = {{{",".join(f"{v:.3f}" for v in normal(8, seed=1))}}},
 double[8,1] v = {{{",".join(f"{v:.3f}" for v in normal(8, seed=2))}}}> {{
  h = MatMul (x, w)
  hb = Add (h, b)
  t = Tanh (hb)
  u = MatMul (t, v)
  all = ReduceSum <keepdims = 0> (u)
  u_x = {GRADIENT} <xs = ["x"], y = "all"> (x)
  r = Sub (u_x, label)
  rr = Mul (r, r)
  loss = ReduceMean <keepdims = 0> (rr)
}}"""


def physics_loss(arrays, x, label):
    w, b, v = arrays
    u_x = ((1 - np.tanh(x @ w + b) ** 2) * w) @ v
    return np.mean((u_x - label) ** 2)


def test_training_through_a_gradient():
    # u' is fitted to cos(x), so that u becomes sin(x): the gradient of a gradient is trained with.
    model = onnx.parser.parse_model(HEADER + PHYSICS)
    x = np.linspace(-2, 2, 64).reshape(-1, 1)
    arrays = [numpy_helper.to_array(value) for value in model.graph.initializer]
    gradient = og.InferenceSession(og.gradient(model, outputs=["loss"], fill_grad=True))
    feeds = {"x": x, "label": np.cos(x)}
    feeds |= {value.name: a for value, a in zip(model.graph.initializer, arrays, strict=True)}
    found = gradient.run(None, {n: feeds[n] for n in [i.name for i in gradient.get_inputs()]})
    for i, array in enumerate(arrays):
        expected = numeric_gradient(
            lambda value, i=i: physics_loss([*arrays[:i], value, *arrays[i + 1 :]], x, np.cos(x)),
            array,
        )
        np.testing.assert_allclose(found[i], expected, rtol=1e-5, atol=1e-8)

    trainer = og.Trainer(model, "output:loss", "adam", lr=0.02)
    trainer.fit(x, np.cos(x), epochs=300, batch_size=64, verbose=0)
    assert trainer.history["train_loss"][-1] < 5e-3
    again = og.InferenceSession(trainer.trained_model())
    u_x = again.run(["u_x"], {"x": x, "label": np.cos(x)})[0]
    np.testing.assert_allclose(u_x, np.cos(x), atol=0.15)


def test_gradient_files_run_in_stock_onnxruntime():
    ort = pytest.importorskip("onnxruntime")
    model = onnx.parser.parse_model(HEADER + PHYSICS)
    written = og.gradient(model, outputs=["loss"], fill_grad=True, inline=True)
    domains = {node.domain for node in written.graph.node}
    assert domains <= {"", "ai.onnx"}
    arrays = {v.name: numpy_helper.to_array(v) for v in model.graph.initializer}
    x = np.linspace(-2, 2, 16).reshape(-1, 1)
    feeds = {"x": x, "label": np.cos(x), **arrays}
    names = [value.name for value in written.graph.input]
    session = ort.InferenceSession(written.SerializeToString())
    stock = session.run(None, {name: feeds[name] for name in names})
    ours = og.InferenceSession(written).run(None, {name: feeds[name] for name in names})
    for a, b in zip(stock, ours, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize(
    ("node", "fragments"),
    [
        ('d = {G} <xs = ["xx"], y = "y"> (x)', ["xs names 'xx'", "'x'"]),
        ('d = {G} <xs = ["x"], y = "z"> (x)', ["y names 'z'", "does not have"]),
        ('d = {G} <xs = ["x"], zs = ["w"], y = "y"> (x)', ["1 inputs for 2"]),
        ('d = {G} <xs = ["x"], y = "y"> (i)', ["int64", "'x'"]),
        ('d = {G} <xs = ["i"], y = "y"> (i)', ["xs names 'i'", "floating-point"]),
        ('d = {G} <xs = ["x"], y = "d"> (x)', ["depends on that node itself"]),
        ('d, e = {G} <xs = ["x"], y = "y"> (x)', ["2 outputs for 1"]),
        ('d = {G} <xs = ["x"], y = "k"> (x)', ["Gradient node", "no gradient", "Unknown"]),
    ],
)
def test_errors_name_the_node_and_the_tensor(node, fragments):
    text = f"""
    g (float[3] x, int64[3] i, float[3] w) => (float y) {{
      e0 = Exp (x)
      y = ReduceSum <keepdims = 0> (e0)
      b = Sigmoid (x)
      k1 = my.Unknown (b)
      k = ReduceSum <keepdims = 0> (k1)
      [node] {node.replace("{G}", GRADIENT)}
    }}"""
    header = HEADER.replace("]>", ', "my" : 1]>')
    with pytest.raises((og.ModelError, og.GradientError, og.UnsupportedOperatorError)) as caught:
        run(text, {}, header)
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)


# ------------------------------------------------------------------------------------- optimizers


SLOTS = {"Adagrad": 1, "Momentum": 1, "Adam": 2}
ATTRIBUTES = {
    "Adagrad": [{}, {"decay_factor": 0.2, "epsilon": 1e-3, "norm_coefficient": 0.05}],
    "Adam": [
        {},
        {
            "alpha": 0.8,
            "beta": 0.95,
            "epsilon": 1e-3,
            "norm_coefficient": 0.05,
            "norm_coefficient_post": 0.1,
        },
    ],
    "Momentum": [
        {"alpha": 0.9, "beta": beta, "norm_coefficient": norm, "mode": mode}
        for beta, norm, mode in itertools.product([1.0, 0.4], [0.0, 0.05], ["standard", "nesterov"])
    ],
}
STEPS = [(op, given) for op, choices in ATTRIBUTES.items() for given in choices]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("op", "attributes"), STEPS)
def test_optimizer_steps_against_the_reference(op, attributes, dtype, count):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shapes = [(3, 2), (4,)][:count]
    roles = ["x", "g", *[f"s{i}" for i in range(SLOTS[op])]]
    names = [f"{role}{i}" for role in roles for i in range(count)]
    results = [f"{role}{i}_new" for role in roles if role != "g" for i in range(count)]
    node = helper.make_node(
        op, ["r", "t", *names], results, domain="ai.onnx.preview.training", **attributes
    )
    values = [helper.make_tensor_value_info("r", kind, [])]
    values.append(helper.make_tensor_value_info("t", onnx.TensorProto.INT64, []))
    values += [helper.make_tensor_value_info(name, kind, shapes[int(name[-1])]) for name in names]
    outputs = [helper.make_tensor_value_info(name, kind, shapes[int(name[-5])]) for name in results]
    graph = helper.make_graph([node], "step", values, outputs)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.preview.training", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    onnx.checker.check_model(model)
    session, reference = og.InferenceSession(model), ReferenceEvaluator(model)
    rng = np.random.default_rng(0)
    for t in (0, 1, 6):
        feeds = {"r": np.array(0.1, dtype), "t": np.array(t, np.int64)}
        for name in names:
            numbers = rng.normal(size=shapes[int(name[-1])]).astype(dtype)
            feeds[name] = np.abs(numbers) if name.startswith("s") else numbers
        ours, expected = session.run(None, feeds), reference.run(None, feeds)
        for a, b in zip(ours, expected, strict=True):
            assert a.dtype == dtype
            # The reference returns several tensors of Adam as float32, and subtracts attributes
            # from 1 in float32.
            is_exact = dtype == np.float64 and b.dtype == np.float64 and op != "Adam"
            tolerance = 1e-12 if is_exact else 1e-6
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_a_step_at_zero_has_a_gradient():
    # All of H' is zero where G and H are; the root has no slope there, and that counts as 0.
    text = """
    g (double r, int64 t, double[2] x, double[2] g, double[2] v, double[2] h)
        => (double[2] x_new, double[2] v_new, double[2] h_new) {
      x_new, v_new, h_new = ai.onnx.preview.training.Adam (r, t, x, g, v, h)
    }"""
    model = onnx.parser.parse_model(HEADER + text)
    gradient = og.gradient(model, wrt=["x", "g", "v", "h"], outputs=["x_new"], fill_grad=True)
    zero = np.zeros(2)
    feeds = {"r": np.array(0.1), "t": np.array(1), "x": zero, "g": zero, "v": zero, "h": zero}
    session = og.InferenceSession(gradient)
    wanted = [value.name for value in session.get_inputs()]
    for value in session.run(None, {name: feeds[name] for name in wanted}):
        assert np.all(np.isfinite(value))
