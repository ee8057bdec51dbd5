"""Gradients by what is quantized, where no DequantizeLinear of the same scale reads it directly."""

from typing import NamedTuple

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import onnxgrad as og

F = np.float32
CODES = "q = QuantizeLinear (x, s, z)"
STEPS = """places = Div (x, s)
  above = Add (places, zf)
  q = Clip (above, none, most)"""


class Reader(NamedTuple):
    """Reader of the integers q; `smooth` reads numbers that are not rounded."""

    statements: str
    smooth: str


READERS = {
    "cast": Reader("y = Cast <to = 1> (q)", "y = Identity (q)"),
    "other_scale": Reader("y = DequantizeLinear (q, s2, z2)", "a = Sub (q, z2f)\n y = Mul (a, s2)"),
    "per_axis": Reader(
        "y = DequantizeLinear <axis = 0> (q, s4, z4)",
        "a = Sub (q, z41)\n y = Mul (a, s41)",
    ),
    "blocks": Reader(
        "y = DequantizeLinear <axis = 1, block_size = 3> (q, s43)",
        "y = Mul (q, s46)",
    ),
    "concat": Reader(
        "c = Concat <axis = 0> (q, p, q)\n y = DequantizeLinear (c, s, z)",
        "pf = Cast <to = 1> (p)\n c = Concat <axis = 0> (q, pf, q)\n"
        "a = Sub (c, zf)\n y = Mul (a, s)",
    ),
    "pool": Reader(
        "u = Unsqueeze (q, first_two)\n m = MaxPool <kernel_shape = [2, 2]> (u)\n"
        "t = Transpose (m)\n y = Cast <to = 1> (t)",
        "u = Unsqueeze (q, first_two)\n m = MaxPool <kernel_shape = [2, 2]> (u)\ny = Transpose (m)",
    ),
    "gather_pad": Reader(
        "g = Gather <axis = 1> (q, places_of)\n wide = Pad (g, pads, z2)\n"
        "y = DequantizeLinear (wide, s, z)",
        "g = Gather <axis = 1> (q, places_of)\n wide = Pad (g, pads, z2f)\n"
        "a = Sub (wide, zf)\n y = Mul (a, s)",
    ),
    "split_where": Reader(
        "a, b = Split <axis = 1, num_outputs = 2> (q)\n t = Where (chosen, b, a)\n"
        "y = Cast <to = 1> (t)",
        "a, b = Split <axis = 1, num_outputs = 2> (q)\n y = Where (chosen, b, a)",
    ),
    "sum_of_integers": Reader(
        "a = Cast <to = 6> (q)\n b = Cast <to = 6> (p)\n c = Mul (a, b)\n d = Sub (c, a)\n"
        "y = Cast <to = 1> (d)",
        "b = Cast <to = 1> (p)\n c = Mul (q, b)\n y = Sub (c, q)",
    ),
    "integer_product": Reader(
        "m = MatMulInteger (q, w, z)\n a = Add (m, bias)\n y = Cast <to = 1> (a)",
        "c = Sub (q, zf)\n wf = Cast <to = 1> (w)\n bf = Cast <to = 1> (bias)\n"
        "m = MatMul (c, wf)\n y = Add (m, bf)",
    ),
    "integer_convolution": Reader(
        "u = Unsqueeze (q, first_two)\n c = ConvInteger (u, k, z)\n y = Cast <to = 1> (c)",
        "v = Sub (q, zf)\n u = Unsqueeze (v, first_two)\n kf = Cast <to = 1> (k)\ny = Conv (u, kf)",
    ),
    "branch": Reader(
        """y = If (chosen_one) <then_branch = a () => (float[4, 6] r) { r = Cast <to = 1> (q) },
                      else_branch = b () => (float[4, 6] r2) { r2 = Identity (x) }>""",
        "y = Identity (q)",
    ),
}
CONSTANTS = """float none = {0}, float most = {255}, uint8 z = {120}, float zf = {120},
  float s2 = {0.3}, uint8 z2 = {7}, float z2f = {7},
  float[4] s4 = {1, 2, 3, 4}, uint8[4] z4 = {0, 1, 2, 3}, float[4, 1] s41 = {1, 2, 3, 4},
  float[4, 1] z41 = {0, 1, 2, 3},
  float[4, 2] s43 = {1, 2, 3, 4, 5, 6, 7, 8},
  float[4, 6] s46 = {1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8},
  uint8[1, 6] p = {1, 2, 3, 250, 5, 6}, int64[2] first_two = {0, 1},
  int64[3] places_of = {5, 0, 0}, int64[4] pads = {1, 0, 0, 2},
  bool[4, 3] chosen = {1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0},
  int8[6, 2] w = {1, -2, 3, -4, 5, -6, 127, -128, 9, 10, 11, 12}, int32[2] bias = {70000, -3},
  uint8[2, 1, 2, 2] k = {1, 2, 3, 4, 5, 6, 7, 255}"""


