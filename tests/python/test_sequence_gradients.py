"""Gradients through sequences in loops, and through loops whose states change their shapes.

Each gradient file is run by ONNX's reference evaluator, by stock onnxruntime and here, and compared
with central differences of the model, computed by the reference evaluator in float64; so is the
gradient of the gradient file.
"""

import warnings
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime as ort
import pytest

import onnxgrad as og
from reference_loops import run_reference

ort.set_default_logger_severity(4)

# Appends to a sequence and reads what it appended before.
FIBONACCI = """
  list = SequenceConstruct (a, b)
  all = Loop <body = step (int64 i, bool c, seq(double[]) s) => (bool d, seq(double[]) t) {
    d = Identity (c)
    last = Constant <value_int = -1> ()
    before = Constant <value_int = -2> ()
    p = SequenceAt (s, last)
    q = SequenceAt (s, before)
    product = Mul (p, w)
    wave = Sin (q)
    next = Add (product, wave)
    t = SequenceInsert (s, next)
  }> (n, , list)
  y = ConcatFromSequence <axis = 0> (all)"""

# Replaces an element in each iteration; all elements are read from its own position on.
REPLACE = """
  list = SplitToSequence <axis = 0, keepdims = 0> (x)
  size = SequenceLength (list)
  all = Loop <body = step (int64 i, bool c, seq(double[]) s) => (bool d, seq(double[]) t) {
    d = Identity (c)
    one = Constant <value_int = 1> ()
    two = Constant <value_int = 2> ()
    half = Div (i, two)
    old = SequenceAt (s, half)
    first = SequenceAt (s, i)
    product = Mul (old, w)
    sum = Add (product, first)
    new = Tanh (sum)
    without = SequenceErase (s, half)
    t = SequenceInsert (without, new, half)
  }> (n, , list)
  y = ConcatFromSequence <axis = 1, new_axis = 1> (all)"""

# A stack: takes the last two elements and pushes one; elements of different sizes.
STACK = """
  list = SequenceConstruct (a, b, a, b)
  all = Loop <body = step (int64 i, bool c, seq(double[]) s) => (bool d, seq(double[]) t) {
    d = Identity (c)
    last = Constant <value_int = -1> ()
    p = SequenceAt (s, last)
    less = SequenceErase (s)
    q = SequenceAt (less, last)
    least = SequenceErase (less, last)
    joined = Concat <axis = 0> (p, q)
    scaled = Mul (joined, w)
    t = SequenceInsert (least, scaled)
  }> (n, , list)
  y = ConcatFromSequence <axis = 0> (all)"""

# The sequence is made anew from what the old one held: its structure is read backwards.
REMAKE = """
  list = SequenceConstruct (a, b)
  all = Loop <body = step (int64 i, bool c, seq(double[]) s) => (bool d, seq(double[]) t) {
    d = Identity (c)
    zero = Constant <value_int = 0> ()
    last = Constant <value_int = -1> ()
    p = SequenceAt (s, zero)
    q = SequenceAt (s, last)
    product = Mul (p, q)
    wave = Sin (q)
    t = SequenceConstruct (wave, p, product)
  }> (n, , list)
  y = ConcatFromSequence <axis = 0> (all)"""

# Elements that change their sizes, joined in each iteration.
JOINED = """
  list = SequenceConstruct (a)
  all, lengths = Loop <body = step (int64 i, bool c, seq(double[]) s)
      => (bool d, seq(double[]) t, double sum) {
    d = Identity (c)
    zero = Constant <value_int = 0> ()
    whole = ConcatFromSequence <axis = 0> (s)
    wave = Sin (whole)
    scaled = Mul (wave, w)
    sum = ReduceSum <keepdims = 0> (scaled)
    t = SequenceInsert (s, scaled, zero)
  }> (n, , list)
  flat = ConcatFromSequence <axis = 0> (all)
  total = ReduceSum <keepdims = 0> (lengths)
  y = Mul (flat, total)"""

# Reads a sequence of the outer graph at computed positions.
OUTER = """
  list = SplitToSequence <axis = 1> (x)
  last, rows = Loop <body = step (int64 i, bool c, double[2, 1] h)
      => (bool d, double[2, 1] next, double[2, 1] row) {
    d = Identity (c)
    minus = Neg (i)
    one = Constant <value_int = 1> ()
    place = Sub (minus, one)
    e = SequenceAt (list, place)
    product = Mul (e, h)
    next = Sin (product)
    row = Mul (next, e)
  }> (n, , x0)
  sum = ReduceSum <keepdims = 0> (rows)
  y = Mul (last, sum)"""

