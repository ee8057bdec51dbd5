"""Numbers on a card: what is rounded, the bits of both forms of a small plan, refused steps."""

import pytest

from card_scripts import DRIVER

pytestmark = pytest.mark.skipif(
    not DRIVER.exists(), reason="the stand-ins are built with the C++ tests, which this build lacks"
)

# A table of ten rows; `rows` are good, `bad` has one that is out of range in its third batch.
GATHER = """
import onnx.parser

table = ", ".join(str(x) for x in random.normal(size=30).round(3))
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> main (int64[N] I) => (float[N, 3] Y) '
    f'<float[10, 3] E = {{{table}}}, float[3] b = {{1, 2, 3}}> '
    '{ row = Gather(E, I)  Y = Add(row, b) }'
)
rows = random.integers(-10, 10, 128)
bad = rows.copy()
bad[40] = 17
wanted = random.normal(size=(128, 3)).astype(np.float32)
options = {"epochs": 1, "batch_size": 16, "shuffle": False, "verbose": 0}

def state(session):
    return {name: np.asarray(value).copy() for name, value in session.state().items()}

def assert_close(card, host):
    for name, value in host.items():
        np.testing.assert_allclose(card[name], value, rtol=1e-4, atol=1e-6, err_msg=name)

def refused(call):
    try:
        call()
    except og.DataError as error:
        return str(error).splitlines()[0]
    raise AssertionError("no error")
"""


@pytest.mark.parametrize("persistent", ["1", "0"])
def test_a_step_that_is_refused_changes_nothing(run_on_card, persistent):
    run_on_card(
        GATHER
        + """
ones = [og.Trainer(model, loss="mse", optimizer="adam", seed=5, device=x) for x in ("cuda", "cpu")]
for one in ones:
    one.fit(rows, wanted, **options)
    one.fit(rows, wanted, **options)
messages = [refused(lambda: one.fit(bad, wanted, **options)) for one in ones]
assert messages[0] == messages[1], messages
assert [one.session.steps for one in ones] == [18, 18]  # two steps before the third
assert_close(*(state(one.session) for one in ones))

before = state(ones[0].session)
feeds = {"I": np.array([3, 99]), ones[0].session.target_name: wanted[:2]}
refused(lambda: ones[0].session.step(feeds))
for name, value in state(ones[0].session).items():
    np.testing.assert_array_equal(value, before[name], err_msg=name)

for one in ones:
    one.fit(rows, wanted, **options)
assert_close(*(state(one.session) for one in ones))
""",
        ONNXGRAD_CUDA_PERSISTENT=persistent,
    )


def test_one_kernel_has_the_bits_of_separate_kernels(run_on_card):
    script = (
        GATHER
        + """
one = fit(trainer(sizes=(6, 16, 8, 3)), epochs=3)
other = og.Trainer(model, loss="mse", optimizer="rmsprop", seed=5, device="cuda")
other.fit(rows, wanted, **options | {"epochs": 3})
for session in (one.session, other.session):
    for name, value in sorted(state(session).items()):
        print(name, value.tobytes().hex())
print(*one.history["train_loss"], *other.history["train_loss"])
print("graphs" if calls("cuGraphLaunch") else "kernel")
"""
    )
    together = run_on_card(script, ONNXGRAD_CUDA_PERSISTENT="1").splitlines()
    apart = run_on_card(script, ONNXGRAD_CUDA_PERSISTENT="0").splitlines()
    assert (together.pop(), apart.pop()) == ("kernel", "graphs")
    assert together == apart


# The largest error of one node, beside float64 on the CPU; factors are numbers of `kind`.
ERRORS = """
from onnx import helper, numpy_helper

def session_of(op, inputs, weights, kind, **options):
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    names = [f"i{k}" for k in range(len(inputs))]
    given = [helper.make_tensor_value_info(n, dtype, x.shape) for n, x in zip(names, inputs)]
    constants = [numpy_helper.from_array(w.astype(kind), f"w{k}") for k, w in enumerate(weights)]
    node = helper.make_node(op, [*names, *(c.name for c in constants)], ["y"])
    results = [helper.make_tensor_value_info("y", dtype, None)]
    graph = helper.make_graph([node], "main", given, results, constants)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = og.InferenceSession(model, **options)
    feeds = {name: x.astype(kind) for name, x in zip(names, inputs)}
    return session.run(None, feeds)[0].astype(np.float64)

def error_of(op, inputs, weights, kind, math="float32"):
    inputs, weights = ([x.astype(kind) for x in each] for each in (inputs, weights))
    expected = session_of(op, inputs, weights, np.float64)
    found = session_of(op, inputs, weights, kind, device="cuda", math=math)
    return np.abs(found - expected).max() / np.abs(expected).max()

cases = {
    "product": ("MatMul", [random.normal(size=(40, 300))], [random.normal(size=(300, 24))]),
    "convolution": (
        "Conv",
        [random.normal(size=(2, 16, 20, 19))],
        [random.normal(size=(24, 16, 3, 3)), random.normal(size=24)],
    ),
}
"""


