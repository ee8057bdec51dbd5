"""A step that raises leaves everything as it was, and the next one is what it would have been."""

import numpy as np
import onnx.parser
import pytest

import onnxgrad as og

# A step fails at the first Gather, or at the last one: then running statistics, draws and counters
# have come before it.
WORDS = """
<ir_version: 10, opset_import: ["" : 21]>
words (int64[N, 2] ids, int64[N] late) => (float[N, 2] y)
<float[6, 3] table = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, -1, 0.5,
   0.3, 0.2, 0.1, 0.9, 0.5, -0.3},
 float[4, 2] positions = {0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}, int64[1] axis = {1},
 float[3] scale = {1, 2, 0.5}, float[3] shift = {0, 0.1, -0.2}, float[3] mean = {0.5, 0, 0},
 float[3] variance = {1, 2, 1}, float ratio = {0.25},
 float[3, 2] w = {1, 0, 0, 1, 1, 1}, float[2] b = {0.1, 0.2}>
{
  e = Gather(table, ids)
  m = ReduceMean<keepdims = 0>(e, axis)
  n = BatchNormalization<momentum = 0.75>(m, scale, shift, mean, variance)
  d = Dropout(n, ratio)
  g = Gemm(d, w, b)
  p = Gather(positions, late)
  y = Add(g, p)
}
"""

# How many rows there are in `c` is known only when the step runs.
DYNAMIC = """
<ir_version: 10, opset_import: ["" : 21]>
dynamic (int64[N] ids, int64[N] late) => (float[N, 2] y)
<float[6, 2] table = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, -1, 0.5},
 float[4, 2] positions = {0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}, int64 two = {2},
 float[2, 2] w = {1, 0, 0, 1}, float share = {0.1}>
{
  e = Gather(table, ids)
  few = Less(ids, two)
  c = Compress<axis = 0>(e, few)
  s = ReduceSum<keepdims = 0>(c)
  a = Mul(s, share)
  h = MatMul(e, w)
  z = Add(h, a)
  p = Gather(positions, late)
  y = Add(z, p)
}
"""


def batch(model, ids=2, late=1):
    rows = np.array([[0, 1], [3, 4], [2, 5], [1, ids]])
    return {
        "ids": rows if model is WORDS else rows[:, 1].copy(),
        "late": np.array([0, 1, 2, late]),
        "label": np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2),
    }


def session_of(model, optimizer, **options):
    # The last gradients are those of the first Gather: the fault comes before them.
    return og.TrainingSession(
        onnx.parser.parse_model(model), "squared_error", optimizer, threads=1, seed=3, **options
    )


def state(session):
    return {name: np.array(value) for name, value in session.state().items()}


def compare(a, b):
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)


CASES = [
    *[(WORDS, name, {}) for name in og.optimizers.names()],
    *[(WORDS, name, {"accumulate": 3}) for name in ("sgd", "adam", "lamb")],
    *[(WORDS, "adam", {"precision": kind}) for kind in ("bf16", "fp16")],
    (WORDS, "adam", {"clip_norm": 0.5, "skip_non_finite": True}),
    *[(DYNAMIC, name, {}) for name in ("sgd", "adam", "lbfgs")],
]


@pytest.mark.parametrize(("model", "optimizer", "options"), CASES)
def test_a_step_that_raises_changes_nothing(model, optimizer, options):
    tried, undisturbed = (session_of(model, optimizer, **options) for _ in range(2))
    for session in (tried, undisturbed):
        session.step(batch(model))
    before = state(tried)
    for wrong in ({"ids": 99}, {"late": 99}, {"late": -9}):
        with pytest.raises(og.DataError, match="out of range"):
            tried.step(batch(model, **wrong))
        compare(state(tried), before)
        assert tried.steps == 1
    for _ in range(4):  # an accumulated update, and one more step
        assert tried.step(batch(model)) == undisturbed.step(batch(model))
    compare(state(tried), state(undisturbed))


def test_lbfgs_fails_within_its_line_search():
    """Where weights have grown until the index that follows from them is out of range."""
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    indexed (float[N, 2] x) => (float[N, 1] y)
    <float[2, 1] w = {0.2, 0.1}, float[3, 1] table = {0, 0.1, 0.2}>
    {
      z = MatMul(x, w)
      s = ReduceSum<keepdims = 0>(w)
      i = Cast<to = 7>(s)
      g = Gather(table, i)
      y = Add(z, g)
    }
    """
    tried, undisturbed = (
        og.TrainingSession(
            onnx.parser.parse_model(text),
            "squared_error",
            og.optimizers.LBFGS(history=2, max_iterations=4),
            threads=1,
        )
        for _ in range(2)
    )
    x = np.array([[1, 0.5], [0.2, 2], [-1, 1], [0.3, 0.1]], np.float32)

    def feeds(target):
        return {"x": x, "label": np.linspace(0, target, 4, dtype=np.float32)[:, None]}

    for session in (tried, undisturbed):
        for target in (0.5, 0.6, 0.7):
            session.step(feeds(target))
    before = state(tried)
    assert np.any(before["lbfgs/weight_changes"])
    with pytest.raises(og.DataError, match="out of range"):
        tried.step(feeds(100.0))
    compare(state(tried), before)
    for session in (tried, undisturbed):
        session.step(feeds(0.8))
    compare(state(tried), state(undisturbed))


def test_a_fit_that_raises_has_whole_steps_only():
    """The rows before the wrong one count, and no part of its step."""
    feeds = [batch(WORDS) for _ in range(3)]
    wrong = batch(WORDS, late=99)
    tried, undisturbed = (
        og.Trainer(onnx.parser.parse_model(WORDS), "squared_error", "adam", threads=1, seed=3)
        for _ in range(2)
    )

    def rows(parts):
        X = {name: np.concatenate([part[name] for part in parts]) for name in ("ids", "late")}
        return X, np.concatenate([part["label"] for part in parts])

    options = {"epochs": 1, "batch_size": 4, "shuffle": False, "verbose": 0}
    with pytest.raises(og.DataError, match="out of range"):
        tried.fit(*rows([*feeds, wrong]), **options)
    undisturbed.fit(*rows(feeds), **options)
    assert tried.session.steps == undisturbed.session.steps == 3
    compare(state(tried.session), state(undisturbed.session))
