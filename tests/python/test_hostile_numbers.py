"""Numbers that no exporter writes and no client sends: results, or errors of ours that name them.

In files: lists without elements, sizes that do not divide, weights of open shapes. In feeds:
positions at the limits of int64. tests/fuzz tries the same for every operator, without values.
"""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

F = np.float32
LIMITS = [2**63 - 1, 2**63 - 2, -(2**63), 2**62, 2**61 + 1, -(2**62)]


def model(nodes, inputs, weights=(), opset=21, outputs=("y",)):
    """Inputs by name: an array stands for its type and shape, a pair for a type and a shape."""
    infos = [
        helper.make_tensor_value_info(
            name, *(given if isinstance(given, tuple) else (kind(given), given.shape))
        )
        for name, given in inputs.items()
    ]
    graph = helper.make_graph(
        nodes,
        "m",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in dict(weights).items()],
    )
    imports = [helper.make_opsetid(*item) for item in [("", opset), ("com.microsoft", 1)]]
    return helper.make_model(graph, opset_imports=[*imports, helper.make_opsetid("ai.onnx.ml", 5)])


def kind(array):
    return helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("start", [0, 2, 3, -1, *LIMITS])
def test_write_indices(mode, start):
    past, update = np.zeros((2, 1, 4, 5), F), np.ones((2, 1, 2, 5), F)
    starts = np.array([0, start])
    feeds = {"p": past, "u": update, "i": starts}
    node = helper.make_node("TensorScatter", ["p", "u", "i"], ["y"], mode=mode)
    m = model([node], feeds, opset=24)
    session, passes = og.InferenceSession(m, threads=1), og.ForwardBackward(m, threads=1)
    if mode == "linear" and not 0 <= start <= 2:
        for run in (lambda: session.run(None, feeds), lambda: passes.forward(feeds)):
            with pytest.raises(og.DataError, match=str(start)):
                run()
        return
    expected = past.copy()
    for row, first in enumerate([0, start]):
        for k in range(2):
            expected[row, :, (first + k) % 4] = 1  # Python's integers do not overflow
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    passes.forward(feeds)
    gradients = passes.backward([np.ones_like(past)]).inputs
    np.testing.assert_array_equal(gradients["p"], 1 - expected)
    np.testing.assert_array_equal(gradients["u"], update)


X = np.arange(12, dtype=F).reshape(3, 4)
W = np.array([[1, 0], [0, 1], [1, 1], [2, 0]], F)


def sequence_model(operator, position, fed):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("SplitToSequence", ["h"], ["s"]),
        helper.make_node(operator, ["s", "h", "p"] if "Insert" in operator else ["s", "p"], ["t"]),
        helper.make_node("Identity", ["t"], ["y"])
        if operator == "SequenceAt"
        else helper.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    inputs = {"x": X, **({"p": (TensorProto.INT64, None)} if fed else {})}
    return model(nodes, inputs, {"w": W, **({} if fed else {"p": position})})


def sequence_result(operator, position, h):
    """The value and the gradient of its sum by h, where the position is one."""
    rows = [h[i : i + 1] for i in range(3)]
    if operator == "SequenceAt":
        return rows[position], np.array([[i == position % 3] * 2 for i in range(3)], F)
    if operator == "SequenceErase":
        kept = [i for i in range(3) if i != position % 3]
        return h[kept], np.array([[i in kept] * 2 for i in range(3)], F)
    at = position + 3 if position < 0 else position
    return np.concatenate([*rows[:at], h, *rows[at:]]), np.full((3, 2), 2, F)


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("operator", ["SequenceInsert", "SequenceErase", "SequenceAt"])
@pytest.mark.parametrize(
    "position", [0, 1, -1, -3, 99, -99, *LIMITS, [], [0, 1], [[]], [1]], ids=str
)
def test_positions_in_sequences(operator, position, fed):
    given = np.array(position, np.int64)
    m, feeds = sequence_model(operator, given, fed), {"x": X, **({"p": given} if fed else {})}

    def both():
        passes = og.ForwardBackward(m, threads=1)
        y = passes.forward(feeds)[0]
        return y, passes.backward([np.ones_like(y)]).weights["w"]

    if given.size == 1 and -3 <= int(given.ravel()[0]) < 3:
        y, by_h = sequence_result(operator, int(given.ravel()[0]), X @ W)
        for result, expected in zip(both(), (y, X.T @ by_h), strict=True):
            np.testing.assert_allclose(result, expected)
        np.testing.assert_allclose(og.InferenceSession(m).run(None, feeds)[0], y)
        return
    error = (og.DataError, og.ShapeError) if given.size == 1 else og.ShapeError
    for run in (both, lambda: og.InferenceSession(m, threads=1).run(None, feeds)):
        with pytest.raises(error, match=r"position|input|index|reshaped"):
            run()


