"""Models with Loop, Scan and sequences: trained here and in stock onnxruntime, step by step."""

import time

import numpy as np
import onnx.helper
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxgrad as og

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'

# A scripted decoder: each iteration makes the next state and emits it; the caller says how many.
DECODER = """
main (double[N, 3] x, int64 count) => (double[N, T, 2] scores)
<double[3, 3] w = {0.3, -0.2, 0.5, 0.1, 0.4, -0.6, -0.3, 0.2, 0.1}, double[3] b = {0.1, 0.0, -0.2},
 double[3, 2] head = {0.5, -0.4, 0.3, 0.2, -0.1, 0.6}> {
  none = SequenceEmpty <dtype = 11> ()
  last, states = Loop <body = step (int64 i, bool c, double[N, 3] h, seq(double[]) list)
      => (bool c1, double[N, 3] next, seq(double[]) longer) {
    c1 = Identity (c)
    product = MatMul (h, w)
    shifted = Add (product, b)
    next = Tanh (shifted)
    longer = SequenceInsert (list, next)
  }> (count, , x, none)
  stacked = ConcatFromSequence <axis = 1, new_axis = 1> (states)
  scores = MatMul (stacked, head)
}"""

# Ends when the state is small; how often it runs depends on the weights.
WHILE = """
main (double[N, 2] x) => (double[N, 2] scores)
<double[2, 2] w = {0.6, -0.2, 0.3, 0.7}, int64 most = {12}, double limit = {0.5}> {
  scores = Loop <body = step (int64 i, bool c, double[N, 2] h) => (bool c1, double[N, 2] next) {
    next = MatMul (h, w)
    squares = Mul (next, next)
    size = ReduceSum <keepdims = 0> (squares)
    c1 = Greater (size, limit)
  }> (most, , x)
}"""

# A recurrent layer over the second axis, and one from the other end.
RECURRENT = """
main (double[N, T, 2] x) => (double[N, 1] scores)
<double[2, 3] w = {0.3, -0.2, 0.5, 0.1, 0.4, -0.6},
 double[3, 3] u = {0.2, -0.1, 0.4, 0.3, 0.1, -0.5, 0.0, 0.2, 0.6},
 double[3, 1] head = {0.5, -0.4, 0.3}, double zero = {0.0}, int64[1] axis = {1}> {
  batch = Shape <start = 0, end = 1> (x)
  three = Constant <value_ints = [3]> ()
  sizes = Concat <axis = 0> (batch, three)
  h0 = Expand (zero, sizes)
  last, back, all = Scan <num_scan_inputs = 2, scan_input_axes = [1, 1],
      scan_input_directions = [0, 1], scan_output_axes = [1],
      body = step (double[N, 3] h, double[N, 3] g, double[N, 2] a, double[N, 2] z)
          => (double[N, 3] h1, double[N, 3] g1, double[N, 3] y) {
    from_a = MatMul (a, w)
    from_h = MatMul (h, u)
    sum = Add (from_a, from_h)
    h1 = Tanh (sum)
    from_z = MatMul (z, w)
    from_g = MatMul (g, u)
    other = Add (from_z, from_g)
    g1 = Sigmoid (other)
    y = Mul (h1, g1)
  }> (h0, h0, x, x)
  mean = ReduceMean <keepdims = 0> (all, axis)
  both = Add (last, back)
  features = Add (mean, both)
  scores = MatMul (features, head)
}"""

MODELS = {"decoder": DECODER, "while": WHILE, "recurrent": RECURRENT}
WEIGHTS = {"decoder": ["w", "b", "head"], "while": ["w"], "recurrent": ["w", "u", "head"]}


def load(name):
    return onnx.parser.parse_model(HEADER + MODELS[name])


def batches(name):
    """Six batches; the decoder's have different lengths."""
    rng = np.random.default_rng(3)
    for count in (3, 3, 1, 4, 3, 2):
        if name == "decoder":
            yield {
                "x": rng.normal(size=(5, 3)),
                "count": np.array(count),
                "label": rng.normal(size=(5, count, 2)),
            }
        elif name == "while":
            yield {"x": rng.normal(size=(4, 2)), "label": rng.normal(size=(4, 2))}
        else:
            yield {"x": rng.normal(size=(4, 2 + count, 2)), "label": rng.normal(size=(4, 1))}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "rmsprop"])