@pytest.mark.parametrize("case", ["product", "convolution"])
def test_float32_is_rounded_where_tf32_is_allowed_alone(run_on_card, case):
    run_on_card(
        ERRORS
        + f"""
assert error_of(*cases[{case!r}], np.float32) < 1e-6
rounded = error_of(*cases[{case!r}], np.float32, math="tf32")
assert 3e-5 < rounded < 2e-3, rounded
"""
    )


@pytest.mark.parametrize("case", ["product", "convolution"])
def test_results_of_16_bits_are_rounded_once(run_on_card, case):
    run_on_card(
        ERRORS
        + f"""
error = error_of(*cases[{case!r}], np.float16)
assert error < 1.01 * 2.0**-11, error  # half a unit of the largest result
"""
    )


# Convolutions with bias and Relu, normalisation, pooling, an addition.
NETWORK = """
from onnx import helper, numpy_helper

def network():
    def weight(name, *dims):
        scale = np.prod(dims[1:]) ** -0.5
        return numpy_helper.from_array((random.normal(size=dims) * scale).astype(np.float32), name)

    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["X", "W1", "B1"], ["a"], **pads),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "W2"], ["c"], **pads),
        helper.make_node("BatchNormalization", ["c", "one", "zero", "zero", "one"], ["d"]),
        helper.make_node("Add", ["d", "b"], ["e"]),
        helper.make_node("Relu", ["e"], ["f"]),
        helper.make_node("MaxPool", ["f"], ["g"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["g"], ["h"]),
        helper.make_node("Flatten", ["h"], ["i"]),
        helper.make_node("MatMul", ["i", "W3"], ["Y"]),
    ]
    values = [weight("W1", 16, 3, 3, 3), weight("B1", 16), weight("W2", 16, 16, 3, 3)]
    values += [weight("W3", 16, 4)]
    values += [numpy_helper.from_array(np.full(16, x, np.float32), name)
               for name, x in (("one", 1), ("zero", 0))]
    ports = [helper.make_tensor_value_info(name, 1, shape)
             for name, shape in (("X", ["N", 3, 16, 16]), ("Y", ["N", 4]))]
    graph = helper.make_graph(nodes, "main", ports[:1], ports[1:], values)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)

model = network()
pictures = random.normal(size=(24, 3, 16, 16)).astype(np.float32)
classes = random.integers(0, 4, 24)

def trained(device, **options):
    one = og.Trainer(
        model, loss="softmax_cross_entropy", optimizer="sgd", device=device, seed=5, **options
    )
    one.fit(pictures, classes, epochs=2, batch_size=8, shuffle=False, verbose=0)
    return one.session.weights
"""


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [({}, 1e-3), ({"math": "tf32"}, 2e-2), ({"precision": "bf16"}, 5e-2)],
    ids=["float32", "tf32", "bf16"],
)
def test_a_network_of_convolutions_trains_as_on_the_cpu(run_on_card, options, tolerance):
    run_on_card(
        NETWORK
        + f"""
found, expected = (trained(device, **{options!r}) for device in ("cuda", "cpu"))
first = og.TrainingSession(model, "softmax_cross_entropy", "sgd").weights
for name, value in expected.items():
    step = np.abs(value - first[name]).max()
    assert np.abs(found[name] - value).max() <= {tolerance} * step + 1e-7, name
"""
    )


def test_an_index_that_a_loop_refuses_is_named_as_on_the_cpu(run_on_card):
    run_on_card(
        """
import onnx.parser

table = ", ".join(str(x) for x in random.normal(size=30).round(3))
model = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> main (float[N, 3] X, int64[T] I) => (float[N, 3] Y) '
    f'<float[10, 3] E = {{{table}}}> '
    '''{ n = Constant <value = int64 {4}> ()
    go = Constant <value = bool {1}> ()
    start = Identity (X)
    Y = Loop (n, go, start) <
      body = body (int64 i, bool c, float[N, 3] y) => (bool d, float[N, 3] z) {
      d = Identity (c)
      at = Gather (I, i)
      row = Gather (E, at)
      z = Add (y, row)
    }> }'''
)
messages = []
for device in ("cuda", "cpu"):
    session = og.InferenceSession(model, device=device)
    for rows in ([1, 2, 77, 4], [99, 0, 0, 0]):
        try:
            session.run(None, {"X": np.ones((2, 3), np.float32), "I": np.array(rows)})
        except og.DataError as error:
            messages.append(str(error))
assert len(messages) == 4 and messages[:2] == messages[2:], messages
assert "index 77 of 'at'" in messages[0], messages
"""
    )


@pytest.mark.parametrize("rows", [3, 40, 300])
def test_a_step_of_a_linear_model_is_done_once(run_on_card, rows):
    run_on_card(
        f"""
import onnx.parser

x, y = (random.normal(size=({rows}, 1)).astype(np.float32) for _ in range(2))
model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 21]> m (float[N, 1] x) => (float[N, 1] y) '
    "<float[1, 1] w = {{0.25}}> {{ y = MatMul(x, w) }}"
)
one = og.Trainer(model, "squared_error", og.optimizers.SGD(0.1), device="cuda")
one.fit(x, y, epochs=2, batch_size={rows}, verbose=0)
w = 0.25
for _ in range(2):
    w -= 0.1 * np.mean(2.0 * x * (x * w - y))
np.testing.assert_allclose(one.session.state()["w"], [[w]], rtol=1e-5)
"""
    )