TREE = {
    "aggregate_function": 1,
    "leaf_targetids": [0, 1, 0, 1],
    "leaf_weights": numpy_helper.from_array(np.array([5.23, 12.12, -12.23, 7.21]), "w"),
    "n_targets": 2,
    "nodes_falseleafs": [0, 1, 1],
    "nodes_falsenodeids": [2, 2, 3],
    "nodes_featureids": [0, 0, 0],
    "nodes_modes": numpy_helper.from_array(np.zeros(3, np.uint8), "m"),
    "nodes_splits": numpy_helper.from_array(np.array([3.14, 1.2, 4.2]), "s"),
    "nodes_trueleafs": [0, 1, 1],
    "nodes_truenodeids": [1, 0, 1],
    "post_transform": 0,
    "tree_roots": [0],
}
ROWS = np.array([[1.2, 3.4], [-0.12, 1.66]])


def tree_model(**changed):
    node = helper.make_node("TreeEnsemble", ["X"], ["y"], domain="ai.onnx.ml")
    for name, value in {**TREE, **changed}.items():
        if isinstance(value, list):
            node.attribute.add(name=name, type=onnx.AttributeProto.INTS, ints=value)
        else:
            node.attribute.append(helper.make_attribute(name, value))
    return model([node], {"X": ROWS})


@pytest.mark.parametrize("name", [name for name, value in TREE.items() if isinstance(value, list)])
@pytest.mark.parametrize("value", [[], [2**62], [-1]], ids=str)
def test_lists_of_trees(name, value):
    changed = tree_model(**{name: value if not value else TREE[name][:-1] + value})
    if name in ("nodes_falseleafs", "nodes_trueleafs") and value == [2**62]:
        return  # not 0: a leaf
    with pytest.raises(og.ModelError):
        og.report(changed)
    with pytest.raises(og.ModelError):
        og.InferenceSession(changed)


def test_a_forest_of_too_many_targets():
    with pytest.raises(og.ModelError, match="n_targets"):
        og.InferenceSession(tree_model(n_targets=2**31))


HEADS = [
    ("RotaryEmbedding", ["x", "p", "c", "c"], "com.microsoft", {}),
    ("RotaryEmbedding", ["x", "p", "c", "c"], "com.microsoft", {"rotary_embedding_dim": 2}),
    ("RotaryEmbedding", ["x", "c", "c", "p"], "", {}),
    ("MultiHeadAttention", ["x", "x", "x"], "com.microsoft", {}),
    ("Attention", ["x", "x", "x"], "", {}),
    ("GroupQueryAttention", ["x", "x", "x", "", "", "s", "t"], "com.microsoft", {}),
]