@pytest.mark.parametrize("name", MODELS)
def test_steps_equal_those_of_stock_onnxruntime(name, optimizer, accumulate):
    model, described = load(name), og.optimizers.from_name(optimizer)
    options = {"trainable": WEIGHTS[name], "accumulate": accumulate}
    loss = og.losses.SquaredError()
    session = og.TrainingSession(model, loss, described, **options)
    file = og.training_step(model, loss, described, inline=True, **options)
    stock = onnxruntime.InferenceSession(file.SerializeToString())
    names = [value.name for value in stock.get_outputs()]
    state = dict(session.state().items())
    before = {weight: state[weight] for weight in WEIGHTS[name]}
    for feeds in batches(name):
        rate = {"learning_rate": np.array(described.lr)}
        found = dict(zip(names, stock.run(None, {**feeds, **rate, **state}), strict=True))
        np.testing.assert_allclose(session.step(feeds), found["loss"], rtol=1e-11)
        state = {key: found[f"next/{key}"] for key in state}
        for key, value in session.state().items():
            np.testing.assert_allclose(value, state[key], rtol=1e-9, atol=1e-12, err_msg=key)
    for weight, value in before.items():
        assert np.abs(value - state[weight]).min() > 0, f"{weight} is not trained"


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("name", ["while", "recurrent"])
def test_a_fit_is_these_steps(name, optimizer, accumulate):
    rng = np.random.default_rng(8)
    x = rng.normal(size=(12, 2) if name == "while" else (12, 5, 2))
    y = rng.normal(size=(12, 2) if name == "while" else (12, 1))
    options = {"trainable": WEIGHTS[name], "accumulate": accumulate}
    trainer = og.Trainer(load(name), og.losses.SquaredError(), optimizer, **options)
    trainer.fit(x, y, epochs=3, batch_size=4, shuffle=False)
    session = og.TrainingSession(load(name), og.losses.SquaredError(), optimizer, **options)
    losses = [
        session.step({"x": x[start : start + 4], "label": y[start : start + 4]})
        for _ in range(3)
        for start in (0, 4, 8)
    ]
    np.testing.assert_allclose(trainer.history["train_loss"][-1], np.mean(losses[-3:]), rtol=1e-12)
    weights = {w.name: numpy_helper.to_array(w) for w in trainer.trained_model().graph.initializer}
    for weight in WEIGHTS[name]:
        np.testing.assert_array_equal(weights[weight], session.state()[weight])
    trained = og.InferenceSession(trainer.trained_model()).run(None, {"x": x})[0]
    file = trainer.trained_model().SerializeToString()
    stock = onnxruntime.InferenceSession(file).run(None, {"x": x})[0]
    np.testing.assert_allclose(trained, stock, rtol=1e-11)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_gradients(name):
    """By differences of the gradient, all of them in stock onnxruntime too."""
    feeds = next(iter(batches(name)))
    del feeds["label"]
    first = og.gradient(load(name), "x", "scores", fill_grad=True, inline=True)
    second = og.gradient(first, "x", "x_grad", fill_grad=True, inline=True)
    run_first = onnxruntime.InferenceSession(first.SerializeToString()).run
    x = feeds["x"]
    expected = np.empty_like(x)
    for place in np.ndindex(*x.shape):
        sums = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * 1e-5
            sums.append(run_first(None, {**feeds, "x": moved})[0].sum())
        expected[place] = (sums[0] - sums[1]) / 2e-5
    stock = onnxruntime.InferenceSession(second.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(stock, expected, rtol=1e-6, atol=1e-8)
    ours = og.InferenceSession(second).run(None, feeds)[0]
    np.testing.assert_allclose(ours, stock, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lengths", [None, [3, 1, 2, 1]])
def test_scan_of_opset_8(lengths):
    """It has a batch axis of its own; rows behind the length of an example are zero."""
    first = "lengths" if lengths is not None else ""
    model = onnx.parser.parse_model(
        f"""<ir_version: 3, opset_import: ["" : 8]>
        main ({"int64[4] lengths, " if first else ""}float[4, 2] h0, float[4, 3, 2] xs,
              float[4, 3, 2] zs) => (float[4, 2] last, float[4, 3, 2] ys) {{
          last, ys = Scan <num_scan_inputs = 2, directions = [0, 1],
              body = step (float[2] h, float[2] x, float[2] z) => (float[2] next, float[2] y) {{
            product = Mul (h, x)
            next = Add (product, z)
            y = Neg (next)
          }}> ({first}, h0, xs, zs)
        }}"""
    )
    rng = np.random.default_rng(0)
    shapes = {"h0": (4, 2), "xs": (4, 3, 2), "zs": (4, 3, 2)}
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    if lengths is not None:
        feeds["lengths"] = np.array(lengths)
    stock = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for ours, theirs in zip(og.InferenceSession(model).run(None, feeds), stock, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    gradient = og.gradient(model, ["h0", "xs", "zs"], "last", fill_grad=True)
    expected = np.ones((4, 2), np.float32)
    for b, length in enumerate(lengths or [3] * 4):
        expected[b] = np.prod(feeds["xs"][b, :length], axis=0)
    found = og.InferenceSession(gradient).run(["h0_grad"], feeds)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_sequences_that_are_known_when_the_model_runs():
    """As inputs and outputs, in a loop, with positions that are computed."""
    sequence = onnx.helper.make_tensor_sequence_value_info("list", onnx.TensorProto.FLOAT, None)
    out = onnx.helper.make_tensor_sequence_value_info("out", onnx.TensorProto.FLOAT, None)
    model = onnx.parser.parse_model(
        HEADER
        + """main (float[N] extra, int64 place) => (float[M] joined, int64 size) {
          longer = SequenceInsert (list, extra, place)
          size = SequenceLength (longer)
          out = Loop <body = twofold (int64 i, bool c, seq(float[]) s)
              => (bool c1, seq(float[]) s1) {
            c1 = Identity (c)
            element = SequenceAt (s, i)
            twice = Add (element, element)
            shorter = SequenceErase (s, i)
            s1 = SequenceInsert (shorter, twice, i)
          }> (size, , longer)
          joined = ConcatFromSequence <axis = 0> (out)
        }"""
    )
    model.graph.input.append(sequence)
    model.graph.output.append(out)
    given = [np.arange(n, dtype=np.float32) for n in (3, 1, 2)]
    extra = np.array([7, 8], np.float32)
    session = og.InferenceSession(model)
    for place in (0, 1, 3, -1):
        feeds = {"list": given, "extra": extra, "place": np.array(place)}
        joined, size, out = session.run(None, feeds)
        expected = list(given)
        expected.insert(place, extra)
        assert size == 4
        assert [array.tolist() for array in out] == [(2 * array).tolist() for array in expected]
        np.testing.assert_array_equal(joined, 2 * np.concatenate(expected))
    with pytest.raises(og.DataError, match="position 9 in a sequence of 3"):
        session.run(None, {"list": given, "extra": extra, "place": np.array(9)})


def test_an_iteration_costs_less_than_a_microsecond():
    """A body of two kernels, one of which is the fused element-wise one."""
    model = onnx.parser.parse_model(
        HEADER
        + """main (float[4] x, int64 count) => (float[4] y) <float[4, 4] w = {
          1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, float half = {0.5}> {
          y = Loop <body = step (int64 i, bool c, float[4] h) => (bool c1, float[4] next) {
            c1 = Identity (c)
            product = MatMul (h, w)
            next = Mul (product, half)
          }> (count, , x)
        }"""
    )
    session = og.InferenceSession(model, threads=1, device="cpu")
    feeds = {"x": np.ones(4, np.float32)}

    def fastest(count):
        """The machine may be busy: the least of many short runs."""
        times = []
        for _ in range(50):
            start = time.perf_counter()
            session.run(None, {**feeds, "count": np.array(count)})
            times.append(time.perf_counter() - start)
        return min(times)

    per_iteration = (fastest(5000) - fastest(0)) / 5000
    assert per_iteration < 1e-6, f"{per_iteration * 1e9:.0f} ns"