# Both loops append to sequences; the inner one reads what the outer one holds.
NESTED = """
  list = SequenceConstruct (a)
  all = Loop <body = step (int64 i, bool c, seq(double[]) s) => (bool d, seq(double[]) t) {
    d = Identity (c)
    one = Constant <value_int = 1> ()
    count = SequenceLength (s)
    none = SequenceEmpty <dtype = 11> ()
    parts = Loop <body = inner (int64 j, bool e, seq(double[]) u) => (bool f, seq(double[]) v) {
      f = Identity (e)
      o = SequenceAt (s, j)
      p = Mul (o, w)
      q = Sin (p)
      v = SequenceInsert (u, q)
    }> (count, , none)
    whole = ConcatFromSequence <axis = 0> (parts)
    t = SequenceInsert (s, whole)
  }> (n, , list)
  y = ConcatFromSequence <axis = 0> (all)"""

# The branch depends on the number of the iteration; both read or change the sequence.
BRANCHES = """
  list = SequenceConstruct (a, b)
  all = Loop <body = step (int64 i, bool c, seq(double[]) s) => (bool d, seq(double[]) t) {
    d = Identity (c)
    two = Constant <value_int = 2> ()
    last = Constant <value_int = -1> ()
    rest = Mod (i, two)
    odd = Cast <to = 9> (rest)
    e = SequenceAt (s, last)
    t = If (odd) <
      then_branch = then () => (seq(double[]) m) {
        p = Mul (e, w)
        m = SequenceInsert (s, p)
      },
      else_branch = other () => (seq(double[]) o) {
        zero = Constant <value_int = 0> ()
        q = Sin (e)
        longer = SequenceInsert (s, q, zero)
        f = SequenceAt (longer, last)
        g = Mul (f, f)
        o = SequenceInsert (longer, g)
      }>
  }> (n, , list)
  y = ConcatFromSequence <axis = 0> (all)"""

# Elements of a sequence of unknown length, one by one.
MAPPED = """
  list = SequenceConstruct (a, b)
  all = Loop <body = step (int64 i, bool c, seq(double[]) s) => (bool d, seq(double[]) t) {
    d = Identity (c)
    zero = Constant <value_int = 0> ()
    first = SequenceAt (s, zero)
    waves = SequenceMap <body = wave (double[k] e, double[m] v) => (double[m] r) {
      p = Mul (v, v)
      q = Mul (e, p)
      r = Sin (q)
    }> (s, w)
    t = SequenceInsert (waves, first)
  }> (n, , list)
  y = ConcatFromSequence <axis = 0> (all)"""

# A state that grows by a row in each iteration.
GROWING = """
  y = Loop <body = step (int64 i, bool c, double[r, k] rows) => (bool d, double[m, k] more) {
    d = Identity (c)
    axis = Constant <value_ints = [0]> ()
    product = MatMul (rows, w)
    wave = Sin (product)
    sum = ReduceSum <keepdims = 1> (wave, axis)
    scaled = Mul (rows, sum)
    more = Concat <axis = 0> (scaled, sum)
  }> (n, , x)"""

# A state that doubles until it is long enough: the condition ends it.
DOUBLING = """
  true = Constant <value_int = 1> ()
  yes = Cast <to = 9> (true)
  y, sums = Loop <body = step (int64 i, bool c, double[p] v)
      => (bool d, double[q] more, double sum) {
    wave = Sin (v)
    scaled = Mul (v, b)
    more = Concat <axis = 0> (wave, scaled)
    size = Size (more)
    d = Less (size, n)
    sum = ReduceSum <keepdims = 0> (more)
  }> (, yes, a)"""

# A state that loses rows, and one that gains them, in a loop in a loop.
SHRINKING = """
  left, taken = Loop <body = step (int64 i, bool c, double[p] v, double[q] u)
      => (bool d, double[r] rest, double[s] more) {
    d = Identity (c)
    one = Constant <value_ints = [1]> ()
    size = Shape (v)
    others = Sub (size, one)
    sizes = Concat <axis = 0> (one, others)
    head, tail = Split <axis = 0> (v, sizes)
    rest, last = Loop <body = inner (int64 j, bool e, double[k] o, double[1] h)
        => (bool f, double[l] z, double[1] g) {
      f = Identity (e)
      product = Mul (o, h)
      z = Sin (product)
      g = Mul (h, w)
    }> (i, , tail, head)
    more = Concat <axis = 0> (u, last)
  }> (n, , x, a)
  y = Concat <axis = 0> (left, taken)"""

