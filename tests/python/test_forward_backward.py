"""ForwardBackward against other engines: values, graphs, gradients by finite differences."""

import copy
import os
import pickle
import threading

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import onnxgrad as og
from support import initializers, mlp_proto, run_python

CONV = """
<ir_version: 8, opset_import: ["" : 17]>
conv (double[N, 1, 6, 6] X) => (double[N, 3] Y)
<int64[2] flat = {0, -1}>
{
  h = Conv<pads = [1, 1, 1, 1]>(X, filter, filter_bias)
  r = Relu(h)
  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
  f = Reshape(p, flat)
  s = Gemm(f, dense, dense_bias)
  Y = Softmax(s)
}
"""

# Two outputs, one of them integers; a weight that is used twice; a broadcast; a symbolic shape.
MIXED = """
<ir_version: 8, opset_import: ["" : 17]>
mixed (double[N, T] A, double[T] B, int64[K] rows) => (double[K, T] Y, int64[N] best, double Z)
<double[1] factor = {1.5}, int64[0] none = {}>
{
  c = Mul(A, B)
  d = Mul(c, factor)
  t = Tanh(d)
  Y = Gather(t, rows)
  best = ArgMax<axis = 1, keepdims = 0>(d)
  e = Exp(c)
  e2 = Mul(e, factor)
  Z = ReduceMean<keepdims = 0>(e2)
}
"""


def with_weights(text, **weights):
    """The model of ONNX's text syntax, with more initializers, in their type."""
    if next(iter(weights.values())).dtype == np.float32:
        text = text.replace("double", "float")
    text = text.replace("<int64[2] flat", f"<{_declared(weights)}, int64[2] flat")
    model = onnx.parser.parse_model(text)
    for name, value in weights.items():
        kept = [tensor for tensor in model.graph.initializer if tensor.name != name]
        del model.graph.initializer[:]
        model.graph.initializer.extend([*kept, onnx.numpy_helper.from_array(value, name)])
    onnx.checker.check_model(model, full_check=True)
    return model


def _declared(weights):
    element = "float" if next(iter(weights.values())).dtype == np.float32 else "double"
    return ", ".join(
        f"{element}[{', '.join(map(str, value.shape))}] {name} = "
        f"{{{', '.join('0' for _ in range(value.size))}}}"
        for name, value in weights.items()
    )


def conv_case(dtype=np.float64):
    rng = np.random.default_rng(3)
    model = with_weights(
        CONV,
        filter=rng.normal(size=(2, 1, 3, 3)).astype(dtype),
        filter_bias=rng.normal(size=2).astype(dtype),
        dense=rng.normal(size=(18, 3)).astype(dtype),
        dense_bias=rng.normal(size=3).astype(dtype),
    )
    return model, {"X": rng.normal(size=(2, 1, 6, 6)).astype(dtype)}


def mixed_case():
    rng = np.random.default_rng(4)
    feeds = {
        "A": rng.normal(size=(4, 3)),
        "B": rng.normal(size=3),
        "rows": np.array([2, 0, 2, 3, 1], np.int64),
    }
    return onnx.parser.parse_model(MIXED), feeds


def mlp_case():
    X = np.random.default_rng(5).normal(size=(6, 4))
    return mlp_proto([4, 5, 3], dtype=np.float64, head="Softmax"), {"X": X}


CASES = {"conv": conv_case, "mixed": mixed_case, "mlp": mlp_case}


def stock(model):
    return onnxruntime.InferenceSession(model.SerializeToString())


def oracle(model):
    """Stock onnxruntime, or ONNX's reference evaluator for Conv, which that has not in float64."""
    if any(node.op_type == "Conv" for node in model.graph.node):
        return ReferenceEvaluator(model)
    return stock(model)


def output_gradients(outputs, seed=9):
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=y.shape).astype(y.dtype) if y.dtype.kind == "f" else None for y in outputs
    ]


