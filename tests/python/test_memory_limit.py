"""`memory_limit`: steps that compute values again have the same bits and take less memory."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

BATCH = 16


class Builder:
    """Nodes and weights of a model."""

    def __init__(self):
        self.nodes, self.weights = [], []
        self.rng = np.random.default_rng(0)

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names[0]

    def weight(self, *shape, scale=0.1, value=None):
        name = f"w{len(self.weights)}"
        numbers = (
            self.rng.standard_normal(shape) * scale if value is None else np.full(shape, value)
        )
        self.weights.append(numpy_helper.from_array(numbers.astype(np.float32), name))
        return name

    def constant(self, array):
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self, x, y):
        result = helper.make_tensor_value_info(y, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", [x], [result], self.weights)
        opset = helper.make_opsetid("", 21)
        return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def convolutions() -> onnx.ModelProto:
    """Convolutions with BatchNormalization, Dropout and shortcuts."""
    g = Builder()
    y = g.op("Conv", "x", g.weight(16, 3, 3, 3), kernel_shape=[3, 3], pads=[1] * 4)
    for _ in range(4):
        parameters = [g.weight(16, value=1), g.weight(16, value=0)]
        parameters += [g.weight(16, value=0), g.weight(16, value=1)]
        inner = g.op("Relu", g.op("BatchNormalization", y, *parameters))
        inner = g.op("Conv", inner, g.weight(16, 16, 3, 3), kernel_shape=[3, 3], pads=[1] * 4)
        y = g.op("Add", y, g.op("Dropout", inner, g.constant(np.float32(0.3))))
    y = g.op("Flatten", g.op("GlobalAveragePool", y))
    y = g.op("Gemm", y, g.weight(16, 5), g.weight(5, value=0))
    return g.model(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 12, 12]), y)


def attention() -> onnx.ModelProto:
    """A transformer with two heads of 8."""
    g = Builder()
    split, merge = g.constant(np.array([0, 0, 2, 8])), g.constant(np.array([0, 0, 16]))
    scale = g.constant(np.float32(8**-0.5))
    y = g.op("MatMul", "x", g.weight(8, 16))

    def heads(y, perm):
        return g.op(
            "Transpose", g.op("Reshape", g.op("MatMul", y, g.weight(16, 16)), split), perm=perm
        )

    for _ in range(3):
        normal = g.op("LayerNormalization", y, g.weight(16, value=1), g.weight(16, value=0))
        scores = g.op("MatMul", heads(normal, [0, 2, 1, 3]), heads(normal, [0, 2, 3, 1]))
        mixed = g.op(
            "MatMul", g.op("Softmax", g.op("Mul", scores, scale)), heads(normal, [0, 2, 1, 3])
        )
        mixed = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), merge)
        y = g.op("Add", y, g.op("MatMul", mixed, g.weight(16, 16)))
        inner = g.op("Gelu", g.op("MatMul", y, g.weight(16, 64)))
        y = g.op("Add", y, g.op("MatMul", g.op("Dropout", inner), g.weight(64, 16)))
    y = g.op("ReduceMean", y, g.constant(np.array([1])), keepdims=0)
    y = g.op("MatMul", y, g.weight(16, 5))
    return g.model(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 24, 8]), y)


def branches() -> onnx.ModelProto:
    """Layers before, in and after an If and a Loop."""
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 20] x) => (float[N, 5] y)
    <int64 three = {3}, bool yes = {1}>
    {
      p = MatMul(x, a)  q = Sigmoid(p)  r = Tanh(q)
      total = ReduceSum<keepdims=0>(r)
      zero = Constant<value = float {0.0}>()
      is_positive = Greater(total, zero)
      s = If(is_positive) <
        then_branch = t () => (float[N, 64] u) { m = MatMul(r, b)  u = Tanh(m) },
        else_branch = e () => (float[N, 64] v) { n = MatMul(r, d)  v = Sigmoid(n) }>
      w = Loop(three, yes, s) <
        body = body (int64 i, bool go, float[N, 64] h) => (bool go_on, float[N, 64] k) {
        go_on = Identity(go)  l = MatMul(h, b)  k = Tanh(l) }>
      o = Sigmoid(w)  y = MatMul(o, c)
    }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in {"a": (20, 64), "b": (64, 64), "d": (64, 64), "c": (64, 5)}.items():
        numbers = (0.2 * rng.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(numbers, name))
    return model


SHAPES = {convolutions: (3, 12, 12), attention: (24, 8), branches: (20,)}


def trained(make, limit=None, steps=3, **options):
    """The session after some steps, and its losses."""
    rng = np.random.default_rng(1)
    session = og.TrainingSession(
        make(),
        "softmax_cross_entropy",
        options.pop("optimizer", "sgd"),
        seed=3,
        memory_limit=limit,
        **options,
    )
    losses = []
    for _ in range(steps):
        x = rng.standard_normal((BATCH, *SHAPES[make])).astype(np.float32)
        losses.append(session.step({"x": x, "label": rng.integers(0, 5, BATCH)}))
    return session, losses


def limited(memory) -> int:
    """Bytes in the memory of the session's device: the limit holds for each device."""
    return memory.by_device[memory.device]