# A state of another shape that a branch makes, and an unknown number of rows in the body.
CHOSEN = """
  y = Loop <body = step (int64 i, bool c, double[r] v) => (bool d, double[m] more) {
    d = Identity (c)
    zero = CastLike (i, v)
    none = Sub (zero, zero)
    positive = Greater (v, none)
    chosen = Compress <axis = 0> (v, positive)
    square = Mul (chosen, b)
    odd = Sin (v)
    more = Concat <axis = 0> (odd, square)
  }> (n, , a)"""

# SequenceErase ends each iteration.
ERASED = """
  list = SequenceConstruct (a, b, a, b)
  all = Loop <body = step (int64 i, bool c, seq(double[]) s) => (bool d, seq(double[]) t) {
    d = Identity (c)
    zero = Constant <value_int = 0> ()
    first = SequenceAt (s, zero)
    product = Mul (first, w)
    longer = SequenceInsert (s, product)
    t = SequenceErase (longer, zero)
  }> (n, , list)
  y = ConcatFromSequence <axis = 0> (all)"""

# A Scan whose body reads a sequence of the outer graph.
SCANNED = """
  list = SplitToSequence <axis = 0, keepdims = 0> (x)
  last, rows = Scan <num_scan_inputs = 2, scan_input_directions = [1, 0], body = step
      (double[2] h, double[2] r, int64 i) => (double[2] next, double[2] out) {
    e = SequenceAt (list, i)
    product = Mul (e, h)
    sum = Add (product, r)
    next = Sin (sum)
    out = Mul (next, w)
  }> (x0, x, numbers)
  flat = ReduceSum <keepdims = 0> (rows)
  y = Mul (last, flat)"""

PAIR = {"a": [2], "b": [2], "w": [2]}
CASES: dict[str, tuple[str, dict[str, list[int]], dict[str, Any]]] = {
    "fibonacci": (FIBONACCI, PAIR, {"n": 4}),
    "fibonacci_no_iterations": (FIBONACCI, PAIR, {"n": 0}),
    "replace": (REPLACE, {"x": [4, 3], "w": [3]}, {"n": 4}),
    "replace_once": (REPLACE, {"x": [2, 3], "w": [3]}, {"n": 1}),
    "stack": (STACK, {"a": [2], "b": [1], "w": [1]}, {"n": 3}),
    "remake": (REMAKE, {"a": [2], "b": [2]}, {"n": 3}),
    "joined": (JOINED, {"a": [2], "w": [1]}, {"n": 3}),
    "outer": (OUTER, {"x": [2, 3], "x0": [2, 1]}, {"n": 3}),
    "nested": (NESTED, {"a": [2], "w": [1]}, {"n": 3}),
    "branches": (BRANCHES, PAIR, {"n": 4}),
    "mapped": (MAPPED, PAIR, {"n": 2}),
    "growing": (GROWING, {"x": [1, 2], "w": [2, 2]}, {"n": 3}),
    "growing_no_iterations": (GROWING, {"x": [1, 2], "w": [2, 2]}, {"n": 0}),
    "growing_from_nothing": (GROWING, {"x": [0, 2], "w": [2, 2]}, {"n": 2}),
    "doubling": (DOUBLING, {"a": [1], "b": [1]}, {"n": 9}),
    "shrinking": (SHRINKING, {"x": [4], "a": [1], "w": [1]}, {"n": 3}),
    "chosen": (CHOSEN, {"a": [4], "b": [1]}, {"n": 3}),
    "erased": (ERASED, PAIR, {"n": 3}),
    "scanned": (SCANNED, {"x": [3, 2], "x0": [2], "w": [2]}, {"numbers": [1, 2, 2]}),
}