def model(statements: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[4, 6] x, float s, bool chosen_one) => (y)
        <{CONSTANTS}> {{ {statements} }}"""
    )


def run_stock(proto: onnx.ModelProto, feeds: dict) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, feeds)


def feeds_of() -> dict[str, np.ndarray]:
    # Steps far enough from each other that rounding changes no order; some are clipped.
    x = (np.random.default_rng(0).permutation(24).reshape(4, 6) - 11).astype(F) * F(0.93)
    return {"x": x, "s": np.array(0.071, F), "chosen_one": np.array(True)}


def gradients(proto: onnx.ModelProto, wrt: list[str], feeds: dict) -> list[np.ndarray]:
    """Return the gradients of a projection of y."""
    y = og.InferenceSession(proto).run(None, feeds)[0]
    seed = np.random.default_rng(1).uniform(0.5, 1.5, y.shape).astype(F)
    gradient = og.gradient(proto, wrt, ["y"])
    names = {value.name for value in gradient.graph.input}
    fed = {name: value for name, value in {**feeds, "y_grad": seed}.items() if name in names}
    ours = og.InferenceSession(gradient).run(None, fed)
    for one, other in zip(ours, run_stock(gradient, fed), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-4)
    return ours


@pytest.mark.parametrize("name", READERS)
def test_gradients_go_straight_through(name: str) -> None:
    reader = READERS[name]
    feeds = feeds_of()
    rounded = model(f"{CODES}\n{reader.statements}")
    np.testing.assert_allclose(
        og.InferenceSession(rounded).run(None, feeds)[0], run_stock(rounded, feeds)[0], rtol=1e-6
    )
    expected = gradients(model(f"{STEPS}\n{reader.smooth}"), ["x", "s"], feeds)
    given = gradients(rounded, ["x", "s"], feeds)
    assert np.any(expected[0] == 0)
    assert np.any(expected[0] != 0)
    for ours, theirs in zip(given, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3 * np.abs(theirs).max())


DYNAMIC = """<ir_version: 10, opset_import: ["" : 21]>
  g (float[N, 5] x) => (float[N, 2] y)
  <float[5, 6] w1, float[6] b1, uint8[6, 2] w2, uint8 z2 = {130}, float s2 = {0.02},
   float[2] b2> {
    p = MatMul (x, w1)
    a = Add (p, b1)
    h = Tanh (a)
    q, scale, zero = DynamicQuantizeLinear (h)
    m = MatMulInteger (q, w2, zero, z2)
    f = Cast <to = 1> (m)
    both = Mul (scale, s2)
    r = Mul (f, both)
    y = Add (r, b2)
  }"""


def dynamic_model() -> onnx.ModelProto:
    """As onnxruntime's dynamic quantization writes a layer, behind one that it left alone."""
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(DYNAMIC.replace("float[5, 6] w1", "float[5, 6] w1 = {0}"))
    arrays = {
        "w1": rng.normal(size=(5, 6)).astype(F),
        "b1": rng.normal(size=6).astype(F),
        "w2": rng.integers(0, 256, (6, 2)).astype(np.uint8),
        "b2": np.zeros(2, F),
    }
    for tensor in [t for t in proto.graph.initializer if t.name in arrays]:
        proto.graph.initializer.remove(tensor)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()
    )
    for value in [v for v in proto.graph.input if v.name != "x"]:
        proto.graph.input.remove(value)
    return proto