def directional_difference(model, feeds, changed, directions, gradients):
    """d/dt sum <gradients, outputs> along `directions`, by another engine.

    `changed` holds the values that move: inputs, or weights, which are made inputs for that.
    """
    opened = copy.deepcopy(model)
    for name, value in changed.items():
        if name not in feeds:
            element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            opened.graph.input.append(
                onnx.helper.make_tensor_value_info(name, element, value.shape)
            )
    session = oracle(opened)

    def value_at(t):
        moved = {name: value + t * directions[name] for name, value in changed.items()}
        outputs = session.run(None, {**feeds, **moved})
        return sum(np.sum(g * y) for g, y in zip(gradients, outputs, strict=True) if g is not None)

    step = 1e-6
    return (value_at(step) - value_at(-step)) / (2 * step)


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_other_engines(case):
    model, feeds = CASES[case]()
    runner = og.ForwardBackward(model, weights="*" if case != "mixed" else "factor")
    expected = oracle(model).run(None, feeds)
    outputs = runner.forward(feeds)
    for mine, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)
    dy = output_gradients(outputs)
    found = runner.backward(dy)
    weights = initializers(model)
    changed = {name: weights[name] for name in found.weights}
    changed |= {name: feeds[name] for name in found.inputs}
    assert set(found.inputs) == {n for n, v in feeds.items() if v.dtype.kind == "f"}
    all_gradients = {**found.weights, **found.inputs}
    rng = np.random.default_rng(0)
    for name, value in changed.items():
        assert all_gradients[name].shape == value.shape
        assert all_gradients[name].dtype == value.dtype
        direction = {name: rng.normal(size=value.shape)}
        numeric = directional_difference(model, feeds, {name: value}, direction, dy)
        found_slope = np.sum(all_gradients[name] * direction[name])
        assert found_slope == pytest.approx(numeric, rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_every_graph_runs_in_onnxruntime(case, inline, tmp_path):
    model, feeds = CASES[case]() if case != "conv" else conv_case(np.float32)
    tolerance = {"rtol": 1e-10, "atol": 1e-13} if case != "conv" else {"rtol": 1e-4, "atol": 1e-5}
    runner = og.ForwardBackward(model)
    outputs = runner.forward(feeds)
    dy = output_gradients(outputs)
    found = runner.backward(dy)

    paths = runner.save(tmp_path, "part_", inline=inline)
    assert sorted(paths) == ["backward", "forward", "inference"]
    sessions = {name: onnxruntime.InferenceSession(path) for name, path in paths.items()}
    for path in paths.values():
        onnx.checker.check_model(onnx.load(path), full_check=True)
    all_feeds = {**feeds, **runner.weights}

    def run(name, values):
        session = sessions[name]
        wanted = {i.name: values[i.name] for i in session.get_inputs()}
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(None, wanted), strict=True))

    inferred = list(run("inference", all_feeds).values())
    forward = run("forward", all_feeds)
    for mine, theirs, again in zip(outputs, inferred, forward.values(), strict=False):
        np.testing.assert_allclose(mine, theirs, **tolerance)
        np.testing.assert_allclose(mine, again, **tolerance)
    names = [o.name for o in runner.get_outputs()]
    seeds = {f"{n}_grad": g for n, g in zip(names, dy, strict=True) if g is not None}
    backward = run("backward", {**all_feeds, **forward, **seeds})
    for name, value in {**found.weights, **found.inputs}.items():
        np.testing.assert_allclose(backward[f"{name}_grad"], value, **tolerance)


def test_outputs_stay_when_passes_follow():
    model, feeds = mlp_case()
    runner = og.ForwardBackward(model)
    first = runner.forward(feeds)
    before = first[0].copy()
    for factor in (2, 3, 4):
        runner.backward(np.ones_like(runner.forward({"X": factor * feeds["X"]})[0]))
    np.testing.assert_array_equal(first[0], before)
    late = runner.backward(np.ones_like(first[0]), context=first.context)
    fresh = runner.forward(feeds)
    again = runner.backward(np.ones_like(fresh[0]))
    for name in late.weights:
        np.testing.assert_array_equal(late.weights[name], again.weights[name])


def test_passes_of_several_shapes_are_open_at_once():
    model, _ = mlp_case()
    runner, single = og.ForwardBackward(model), og.ForwardBackward(model)
    rng = np.random.default_rng(1)
    batches = [rng.normal(size=(rows, 4)) for rows in (1, 7, 3)]
    for X in batches:
        runner.forward({"X": X})
    assert len(runner.contexts) == 3
    for X in reversed(batches):
        dy = np.arange(3.0 * len(X)).reshape(len(X), 3)
        found = runner.backward([dy])
        single.forward([X])
        alone = single.backward({"Y": dy})
        for name in found.weights:
            np.testing.assert_array_equal(found.weights[name], alone.weights[name])
    assert runner.contexts == []
    with pytest.raises(og.Error, match="no forward pass is open"):
        runner.backward([None])


