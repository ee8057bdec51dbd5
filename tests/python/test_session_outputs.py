"""Outputs and inputs of sessions: what is computed, left out, and called by one name."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgrad as og

FLOAT, INT, TEXT = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
W = np.array([[0.5, -0.25, 0.125], [1.0, 0.75, -0.5]], np.float32)
X = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)


def info(name, element, shape):
    return helper.make_tensor_value_info(name, element, shape)


def model_of(nodes, outputs, weights=(), inputs=None, opset=17, value_info=()):
    graph = helper.make_graph(
        nodes,
        "g",
        inputs or [info("X", FLOAT, ["N", 2])],
        outputs,
        [numpy_helper.from_array(value, name) for name, value in dict(weights).items()],
        value_info=list(value_info),
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(
        graph, ir_version=8, opset_imports=[*domains, helper.make_opsetid("mine", 1)]
    )


def stock(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


SCORES = helper.make_node("MatMul", ["X", "W"], ["y"])


def text_branch(name, text):
    value = numpy_helper.from_array(np.array([text], object), "")
    node = helper.make_node("Constant", [], [name], value=value)
    return helper.make_graph([node], name, [], [info(name, TEXT, [1])])


# A second output that the engine cannot compute: the nodes that make it, its type.
BLOCKED = {
    "foreign operator": ([helper.make_node("Mystery", ["y"], ["z"], "m", domain="mine")], FLOAT),
    "unknown operator": ([helper.make_node("Reluu", ["y"], ["z"], "m")], FLOAT),
    "behind one": (
        [
            helper.make_node("SampleOp", ["X"], ["a"], "m", domain="com.microsoft"),
            helper.make_node("MatMul", ["a", "W"], ["z"]),
        ],
        FLOAT,
    ),
    "form without a lowering": (
        [
            helper.make_node(
                "FusedGemm", ["X", "W"], ["z"], "m", domain="com.microsoft", activation="Sine"
            ),
        ],
        FLOAT,
    ),
    "text of a branch": (
        [
            helper.make_node("ReduceSum", ["X"], ["r"], keepdims=0),
            helper.make_node("Cast", ["r"], ["c"], to=TensorProto.BOOL),
            helper.make_node(
                "If",
                ["c"],
                ["z"],
                "m",
                then_branch=text_branch("a", "yes"),
                else_branch=text_branch("b", "no"),
            ),
        ],
        TEXT,
    ),
}


def blocked_model(kind, first="y"):
    nodes, element = BLOCKED[kind]
    outputs = [info("y", FLOAT, ["N", 3]), info("z", element, None)]
    return model_of([SCORES, *nodes], outputs if first == "y" else outputs[::-1], {"W": W})


@pytest.mark.parametrize("first", ["y", "z"])
@pytest.mark.parametrize("kind", BLOCKED)
def test_an_output_that_cannot_be_computed_blocks_only_itself(kind, first):
    model = blocked_model(kind, first)
    session = og.InferenceSession(model)
    assert [o.name for o in session.get_outputs()] == ["y", "z"] if first == "y" else ["z", "y"]
    np.testing.assert_allclose(session.run(["y"], {"X": X})[0], X @ W)
    for names in (None, ["z"], ["y", "z"]):
        with pytest.raises(og.UnsupportedOperatorError) as caught:
            session.run(names, {"X": X})
        assert "m" in str(caught.value) or "texts" in str(caught.value)


@pytest.mark.parametrize("kind", BLOCKED)
def test_an_output_that_nobody_asked_for_does_not_block_training(kind):
    model = blocked_model(kind)
    assert og.report(model).weights
    gradient = og.gradient(model, outputs=["y"], keep_outputs=False, inline=True)
    seed = np.ones((4, 3), np.float32)
    found = stock(gradient).run(None, {"X": X, "W": W, "y_grad": seed})[0]
    np.testing.assert_allclose(found, X.T @ seed)
    trainer = og.Trainer(model, og.losses.SquaredError(output="y"))
    np.testing.assert_allclose(trainer.predict(X, output="y"), X @ W, rtol=1e-5)
    assert trainer.evaluate(X, X @ W + 1).loss == pytest.approx(1)
    trainer.fit(X, X @ W + 1, epochs=1, verbose=0)
    with pytest.raises(og.UnsupportedOperatorError):
        trainer.predict(X, output="z")
    with pytest.raises(og.UnsupportedOperatorError):
        trainer.session.predict({"X": X})


def test_separate_passes_leave_out_what_cannot_be_computed():
    for kind in BLOCKED:
        passes = og.ForwardBackward(blocked_model(kind))
        assert [o.name for o in passes.get_outputs()] == ["y"], kind
        np.testing.assert_allclose(passes.forward({"X": X})[0], X @ W)
        gradients = passes.backward([np.ones((4, 3), np.float32)])
        np.testing.assert_allclose(gradients.weights["W"], X.T @ np.ones((4, 3), np.float32))


def test_a_session_without_any_output_to_compute_is_refused():
    model = model_of(
        [helper.make_node("Mystery", ["X"], ["z"], "m", domain="mine")], [info("z", FLOAT, None)]
    )
    with pytest.raises(og.UnsupportedOperatorError, match="Mystery 'm'"):
        og.InferenceSession(model)
    with pytest.raises(og.UnsupportedOperatorError, match="SampleOp 'm'"):
        og.InferenceSession(
            model_of([*BLOCKED["behind one"][0]], [info("z", FLOAT, None)], {"W": W})
        )


def test_only_what_the_requested_outputs_need_is_computed_and_fed():
    nodes = [SCORES, helper.make_node("Gather", ["W", "i"], ["z"])]
    inputs = [info("X", FLOAT, ["N", 2]), info("i", INT, ["K"])]
    outputs = [info("y", FLOAT, None), info("z", FLOAT, None)]
    session = og.InferenceSession(model_of(nodes, outputs, {"W": W}, inputs))
    bad = np.array([7])  # there are two rows
    np.testing.assert_allclose(session.run(["y"], {"X": X, "i": bad})[0], X @ W)
    np.testing.assert_allclose(session.run(["y"], {"X": X})[0], X @ W)
    np.testing.assert_allclose(session.run(["z", "z"], {"i": bad - 6})[1], W[[1]])
    with pytest.raises(og.DataError):
        session.run(None, {"X": X, "i": bad})
    with pytest.raises(og.DataError, match=r"'i'.* is missing"):
        session.run(None, {"X": X})
    with pytest.raises(og.DataError, match="no input 'j'"):
        session.run(["y"], {"X": X, "j": bad})
    with pytest.raises(og.DataError, match="int64"):
        session.run(["y"], {"X": X, "i": bad.astype(np.float32)})
    with session.profiling() as profile:
        session.run(["y"], {"X": X})
        session.run(["z"], {"i": bad - 6})
    assert {kernel.op_type for kernel in profile.kernels} >= {"Gather"}
    assert session.memory().total > 0
    assert session.plan_summary()


@pytest.mark.parametrize("kind", ["tensor", "sequence"])
def test_an_output_may_be_listed_twice(kind):
    node = helper.make_node("Neg" if kind == "tensor" else "SplitToSequence", ["X"], ["s"])
    if kind == "tensor":
        declared = info("s", FLOAT, None)
    else:
        declared = helper.make_value_info(
            "s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
        )
    session = og.InferenceSession(
        model_of([node, SCORES], [declared, info("y", FLOAT, None), declared], {"W": W})
    )
    for names in (None, ["s", "y", "s"]):
        first, y, last = session.run(names, {"X": X})
        np.testing.assert_allclose(y, X @ W)
        for a, b in zip(first, last, strict=True):
            np.testing.assert_array_equal(a, b)
            assert not np.shares_memory(a, b)


def default_model(ir_version=8):
    nodes = [
        helper.make_node("Reshape", ["X", "shape"], ["r"]),
        helper.make_node("MatMul", ["r", "W"], ["m"]),
        helper.make_node("Mul", ["m", "scale"], ["y"]),
    ]
    inputs = [
        info("X", FLOAT, ["N", 2]),
        info("shape", INT, [2]),
        info("W", FLOAT, [2, 3]),
        info("scale", FLOAT, []),
    ]
    weights = {"shape": np.array([-1, 2]), "W": W, "scale": np.array(2, np.float32)}
    model = model_of(nodes, [info("y", FLOAT, [4, 3])], weights, inputs)
    model.ir_version = ir_version
    return model


@pytest.mark.parametrize("ir_version", [3, 8])
def test_inputs_with_a_default_are_those_of_onnxruntime(ir_version):
    model = default_model(ir_version)
    ours, theirs = og.InferenceSession(model), stock(model)
    assert [(i.name, i.type, i.shape) for i in ours.get_inputs()] == [
        (i.name, i.type, i.shape) for i in theirs.get_inputs()
    ]
    assert [i.name for i in ours.get_overridable_initializers()] == [
        i.name for i in theirs.get_overridable_initializers()
    ]
    feeds = [{"X": X}]
    if ir_version > 3:
        feeds += [
            {"X": X, "scale": np.array(3, np.float32)},
            {"X": X, "W": W * 2},
            {"X": X, "shape": np.array([2, 4]), "W": np.ones((4, 3), np.float32)},
        ]
        feeds[3]["W"] = W
        feeds[3]["shape"] = np.array([4, 2])
    for given in [*feeds, feeds[0]]:
        np.testing.assert_allclose(ours.run(None, given)[0], theirs.run(None, given)[0], rtol=1e-6)


def test_a_default_shape_that_is_overridden_determines_the_output():
    nodes = [helper.make_node("Expand", ["X", "shape"], ["y"])]
    inputs = [info("X", FLOAT, [4, 1]), info("shape", INT, [2])]
    model = model_of(nodes, [info("y", FLOAT, [4, 2])], {"shape": np.array([4, 2])}, inputs)
    session = og.InferenceSession(model)
    x = X[:, :1]
    assert session.run(None, {"X": x})[0].shape == (4, 2)
    assert session.run(None, {"X": x, "shape": np.array([4, 5])})[0].shape == (4, 5)
    assert session.run(None, {"X": x})[0].shape == (4, 2)


def test_defaults_give_training_the_shapes_that_they_determine():
    trainer = og.Trainer(default_model(), "mse")
    trainer.fit(X, X @ W, epochs=3, verbose=0)
    np.testing.assert_allclose(trainer.predict(X).shape, (4, 3))
    passes = og.ForwardBackward(default_model())
    np.testing.assert_allclose(passes.forward({"X": X})[0], X @ W * 2, rtol=1e-6)


# One name for two sizes


def shared_name_model():
    """x and its mask have one name for rows, and the output the name of another size."""
    nodes = [
        helper.make_node("MatMul", ["X", "W"], ["h"]),
        helper.make_node("Mul", ["h", "mask"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["y"]),
    ]
    name = "Tanhlogits_dim_0"
    inputs = [info("X", FLOAT, [name, 2]), info("mask", FLOAT, [name, 1])]
    weights = {"W": W, "shape": np.array([-1, 1])}
    return model_of(nodes, [info("y", FLOAT, [name, 1])], weights, inputs)


def test_one_name_for_two_sizes_is_a_warning_where_the_graph_allows_it():
    model = shared_name_model()
    mask = np.array([[0.5]], np.float32)
    feeds = {"X": X, "mask": mask}
    expected = stock(model).run(None, feeds)[0]
    session = og.InferenceSession(model)
    with pytest.warns(UserWarning, match=r"one name, 'Tanhlogits_dim_0'.*'X' \[4, 2\] has 4"):
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-6)
    session.run(None, feeds)  # warnings are errors here: it warns once

    loss = og.losses.SquaredError(output="y")
    training = og.TrainingSession(model, loss, "sgd:lr=0.01", outputs=["W_grad"])
    target = np.zeros((12, 1), np.float32)  # as many as there are rows in y
    with pytest.warns(UserWarning, match="one name"):
        total, (gradient,) = training.step(feeds | {training.target_name: target})
    assert float(total) == pytest.approx(np.mean(expected**2), rel=1e-5)
    h = X @ W * mask
    np.testing.assert_allclose(gradient, X.T @ (2 * h * mask / h.size), rtol=1e-5)
    assert training.evaluate(feeds | {training.target_name: target}).rows == 12

    passes = og.ForwardBackward(model, inputs=["X"])
    with pytest.warns(UserWarning, match="one name"):
        passes.forward(feeds)
    gradients = passes.backward([np.ones((12, 1), np.float32)])
    np.testing.assert_allclose(
        gradients.weights["W"], X.T @ np.full((4, 3), 0.5, np.float32), rtol=1e-6
    )


def test_sizes_that_a_gradient_relies_on_are_refused_by_name():
    passes = og.ForwardBackward(shared_name_model(), inputs=["mask"])
    with pytest.warns(UserWarning, match="one name"):
        passes.forward({"X": X, "mask": np.ones((1, 1), np.float32)})
    with pytest.raises(og.ShapeError, match=r"'X' has 4, 'mask' has 1|Tanhlogits_dim_0"):
        passes.backward([np.ones((12, 1), np.float32)])


def test_a_single_target_is_not_broadcast_over_the_rows():
    model = model_of([SCORES], [info("y", FLOAT, ["N", 3])], {"W": W})
    training = og.TrainingSession(model, "mse", "sgd")
    with pytest.raises(og.ShapeError, match="number of rows"):
        training.step({"X": X, training.target_name: np.zeros((1, 3), np.float32)})


def test_one_name_of_several_computed_sizes_does_not_mislead_gradients():
    """Two values with one declared name, one of which is broadcast: (1, 3) + (4, 3)."""
    nodes = [
        SCORES,
        helper.make_node("Reshape", ["c", "one"], ["a"]),
        helper.make_node("Reshape", ["y", "rows"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["z"]),
    ]
    inputs = [info("X", FLOAT, ["N", 2]), info("one", INT, [2]), info("rows", INT, [2])]
    infos = [info("a", FLOAT, ["Tanhlogits_dim_0", 3]), info("b", FLOAT, ["Tanhlogits_dim_0", 3])]
    weights = {"W": W, "c": np.array([1, 2, 3], np.float32)}
    model = model_of(nodes, [info("z", FLOAT, None)], weights, inputs, value_info=infos)
    feeds = {"X": X, "one": np.array([1, 3]), "rows": np.array([4, 3])}
    seed = np.arange(12, dtype=np.float32).reshape(4, 3)
    passes = og.ForwardBackward(model, weights=["c"])
    passes.forward(feeds)
    np.testing.assert_allclose(passes.backward([seed]).weights["c"], seed.sum(0))
    gradient = stock(og.gradient(model, ["c"], inline=True))
    np.testing.assert_allclose(
        gradient.run(["c_grad"], feeds | {"c": weights["c"], "z_grad": seed})[0], seed.sum(0)
    )


MVN = [
    {},
    {"across_channels": 1},
    {"across_channels": 0, "normalize_variance": 0},
    {"across_channels": 1, "normalize_variance": 0},
]


@pytest.mark.parametrize("attributes", MVN, ids=str)
@pytest.mark.parametrize("opset", [7, 8])
def test_mean_variance_normalization_before_it_was_standard(attributes, opset):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32) + 1
    node = helper.make_node("MeanVarianceNormalization", ["X"], ["y"], **attributes)
    model = model_of(
        [node], [info("y", FLOAT, None)], (), [info("X", FLOAT, [2, 3, 4, 5])], opset=opset
    )
    model.ir_version = 3
    del model.opset_import[1:]
    expected = stock(model).run(None, {"X": x})[0]
    found = og.InferenceSession(model).run(None, {"X": x})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert onnx.checker.check_model(og.gradient(model, ["X"], inline=True)) is None


def test_attributes_that_no_version_of_an_operator_has_are_refused():
    node = helper.make_node("MeanVarianceNormalization", ["X"], ["y"], across_channel=1)
    model = model_of([node], [info("y", FLOAT, None)], (), [info("X", FLOAT, [2, 3, 4])], opset=8)
    with pytest.raises(og.ModelError, match="'across_channel' is unknown"):
        og.InferenceSession(model)
