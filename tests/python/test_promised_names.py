"""Names that are promised ("<weight>_grad", "label", "next/<weight>") are kept: inner values give
way, and a number is added only where an input, output or weight of the model has the name."""

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og

# Every inner value, and one in a branch of If, has a name that is promised for something else.
INNER = """<ir_version: 8, opset_import: ["" : 17]>
main (float[N, 2] x) => (float[N, 1] y) <float[2, 2] w = {0.5, -1, 0.25, 2}, float[2, 1] v = {1, 2}>
{
  x_grad = MatMul (x, w)
  w_grad = Relu (x_grad)
  loss = Tanh (w_grad)
  zero = Constant <value = float {0}> ()
  size = ReduceSum <keepdims = 0> (loss)
  is_large = Greater (size, zero)
  label = If (is_large) <
    then_branch = a () => (float[N, 2] y_grad) { y_grad = Neg (loss) },
    else_branch = b () => (float[N, 2] step_count) { step_count = Identity (loss) }>
  learning_rate = MatMul (label, v)
  next_w = Identity (learning_rate)
  y = Identity (next_w)
}"""
X = np.random.default_rng(3).normal(size=(5, 2)).astype(np.float32)
Y = np.random.default_rng(4).normal(size=(5, 1)).astype(np.float32)


def model():
    parsed = onnx.parser.parse_model(INNER)
    for node in parsed.graph.node:  # names that the text form has no room for
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = {"next_w": "next/w"}.get(name, name)
    return parsed


def inputs(proto):
    return [value.name for value in proto.graph.input]


def outputs(proto):
    return [value.name for value in proto.graph.output]


def run(proto, feeds):
    onnx.checker.check_model(proto, full_check=True)
    return dict(
        zip(
            outputs(proto),
            onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds),
            strict=True,
        )
    )


def renamed():
    """Return the model with harmless names, for comparison with all results."""
    text = INNER
    for i, name in enumerate(["x_grad", "w_grad", "loss", "label", "y_grad", "step_count"]):
        text = text.replace(name, f"inner{i}")
    return onnx.parser.parse_model(text.replace("learning_rate", "inner9"))


def test_gradient():
    names = ["x", "w"]
    found = og.gradient(model(), names, fill_grad=True)
    assert outputs(found) == ["x_grad", "w_grad"]
    feeds = {"x": X, "w": np.array([[0.5, -1], [0.25, 2]], np.float32)}
    expected = run(og.gradient(renamed(), names, fill_grad=True), feeds)
    for name, value in run(found, feeds).items():
        np.testing.assert_array_equal(value, expected[name])
    seeded = og.gradient(model(), names)
    assert "y_grad" in inputs(seeded)
    assert outputs(seeded) == ["x_grad", "w_grad"]
    onnx.checker.check_model(seeded, full_check=True)


def test_a_name_of_the_models_own_is_kept_and_numbered():
    taken = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, 2] x, float[N, 2] x_grad) => (float[N, 2] y, float[N, 2] loss)
        <float[2] label = {1, 2}>
        { a = Mul (x, x_grad) y = Mul (a, label) loss = Tanh (y) }"""
    )
    found = og.gradient(taken, "x", "y", fill_grad=True)
    assert outputs(found) == ["x_grad_1"]
    feeds = {"x": X, "x_grad": 2 * X}
    expected = 2 * X * np.array([1, 2], np.float32)
    wanted = {name: feeds[name] for name in inputs(found)}
    np.testing.assert_allclose(run(found, wanted)["x_grad_1"], expected, rtol=1e-6)
    with_loss = og.add_loss(taken, og.losses.SquaredError(output="y"))
    assert outputs(with_loss) == ["loss_1", "y", "loss"]
    assert inputs(with_loss) == ["x", "x_grad", "label_1"]
    # Outputs that do not stay give way.
    alone = og.add_loss(taken, og.losses.SquaredError(output="y"), keep_outputs=False)
    assert outputs(alone) == ["loss"]


@pytest.mark.parametrize("keep", [True, False])
def test_add_loss(keep):
    with_loss = og.add_loss(model(), "mse", sample_weight="w_grad", keep_outputs=keep)
    assert inputs(with_loss) == ["x", "label", "w_grad"]
    assert outputs(with_loss) == ["loss", "y"][: 2 if keep else 1]
    feeds = {"x": X, "label": Y, "w_grad": np.ones(5, np.float32)}
    predicted = run(renamed(), {"x": X})["y"]
    assert run(with_loss, feeds)["loss"] == pytest.approx(((predicted - Y) ** 2).mean(), rel=1e-5)


def test_a_loss_on_an_inner_value_whose_name_is_taken_for_the_target():
    """The value is found by its name before it gives that name away."""
    for name, target in (("learning_rate", "learning_rate"), ("learning_rate", "label")):
        loss = og.losses.SquaredError(output=name)
        with_loss = og.add_loss(model(), loss, target=target)
        assert inputs(with_loss) == ["x", target]
        predicted = run(renamed(), {"x": X})["y"]
        found = run(with_loss, {"x": X, target: Y})["loss"]
        assert found == pytest.approx(((predicted - Y) ** 2).mean(), rel=1e-5)
        session = og.TrainingSession(model(), loss, target=target)
        assert session.target_name == target
        assert session.step({"x": X, target: Y}) == pytest.approx(float(found), rel=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "momentum"])
def test_training_step(optimizer):
    step = og.training_step(model(), "mse", optimizer, gradients=True)
    expected = og.training_step(renamed(), "mse", optimizer, gradients=True)
    assert inputs(step) == inputs(expected)
    assert outputs(step) == outputs(expected)
    assert {"loss", "w_grad", "next/w"} <= set(outputs(step))
    feeds = {"x": X, "label": Y, "learning_rate": np.array(0.1, np.float32)}
    wanted = run(expected, feeds)
    for name, value in run(step, feeds).items():
        np.testing.assert_array_equal(value, wanted[name])


def test_session_outputs():
    def stepped(proto):
        session = og.TrainingSession(proto, "mse", "sgd", outputs=["y", "w_grad", "gradient_norm"])
        assert session.target_name == "label"
        assert set(session.state()) >= {"w", "v"}
        return session.step({"x": X, "label": Y})

    loss, found = stepped(model())
    other, expected = stepped(renamed())
    assert loss == other
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_rows_of_a_loss_beside_an_input_of_its_name():
    taken = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, 2] loss) => (float[N, 1] y) <float[2, 1] w = {1, 2}>
        { y = MatMul (loss, w) }"""
    )
    step = og.training_step(taken, og.losses.SquaredError(reduction="none"))
    assert outputs(step)[0].startswith("loss_")
    onnx.checker.check_model(step, full_check=True)


def test_forward_backward():
    graphs = og.ForwardBackward(model()).graphs()
    expected = og.ForwardBackward(renamed()).graphs()
    assert set(outputs(graphs["backward"])) == {"x_grad", "w_grad", "v_grad"}
    assert outputs(graphs["backward"]) == outputs(expected["backward"])
    assert "y_grad" in inputs(graphs["backward"])
    for graph in graphs.values():
        onnx.checker.check_model(graph, full_check=True)