def least_limit(make, **options) -> int:
    """The least limit that works, from the error."""
    kept = trained(make, steps=1, **dict(options))[0].memory()
    for part in (0.95, 0.8, 0.7, 0.6, 0.5):  # other memory is limited too
        limit = limited(kept) - int((kept.activations + kept.scratch) * part)
        with pytest.raises(og.DeviceError, match="memory") as error:
            trained(make, limit, steps=1, **dict(options))
        if "does not fit into the memory limit" in error.value.what:
            break
    return int(re.search(r"least limit that works is (\d+) bytes", error.value.hint)[1])


def same_state(a, b) -> bool:
    first, second = a.state(), b.state()
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


CASES = [
    {},
    {"threads": 2},
    {"optimizer": "adam", "clip_norm": 0.5},
    {"optimizer": og.optimizers.SGD(lr=0.05, momentum=0.9), "accumulate": 2},
    {"optimizer": "lamb", "frozen": ["w5", "w2*"]},
    {"optimizer": "adamw", "skip_non_finite": True, "threads": 2},
]


@pytest.mark.parametrize("make", [convolutions, attention])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_same_bits_in_half_the_memory(make, options):
    free, losses = trained(make, **dict(options))
    kept = free.memory()
    assert (kept.recomputed_values, kept.recomputed_bytes, kept.recomputed_flops) == (0, 0, 0.0)
    arena = kept.activations + kept.scratch
    least = least_limit(make, **options)
    for limit in (least, (least + limited(kept)) // 2):
        session, again = trained(make, limit, **dict(options))
        assert again == losses
        assert same_state(session, free)
        memory = session.memory()
        assert limited(memory) <= limit
        if limit > least and memory.device != "cpu":
            continue  # buffers are placed for one stream: that may be enough
        assert memory.recomputed_values > 0
        assert memory.recomputed_bytes > 0
        assert "/again" in session.plan_summary()
        if limit == least:
            assert (
                memory.activations + memory.scratch
                <= (0.8 if make is convolutions else 0.7) * arena
            )


def test_branches_and_loops():
    free, losses = trained(branches, optimizer="adam")
    session, again = trained(branches, free.memory().total, optimizer="adam")
    assert again == losses
    assert same_state(session, free)


def deep_bodies(kind: str) -> onnx.ModelProto:
    """An If or a Scan whose body has ten layers, with random numbers in between."""
    layers = "".join(
        f"m{i} = MatMul(h{i}, {'ab'[i % 2]})  t{i} = Tanh(m{i})  s{i} = Sigmoid(m{i})"
        f"  p{i} = Mul(t{i}, s{i})  h{i + 1} = Dropout(p{i}, ratio, training) "
        for i in range(10)
    )
    of = "float[N, 16, 64]"
    body = {
        "If": f"""total = ReduceSum<keepdims=0>(q)  far = Constant<value = float {{-1e9}}>()
          yes = Greater(total, far)
          z = If(yes) <
            then_branch = t () => ({of} u) {{ h0 = Identity(q) {layers} u = Identity(h10) }},
            else_branch = e () => ({of} v) {{ v = Identity(q) }}>""",
        "Scan": f"""one = Unsqueeze(q, first)  steps = Concat<axis=0>(one, one, one)
          zero = Mul(q, none)
          z, all = Scan <num_scan_inputs = 1,
            body = f ({of} state, {of} x_t) => ({of} u, {of} o) {{
            h0 = Add(state, x_t) {layers} u = Identity(h10)  o = Identity(h10) }}> (zero, steps)""",
    }
    text = f"""
    <ir_version: 10, opset_import: ["" : 21]>
    g ({of} x) => (float[N, 5] y)
    <bool training = {{1}}, float ratio = {{0.25}}, int64[1] first = {{0}}, int64[1] second = {{1}},
     float none = {{0.0}}>
    {{
      q = MatMul(x, a)
      {body[kind]}
      r = MatMul(z, c)  y = ReduceMean<keepdims=0>(r, second)
    }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in {"a": (64, 64), "b": (64, 64), "c": (64, 5)}.items():
        numbers = (0.2 * rng.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(numbers, name))
    return model


@pytest.mark.parametrize("kind", ["If", "Scan"])
@pytest.mark.parametrize("options", [{}, {"optimizer": "adam", "threads": 2}], ids=str)
def test_values_in_bodies_are_computed_again(kind, options):
    def make():
        return deep_bodies(kind)

    SHAPES[make] = (16, 64)
    free, losses = trained(make, **dict(options))
    kept = free.memory()
    assert kept.recomputed_values == 0
    least = least_limit(make, **options)
    # Buffers that are placed closer save a part of what a limit asks for.
    for limit in (least, (3 * least + limited(kept)) // 4):
        session, again = trained(make, limit, **dict(options))
        assert again == losses
        assert same_state(session, free)
        memory = session.memory()
        assert limited(memory) <= limit
        if limit > least and memory.device != "cpu":
            continue
        assert memory.recomputed_values > 0
        assert memory.recomputed_bytes > 0
    assert least < limited(kept)


def passes(make, limit=None, **options):
    """A ForwardBackward after some passes, and what they returned."""
    rng = np.random.default_rng(1)
    layer = og.ForwardBackward(make(), seed=3, memory_limit=limit, **options)
    results = []
    for _ in range(3):
        x = rng.standard_normal((BATCH, *SHAPES[make])).astype(np.float32)
        (y,) = layer.forward({"x": x})
        saved = layer.contexts[0].saved_bytes
        gradients = layer.backward(rng.standard_normal(y.shape).astype(np.float32))
        results.append([y, *gradients.weights.values(), *gradients.inputs.values()])
    results.append(list(layer.weights.values()))
    return layer, saved, results


@pytest.mark.parametrize("make", [convolutions, attention])
@pytest.mark.parametrize("options", [{}, {"threads": 2, "frozen": "w5"}], ids=str)
def test_separate_passes_save_less(make, options):
    free, saved, results = passes(make, **options)
    memory = free.memory()
    assert memory.recomputed_values == memory.recomputed_bytes == 0
    roomy, same, again = passes(make, memory.total + memory.file, **options)
    assert same == saved
    # Under a limit kernels keep no packed constants, and a device places buffers closer.
    if memory.device == "cpu":
        limit = memory.total - memory.constants - saved // 16
    else:
        limit = limited(roomy.memory()) - saved // 32
    layer, less, fewer = passes(make, limit, **options)
    for a, b, c in zip(results, again, fewer, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
        for x, z in zip(a, c, strict=True):  # other nodes share a kernel: rounding differs
            np.testing.assert_allclose(z, x, rtol=0, atol=1e-5 * max(abs(x).max(), 1e-3))
    assert less < (0.6 if make is convolutions else 0.96) * saved
    assert layer.memory().recomputed_values > 0
    assert layer.memory().recomputed_bytes >= saved - less
    with pytest.raises(og.DeviceError):
        passes(make, 1000, **options)


def test_limits_as_text_and_in_errors():
    session, _ = trained(convolutions, "1.5 GiB")
    assert session.memory().recomputed_values == 0
    for wrong in ("", "many", "3 apples", "0", 0, -1, 2.5):
        with pytest.raises(og.OptionError, match="memory_limit"):
            trained(convolutions, wrong)
    with pytest.raises(og.DeviceError):
        trained(convolutions, 1000)


def test_a_fit_and_its_evaluation_keep_to_the_limit():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((4 * BATCH + 3, 24, 8)).astype(np.float32)
    y = rng.integers(0, 5, len(x))
    fits = []
    for limit in (None, 2 * least_limit(attention, optimizer="adam")):
        trainer = og.Trainer(attention(), optimizer="adam", memory_limit=limit)
        trainer.fit(x, y, epochs=2, batch_size=BATCH, validation=0.2, verbose=0)
        fits.append(trainer)
    assert fits[0].history["train_loss"] == fits[1].history["train_loss"]
    assert same_state(fits[0].session, fits[1].session)
    with pytest.raises(og.OptionError, match="memory_limit"):
        og.Trainer(fits[0].session, memory_limit=1000)


def dense_layers(width, count):
    g = Builder()
    y = "x"
    for _ in range(count):
        y = g.op("Relu", g.op("MatMul", y, g.weight(width, width)))
    return g.model(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width]), y)


# The first values of Adam's slots take no memory: with small layers that is more than 5 %. Pages of
# the library's code (8 MB, read from its file as they are first used) are not the session's.
@pytest.mark.host_only("the memory of the simulated device is the process's")
@pytest.mark.parametrize(("width", "count"), [(1024, 6), (600, 20)])
def test_the_peak_of_the_process_is_what_is_reported(width, count, tmp_path: Path):
    onnx.save(dense_layers(width, count), tmp_path / "model.onnx")
    job = f"""
import numpy as np, onnxgrad as og
def resident(kind):
    with open("/proc/self/status") as status:
        lines = [line.split() for line in status]
    sizes = {{l[0]: 1024 * int(l[1]) for l in lines if l[0] in ("VmRSS:", "VmHWM:", "RssFile:")}}
    return sizes[kind] - sizes["RssFile:"]
x = np.ones((2048, {width}), np.float32)
og.TrainingSession  # what it imports is not of the session
before = resident("VmRSS:")
session = og.TrainingSession({str(tmp_path / "model.onnx")!r}, "squared_error", "adam", threads=1)
feeds = {{"x": x, "label": x}}
session.step(feeds), session.step(feeds)
print(resident("VmHWM:") - before, session.memory().total)
"""
    run = subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, check=True)
    peak, reported = map(int, run.stdout.split())
    assert abs(peak - reported) < 0.05 * peak, (peak, reported)