def case(name: str, *, symbolic: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model and its inputs."""
    statements, shapes, numbers = CASES[name]
    rng = np.random.default_rng(3)
    feeds: dict[str, np.ndarray] = {k: rng.uniform(-1.5, 1.5, s) for k, s in shapes.items()}
    feeds |= {k: np.array(v) for k, v in numbers.items()}
    declared = []
    for key, value in feeds.items():
        kind = "double" if key in shapes else "int64"
        sizes = [f"{key}{i}" if symbolic else str(d) for i, d in enumerate(value.shape)]
        declared.append(f"{kind}[{', '.join(sizes)}] {key}" if value.ndim else f"{kind} {key}")
    text = f'<ir_version: 10, opset_import: ["": 26]> m ({", ".join(declared)}) => (double[..] y)'
    text = text.replace("double[..] y", "double y")
    model = onnx.parser.parse_model(text + " {" + statements + "\n}")
    shape = onnx.TensorShapeProto()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for _ in range(run_reference(model, feeds)[0].ndim):
        shape.dim.add()
    model.graph.output[0].type.tensor_type.shape.CopyFrom(shape)
    return model, feeds


def runners(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Return the outputs of everything that runs the file."""
    names = {i.name for i in model.graph.input}
    given = {k: v for k, v in feeds.items() if k in names}
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    stock = ort.InferenceSession(model.SerializeToString(), options)
    return {
        "reference": run_reference(model, feeds),
        "onnxruntime": stock.run(None, given),
        "here": og.InferenceSession(model).run(None, given),
    }


def differences(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], seed: np.ndarray, output: int, wrt: str
) -> np.ndarray:
    """Return the gradient of sum(seed * output), by central differences."""
    step = 1e-5
    slope = np.zeros_like(feeds[wrt])
    for index in np.ndindex(slope.shape):
        sides = []
        for sign in (1, -1):
            moved = {**feeds, wrt: feeds[wrt].copy()}
            moved[wrt][index] += sign * step
            sides.append(float(np.sum(run_reference(model, moved)[output] * seed)))
        slope[index] = (sides[0] - sides[1]) / (2 * step)
    return slope


def floats(feeds: dict[str, np.ndarray]) -> list[str]:
    return [name for name, value in feeds.items() if value.dtype == np.float64]


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, symbolic: bool) -> None:
    model, feeds = case(name, symbolic=symbolic)
    value = run_reference(model, feeds)[0]
    seed = np.random.default_rng(5).uniform(-1, 1, value.shape)
    wrt = floats(feeds)
    gradient = og.gradient(model, wrt, ["y"])
    onnx.checker.check_model(gradient)
    expected = [differences(model, feeds, seed, 0, w) for w in wrt]
    for who, results in runners(gradient, {**feeds, "y_grad": seed}).items():
        for w, ours, theirs in zip(wrt, results, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7, err_msg=f"{who} {w}")


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients(name: str) -> None:
    model, feeds = case(name)
    value = run_reference(model, feeds)[0]
    wrt = floats(feeds)
    first = og.gradient(model, wrt, ["y"])
    feeds = {**feeds, "y_grad": np.random.default_rng(5).uniform(-1, 1, value.shape)}
    seed = np.random.default_rng(6).uniform(-1, 1, feeds[wrt[0]].shape)
    output = first.graph.output[0].name
    with warnings.catch_warnings():  # warnings about zero gradients
        warnings.simplefilter("ignore", UserWarning)
        second = og.gradient(first, wrt, [output])
    expected = [differences(first, feeds, seed, 0, w) for w in wrt]
    for who, results in runners(second, {**feeds, f"{output}_grad": seed}).items():
        for w, ours, theirs in zip(wrt, results, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=f"{who} {w}")


@pytest.mark.parametrize("name", ["fibonacci", "replace", "branches", "growing", "shrinking"])
def test_training(name: str) -> None:
    """Steps of gradient descent are those of the gradient file."""
    model, feeds = case(name)
    wrt = floats(feeds)[-1]
    gradient = og.gradient(model, [wrt], ["y"])
    rows = [value for value in model.graph.input if value.name != wrt]
    del model.graph.input[:]
    model.graph.input.extend(rows)
    model.graph.initializer.append(onnx.numpy_helper.from_array(feeds[wrt], wrt))
    target = np.zeros_like(run_reference(model, feeds)[0])
    session = og.TrainingSession(
        model, "squared_error", og.optimizers.SGD(lr=0.05), trainable=wrt, threads=2
    )
    fed = {key: value for key, value in feeds.items() if key != wrt}
    for _ in range(3):
        (y,) = run_reference(model, feeds)
        loss = session.step({**fed, "label": target})
        assert loss == pytest.approx(np.mean(y**2), rel=1e-9)
        (slope,) = run_reference(gradient, {**feeds, "y_grad": 2 * y / y.size})
        feeds[wrt] = feeds[wrt] - 0.05 * slope
        model.graph.initializer[-1].CopyFrom(onnx.numpy_helper.from_array(feeds[wrt], wrt))
        np.testing.assert_allclose(session.state()[wrt], feeds[wrt], rtol=1e-9, atol=1e-12)