def test_training_by_hand_follows_numpy(linear_proto, linear_data):
    X, y = linear_data
    runner = og.ForwardBackward(linear_proto, input_gradients=False)
    w = initializers(linear_proto)["coef"].astype(np.float64)
    b = initializers(linear_proto)["intercept"].astype(np.float64)
    for _ in range(20):
        (scores,) = runner.forward({"X": X})
        gradients = runner.backward(2 * (scores - y) / len(X)).weights
        runner.weights = {n: v - 0.1 * gradients[n] for n, v in runner.weights.items()}
        difference = X @ w + b - y
        w, b = w - 0.2 * X.T @ difference / len(X), b - 0.2 * difference.mean(axis=0)
    np.testing.assert_allclose(runner.weights["coef"], w, rtol=1e-4)
    np.testing.assert_allclose(runner.weights["intercept"], b, rtol=1e-4)
    trained = runner.trained_model()
    np.testing.assert_array_equal(initializers(trained)["coef"], runner.weights["coef"])
    expected = stock(trained).run(None, {"X": X})[0]
    np.testing.assert_allclose(runner.forward([X], training=False)[0], expected, rtol=1e-5)


def test_pickle_and_copy_keep_weights_and_options():
    model, feeds = mlp_case()
    runner = og.ForwardBackward(model, frozen="b*", input_gradients=False, threads=1)
    runner.weights = {"W0": runner.weights["W0"] + 0.5}
    runner.forward(feeds)
    for twin in (pickle.loads(pickle.dumps(runner)), copy.deepcopy(runner)):
        assert twin.weight_names == ["W0", "W1"]
        assert twin.contexts == []
        outputs = runner.forward(feeds)
        mine = runner.backward(np.ones_like(outputs[0]), context=outputs.context)
        theirs = twin.backward(np.ones_like(twin.forward(feeds)[0]))
        assert theirs.inputs == {}
        for name in mine.weights:
            np.testing.assert_array_equal(mine.weights[name], theirs.weights[name])


@pytest.mark.skipif(
    os.environ.get("ONNXGRAD_DEVICE", "cpu") != "cpu", reason="weights on a device are copied"
)
def test_views_are_views():
    model, feeds = mlp_case()
    runner = og.ForwardBackward(model)
    views = runner.weights
    for name, view in runner.weights.items():
        assert np.shares_memory(view, views[name])
        assert not view.flags.writeable
    outputs = runner.forward(feeds)
    saved = outputs.context.saved()
    assert np.shares_memory(saved["Y"], outputs[0])
    assert outputs.context.saved_bytes == sum(v.nbytes for n, v in saved.items() if n != "Y")
    runner.discard()
    assert outputs.context.saved_bytes == 0


def test_errors_say_what_is_wrong():
    model, feeds = mlp_case()
    runner = og.ForwardBackward(model)
    with pytest.raises(og.DataError, match="2 inputs were given, expected 1"):
        runner.forward([feeds["X"], feeds["X"]])
    with pytest.raises(og.DataError, match="no input 'x'"):
        runner.forward({"x": feeds["X"]})
    outputs = runner.forward(feeds)
    with pytest.raises(og.DataError, match="no output 'y'"):
        runner.backward({"y": outputs[0]})
    with pytest.raises(og.ShapeError, match=r"'Y' is float64\[1, 3\], expected float64\[6, 3\]"):
        runner.backward(outputs[0][:1])
    runner.backward(outputs[0])
    with pytest.raises(og.Error, match="has been done"):
        runner.backward(outputs[0], context=outputs.context)
    with pytest.raises(og.ModelError, match="nothing"):
        og.ForwardBackward(model, weights="nothing")


def test_threads_get_their_result_or_an_error():
    model, feeds = mlp_case()
    runner = og.ForwardBackward(model)
    expected = runner.forward(feeds)
    reference = runner.backward(np.ones_like(expected[0])).weights["W0"].copy()
    problems, busy = [], []

    def work():
        for _ in range(50):
            try:
                outputs = runner.forward(feeds)
            except og.Error as error:
                busy.append(str(error))
                continue
            while True:
                try:
                    found = runner.backward(np.ones_like(outputs[0]), context=outputs.context)
                    break
                except og.Error as error:
                    busy.append(str(error))
            if not np.array_equal(found.weights["W0"], reference):
                problems.append("another gradient")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert all("busy" in text for text in busy)
    assert runner.contexts == []


def test_memory_stays_the_same_over_many_passes(tmp_path):
    code = """
import resource, sys
import numpy as np
import onnxgrad as og
runner = og.ForwardBackward(sys.argv[1])
X = np.ones((2000, 4), np.float32)
def run(times):
    for _ in range(times):
        outputs = runner.forward([X])
        runner.backward(outputs)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = run(5)
after = run(300)
print(after - before)
"""
    path = tmp_path / "model.onnx"
    onnx.save(mlp_proto([4, 256, 2]), path)
    done = run_python(code, path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8 * 1024  # KiB; one pass saves 2 MB