@pytest.mark.parametrize("hidden", [0, 1, 3, 6])
@pytest.mark.parametrize("heads", [1, 2, 4, 8, 2**16, 2**62])
@pytest.mark.parametrize(("operator", "inputs", "domain", "more"), HEADS, ids=str)
def test_heads_that_columns_cannot_be_shared_by(operator, inputs, domain, more, hidden, heads):
    attributes = dict(more)
    for name in ("q_num_heads", "kv_num_heads") if not domain else ("num_heads",):
        attributes[name] = heads
    if operator == "RotaryEmbedding":
        attributes.pop("kv_num_heads", None)
        attributes["num_heads"] = attributes.pop("q_num_heads", heads)
    if operator == "GroupQueryAttention":
        attributes["kv_num_heads"] = heads
    node = helper.make_node(operator, inputs, ["y"], domain=domain, **attributes)
    weights = {
        "p": np.array([[0, 1, 2]]),
        "c": np.ones((8, max(hidden // 2, 1)), F),
        "s": np.array([2], np.int32),
        "t": np.array(3, np.int32),
    }
    used = {name: weights[name] for name in inputs if name in weights}
    x = np.ones((1, 3, hidden), F)
    m = model([node], {"x": x}, used, opset=23 if not domain else 21)
    tries = [
        lambda: og.report(m),
        lambda: og.gradient(m, wrt="x"),
        lambda: og.InferenceSession(m, threads=1).run(None, {"x": x}),
    ]
    refused = 0
    for attempt in tries:
        try:
            attempt()
        except og.InternalError:
            raise
        except og.Error:
            refused += 1
    if hidden % heads or not hidden:
        assert refused or (operator == "RotaryEmbedding" and domain)  # which finds its own number


OPTIMIZERS = ["sgd", "momentum", "adam", "adagrad", "lamb", "rmsprop", "muon", "lion"]


@pytest.mark.parametrize("ir_version", [3, 10])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dims", [[3, "K"], ["K", 2], [None, None], None], ids=str)
def test_weights_of_open_shapes(dims, optimizer, ir_version):
    """A weight that is listed among the inputs has the shape of its numbers when it is trained."""

    def trained(declared):
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        m = model(
            [node],
            {"x": (TensorProto.FLOAT, ["N", 3]), "w": (TensorProto.FLOAT, declared)},
            {"w": np.arange(6, dtype=F).reshape(3, 2) / 8},
            opset=9 if ir_version == 3 else 21,
        )
        m.ir_version = ir_version
        if ir_version == 3:
            del m.opset_import[1:]
        session = og.TrainingSession(m, "squared_error", optimizer, threads=1)
        for _ in range(3):
            session.step({"x": np.eye(3, dtype=F), "label": np.ones((3, 2), F)})
        step = og.training_step(m, "squared_error", optimizer)
        passes = og.ForwardBackward(m, threads=1)
        passes.forward({"x": np.eye(3, dtype=F)})
        return session.state()["w"], passes.backward([np.ones((3, 2), F)]).weights["w"], step

    for given, wanted in zip(trained(dims)[:2], trained([3, 2])[:2], strict=True):
        np.testing.assert_array_equal(given, wanted)


@pytest.mark.parametrize("dims", [["N", 4, 32], [2, "T", 32], ["N", "T", 32], [None] * 3], ids=str)
@pytest.mark.parametrize("rule", ["linear", "gated"])
def test_linear_attention_of_open_sizes(dims, rule):
    rng = np.random.default_rng(3)
    names = ["q", "k", "v"] if rule == "linear" else ["q", "k", "v", "", "g"]
    feeds = {name: rng.standard_normal((2, 4, 32)).astype(F) * F(0.3) for name in names if name}
    if "g" in feeds:
        feeds["g"] = -np.abs(feeds["g"])

    def gradients(shape):
        node = helper.make_node(
            "LinearAttention", names, ["y", "s"], q_num_heads=4, kv_num_heads=4, update_rule=rule
        )
        m = model([node], dict.fromkeys(feeds, (TensorProto.FLOAT, shape)), opset=27)
        del m.opset_import[1:]
        m.ir_version = 13
        passes = og.ForwardBackward(m, threads=1)
        passes.forward(feeds)
        return passes.backward([np.ones((2, 4, 32), F)]).inputs, og.gradient(m, wrt=list(feeds))

    wanted, given = gradients([2, 4, 32])[0], gradients(dims)[0]
    for name in feeds:
        assert np.abs(wanted[name]).max() > 0
        np.testing.assert_allclose(given[name], wanted[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("condition", [None, True, False])
@pytest.mark.parametrize("outputs", [(0, 1), (1, 2), (2, 1), (2, 2), (1, 0)])
def test_branches_of_other_numbers_of_outputs(outputs, condition):
    def branch(count):
        value = helper.make_tensor_value_info
        nodes = [helper.make_node("Neg", ["x"], [f"b{i}"]) for i in range(count)]
        return helper.make_graph(
            nodes, "branch", [], [value(f"b{i}", TensorProto.FLOAT, None) for i in range(count)]
        )

    then, other = map(branch, outputs)
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    x = np.ones(2, F)
    fed = {"c": np.array(True)} if condition is None else {}
    m = model([node], {"x": x, **fed}, {} if fed else {"c": np.array(condition)})
    with pytest.raises(og.ModelError, match="outputs, expected 0 and 1"):
        og.InferenceSession(m)


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
def test_windows_of_more_elements_than_can_be_counted(operator):
    """2^31 * 2^31 * 4 is 0 in 64 bits."""
    size = 2**31
    pads = [size - 1, size - 1, 0, 2, 2, 0]
    node = helper.make_node(operator, ["x"], ["y"], kernel_shape=[size, size, 4], pads=pads)
    x = np.ones((1, 1, 2, 2, 4), F)
    with pytest.raises(og.Error):
        og.InferenceSession(model([node], {"x": x}), threads=1).run(None, {"x": x})


def test_results_without_elements_of_any_size():
    """Nothing is computed per element of an axis if another axis has none."""
    many, x = 2**40, np.ones((0, 4), F)
    shapes = {
        "Pad": (["x", "n"], {"mode": "edge"}, np.array([0, many, 0, 0]), (0, many + 4)),
        "Resize": (["x", "", "n"], {"mode": "linear"}, np.array([1, 2**28], F), (0, 2**30)),
    }
    for operator, (inputs, attributes, numbers, shape) in shapes.items():
        node = helper.make_node(operator, inputs, ["y"], **attributes)
        m = model([node], {"x": x}, {"n": numbers})
        assert og.InferenceSession(m, threads=1).run(None, {"x": x})[0].shape == shape


REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp"]


@pytest.mark.parametrize("operator", REDUCTIONS)
@pytest.mark.parametrize("shape", [["N", "M", 5], None])
def test_derivatives_of_a_scan_over_rows_of_unknown_rank(operator, shape):
    """Axes that are an input leave the rank of what is scanned open."""
    nodes = [
        helper.make_node("Mul", ["row", "row"], ["square"]),
        helper.make_node(operator, ["square", "axes"], ["sum"], keepdims=1),
        helper.make_node("Add", ["state", "sum"], ["next"]),
    ]
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes,
        "body",
        [info("state", TensorProto.FLOAT, None), info("row", TensorProto.FLOAT, None)],
        [info("next", TensorProto.FLOAT, None)],
    )
    scan = helper.make_node("Scan", ["s", "x"], ["y"], body=body, num_scan_inputs=1)
    rng = np.random.default_rng(5)
    x, tangent = rng.standard_normal((2, 3, 4, 5)).astype(F)
    feeds = {"x": x, "s": np.zeros((1, 1), F), "axes": np.array([0, 1])}
    m = model([scan], {**feeds, "x": (TensorProto.FLOAT, shape)}, opset=18)
    fixed = model([scan], feeds, {}, opset=18)
    for graph in (og.jvp(m, wrt=["x"], outputs=["y"]), og.jvp(fixed, wrt=["x"], outputs=["y"])):
        result = og.InferenceSession(graph).run(None, {**feeds, "x_tangent": tangent})[0]
        step = F(1e-2)
        ends = [
            og.InferenceSession(fixed).run(None, {**feeds, "x": x + sign * step * tangent})[0]
            for sign in (F(1), F(-1))
        ]
        np.testing.assert_allclose(result, (ends[0] - ends[1]) / (2 * step), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("operator", ["SequenceMap", "SequenceAt", "SequenceEmpty", "Optional"])
def test_names_of_sequence_operators_in_another_domain(operator):
    """Kernels of sequences are found by name; a node of ai.onnx.ml is none of them."""
    node = helper.make_node(operator, ["x"], ["y"], domain="ai.onnx.ml")
    m = model([node], {"x": X})
    with pytest.raises(og.Error):
        og.InferenceSession(m, threads=1).run(None, {"x": X})


def test_a_condition_of_another_byte_than_0_and_1_is_true():
    info = helper.make_tensor_value_info
    branches = [
        helper.make_graph([helper.make_node(op, ["x"], ["b"])], op, [], [info("b", 1, None)])
        for op in ("Neg", "Abs")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    x = np.ones(2, F)
    for byte, expected in ((0, x), (1, -x), (2, -x), (255, -x)):
        condition = np.array([byte], np.uint8).view(bool).reshape(())
        feeds = {"c": condition, "x": x}
        y = og.InferenceSession(model([node], feeds), threads=1).run(None, feeds)[0]
        np.testing.assert_array_equal(y, expected)