def test_what_is_quantized_dynamically_trains() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(64, 5)).astype(F)
    proto = dynamic_model()
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    # By w1: that of the model whose numbers are not rounded, but for a part of a step.
    w2 = (weights["w2"].astype(F) - 130) * weights["s2"]
    seed = rng.normal(size=(64, 2)).astype(F)
    h = np.tanh(x @ weights["w1"] + weights["b1"])
    expected = x.T @ (seed @ w2.T * (1 - h**2))
    gradient = og.gradient(proto, ["w1"], ["y"])
    names = {value.name for value in gradient.graph.input}
    fed = {k: v for k, v in {"x": x, "y_grad": seed, **weights}.items() if k in names}
    given = og.InferenceSession(gradient).run(None, fed)[0]
    np.testing.assert_allclose(given, expected, rtol=0, atol=0.02 * np.abs(expected).max())

    target = og.InferenceSession(proto).run(None, {"x": x})[0] + F(0.3) + 0.5 * x[:, :2]
    trainer = og.Trainer(proto, loss="mse", optimizer="adam", lr=0.02)
    before = trainer.evaluate(x, target).loss
    trainer.fit(x, target, epochs=40, batch_size=16, verbose=False)
    assert trainer.evaluate(x, target).loss < 0.3 * before
    trained = trainer.trained_model()
    np.testing.assert_allclose(
        og.InferenceSession(trained).run(None, {"x": x})[0],
        run_stock(trained, {"x": x})[0],
        atol=0.02,
    )
    kept = {t.name: onnx.numpy_helper.to_array(t) for t in trained.graph.initializer}
    np.testing.assert_array_equal(kept["w2"], weights["w2"])
    assert np.any(kept["w1"] != weights["w1"])


def test_integers_that_no_gradient_follows_are_named() -> None:
    proto = model(f"[rounding] {CODES}\nd = Mod (q, p)\ny = Cast <to = 1> (d)")
    with pytest.raises(og.GradientError, match="rounding") as caught:
        og.gradient(proto, ["x"], ["y"])
    assert "integers" in str(caught.value)


def test_reports_say_what_is_quantized() -> None:
    text = str(og.report(dynamic_model()))
    assert "not trained: 'w2' (quantized" in text
    assert "QuantizedNumber" not in text
    runs = {
        row.op_type: (row.runs, row.has_gradient) for row in og.report(dynamic_model()).operators
    }
    assert runs["DynamicQuantizeLinear"] == runs["MatMulInteger"] == (True, True)


def test_readers_are_named_as_operators() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 2] x) => (float[N, 3] y)
        <float[2, 3] w = {1, -2, 3, -4, 5, -6}, float s = {0.02}, int8 z = {0}> {
          q = QuantizeLinear (w, s, z)
          d = DequantizeLinear (q, s, z)
          y = MatMul (x, d)
        }"""
    )
    weights = {weight.name: weight for weight in og.report(proto).weights}
    assert weights["w"].trainable
    assert weights["w"].op_type in ("FakeQuantize", "MatMul")


def test_a_bias_is_no_more_than_its_integers_can_be() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 2] x) => (float[N, 2] y)
        <int8[2, 2] w = {1, 2, 3, 4}, float ws = {1e-4}, int8 z = {0}, float xs = {1e-5},
         int32[2] b = {1000, 1}, float bs = {1e-9}> {
          q = QuantizeLinear (x, xs, z)
          d = DequantizeLinear (q, xs, z)
          v = DequantizeLinear (w, ws, z)
          bias = DequantizeLinear (b, bs)
          y = Gemm (d, v, bias)
        }""")
    x = np.zeros((1, 2), F)
    feeds = {"x": x, "label": np.array([[9, -9]], F)}
    session = og.TrainingSession(proto, "squared_error:reduction=sum", "sgd:lr=0.1")
    for _ in range(8):
        session.step(feeds)
        trained = session.trained_model()
        stock = run_stock(trained, {"x": x})[0]
        np.testing.assert_allclose(session.predict({"x": x})[0], stock, rtol=1e-6)
    steps = {one.name: onnx.numpy_helper.to_array(one) for one in trained.graph.initializer}["b"]
    assert steps.tolist() == [2**31 - 1, -(2**31)]
    np.testing.assert_allclose(stock, [[2.1474836, -2.1474836]], rtol=1e-6)
