"""State, pickles, types and data of both optimizers, and values of stock onnxruntime."""

import pickle

import numpy as np
import onnx.parser
import pytest
from sklearn.linear_model import LinearRegression

from onnxgrad.compat.onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxgrad.compat.onnxcustom.training.optimizers_partial import (
    OrtGradientForwardBackwardOptimizer,
)
from onnxgrad.compat.onnxcustom.training.ortgradient import OrtGradientForwardBackward
from onnxgrad.compat.onnxcustom.training.sgd_learning_loss import SquareLearningLoss
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import (
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from onnxgrad.compat.onnxcustom.utils.onnx_function import function_onnx_graph
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import add_loss_output
from onnxgrad.compat.onnxruntime import OrtValueVector
from onnxgrad.compat.onnxruntime.values import array_of

RNG = np.random.default_rng(5)
X = RNG.normal(size=(30, 2)).astype(np.float32)
Y = (X @ np.array([[2], [-1]], np.float32) + 0.5).astype(np.float32)


def linear(kind="float"):
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        linear ({kind}[N, 2] x) => ({kind}[N, 1] y)
        <{kind}[2, 1] W = {{1, 1}}, {kind}[1] b = {{0}}>
        {{ p = MatMul(x, W)
           y = Add(p, b) }}""")


def partial(weights=("b", "W"), **options):
    options = {"learning_rate": LearningRateSGDNesterov(0.01), "max_iter": 2, **options}
    return OrtGradientForwardBackwardOptimizer(linear(), list(weights), **options)


def test_velocities_are_in_the_order_of_the_weights():
    trainer = partial().fit(X, Y)
    for kind in ("weight", "grad"):
        assert [value.shape() for value in trainer.get_state(kind)] == [[1], [2, 1]]
    full = trainer.get_full_state(["weight", "grad"])
    assert [[value and value.shape() for value in state] for state in full] == [
        [None, [1], [2, 1]]
    ] * 2
    assert all(value.numpy().any() for value in trainer.get_state("grad"))


def test_state_before_fit():
    trainer = partial()
    with pytest.raises(AttributeError, match="Method fit must be called before"):
        trainer.get_full_state()
    state = [None, np.array([3], np.float32), np.array([[1], [2]], np.float32)]
    trainer.set_state(state, check_trained=False)
    trainer.set_state(state, check_trained=False, kind="grad", zero=True)
    for value, given in zip(trainer.get_full_state()[1:], state[1:], strict=True):
        np.testing.assert_array_equal(value.numpy(), given)
    for value, given in zip(trainer.get_state("grad"), state[1:], strict=True):
        np.testing.assert_array_equal(value.numpy(), np.zeros_like(given))


def test_training_continues_from_given_velocities():
    """One step from known velocities: w' = w + m (m v - r g) - r g, in NumPy."""
    weights = [np.array([0.5], np.float32), np.array([[1], [-1]], np.float32)]
    velocity = [np.array([0.1], np.float32), np.array([[0.2], [-0.3]], np.float32)]
    rate = LearningRateSGDNesterov(0.01, momentum=0.9, nesterov=True)
    trainer = partial(learning_rate=rate, max_iter=1, batch_size=len(X), warm_start=True)
    trainer.set_state(weights, check_trained=False)
    trainer.set_state(velocity, check_trained=False, kind="grad")
    trainer.fit(X, Y)
    difference = 2 * (X @ weights[1] + weights[0] - Y) / len(X)
    gradients = [difference.sum(0), X.T @ difference]
    for i, (weight, slot) in enumerate(
        zip(trainer.get_state(), trainer.get_state("grad"), strict=True)
    ):
        moved = 0.9 * velocity[i] - 0.01 * gradients[i]
        np.testing.assert_allclose(slot.numpy(), moved, rtol=1e-5)
        expected = weights[i] + 0.9 * moved - 0.01 * gradients[i]
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5)


def test_state_of_a_plain_update_is_kept():
    trainer = partial(learning_rate=LearningRateSGD(0.01)).fit(X, Y)
    assert trainer.get_state("grad") == []
    given = [np.array([3], np.float32), np.array([[1], [2]], np.float32)]
    trainer.set_state(given, kind="grad")
    np.testing.assert_array_equal(trainer.get_state("grad")[1].numpy(), given[1])


def with_loss(**options):
    onx = add_loss_output(linear())
    return OrtGradientOptimizer(onx, ["b", "W"], max_iter=3, learning_rate=1e-2, **options)


def test_unpickled_optimizer_has_its_weights():
    trainer = with_loss().fit(X, Y)
    expected = float(((X @ trainer.trained_coef_["W"] + trainer.trained_coef_["b"] - Y) ** 2).sum())
    again = pickle.loads(pickle.dumps(trainer))
    np.testing.assert_allclose(again.losses(X, Y).item(), expected, rtol=1e-5)
    again = pickle.loads(pickle.dumps(trainer))
    assert again.score(X, Y) == pytest.approx(-expected / len(X), rel=1e-5)
    again = pickle.loads(pickle.dumps(trainer))
    again.set_state({"b": np.array([7], np.float32)})
    np.testing.assert_array_equal(again.get_state()["b"], [7])
    np.testing.assert_array_equal(again.get_state()["W"], trainer.trained_coef_["W"])
    np.testing.assert_array_equal(again.trained_coef_["W"], trainer.trained_coef_["W"])


@pytest.mark.parametrize("call", [
    lambda trainer: trainer.losses(X, Y),
    lambda trainer: trainer.score(X, Y),
    lambda trainer: trainer.get_state(),
    lambda trainer: trainer.set_state({}),
    lambda trainer: trainer.get_trained_onnx(),
])  # fmt: skip
@pytest.mark.parametrize("make", [with_loss, partial])
def test_before_fit(make, call):
    with pytest.raises(AttributeError, match="Method fit must be called before"):
        call(make())


def test_losses_of_validation():
    assert with_loss().fit(X, Y).validation_losses_ == []
    assert partial().fit(X, Y).validation_losses_ is None
    trainer = with_loss(validation_every=1).fit(X, Y, X_val=X, y_val=Y)
    assert len(trainer.validation_losses_) == 3


@pytest.mark.parametrize("make", [with_loss, partial])
def test_lists_and_tables(make):
    """The data that scikit-learn takes; the scores are those of arrays."""
    pandas = pytest.importorskip("pandas")
    frame, column = pandas.DataFrame(X, columns=["a", "b"]), pandas.Series(Y[:, 0])
    rows = X.tolist(), Y[:, 0].tolist()
    LinearRegression().fit(*rows).score(frame, column)
    for data in (rows, (frame, column), (X.astype(float), Y.astype(float))):
        np.random.seed(3)  # noqa: NPY002
        found = make().fit(*data)
        np.random.seed(3)  # noqa: NPY002
        expected = make().fit(X, Y)
        assert found.train_losses_ == expected.train_losses_
        assert found.score(*data) == pytest.approx(expected.score(X, Y), rel=1e-6)


def test_graphs_have_the_type_of_the_model():
    rate = LearningRateSGDNesterov(0.01)
    trainer = OrtGradientForwardBackwardOptimizer(
        linear("double"), ["b", "W"], learning_rate=rate, learning_penalty="l2", max_iter=1
    )
    graphs = (
        trainer.learning_loss.loss_grad_onnx_,
        trainer.learning_loss.loss_score_onnx_,
        trainer.learning_penalty.penalty_onnx_,
        trainer.learning_penalty.penalty_grad_onnx_,
        trainer.learning_rate.axpyw_onnx_,
        trainer.zero_onnx_,
    )
    double = onnx.TensorProto.DOUBLE
    for graph in graphs:
        values = [*graph.graph.input, *graph.graph.output]
        assert {value.type.tensor_type.elem_type for value in values} == {double}
    expected, predicted = Y.astype(float), X[:, :1].astype(float)
    loss, gradient = trainer.learning_loss.loss_gradient(None, expected, predicted)
    np.testing.assert_allclose(loss.numpy(), [((expected - predicted) ** 2).sum()], rtol=1e-14)
    np.testing.assert_allclose(gradient.numpy(), 2 * (predicted - expected), rtol=1e-14)
    rate.init_learning_rate()
    weight, slope, velocity = np.ones((2, 1)), np.full((2, 1), 0.1), np.zeros((2, 1))
    rate.update_weights(0, None, weight, slope, 1, velocity)
    np.testing.assert_allclose(velocity, np.full((2, 1), -0.001), rtol=1e-14)
    np.testing.assert_allclose(weight, np.full((2, 1), 1 - 0.0019), rtol=1e-14)


def test_scores_are_of_each_row_with_its_weight():
    loss = SquareLearningLoss()
    loss.build_onnx_function(17, None, "weight")
    expected, predicted, weight = Y, X[:, :1], np.arange(30, dtype=np.float32)
    rows = (expected - predicted) ** 2
    scores = loss.loss_scores(None, expected, predicted)
    np.testing.assert_allclose(scores.numpy(), rows, rtol=1e-6)
    scores = loss.loss_scores(None, expected, predicted, weight)
    np.testing.assert_allclose(scores.numpy(), rows * weight[:, None], rtol=1e-6)


# Options of the original with their defaults, inputs that must be fed, outputs.
ORIGINAL = {
    "axpy": ({}, ["X1", "X2", "alpha"], ["Y"]),
    "axpyw": ({}, ["X1", "X2", "G", "alpha", "beta"], ["Y", "Z"]),
    "axpyw2": ({}, ["X1", "X2", "G", "alpha", "beta"], ["Y", "Z"]),
    "copy": ({}, ["X"], ["Y"]),
    "zero": ({}, ["X"], ["Y"]),
    "square_error": ({}, ["X1", "X2"], ["Y"]),
    "grad_square_error": ({}, ["X1", "X2"], ["Y_grad"]),
    "linear_regression": ({}, ["X", "A", "B"], ["Y"]),
    "grad_loss_square_error": ({"multiply": 2}, ["X1", "X2"], ["Y", "Y_grad"]),
    "grad_loss_absolute_error": ({}, ["X1", "X2"], ["Y", "Y_grad"]),
    "grad_loss_elastic_error": (
        {"l1_weight": 0.01, "l2_weight": 0.01}, ["X1", "X2"], ["Y", "Y_grad"],
    ),
    "grad_sigmoid_neg_log_loss_error": ({"eps": 1e-5}, ["X1", "X2"], ["Y", "Y_grad"]),
    "grad_penalty_elastic_error": (
        {"l1_weight": 0.01, "l2_weight": 0.01}, ["X"], ["Y", "Y_grad"],
    ),
    "n_penalty_elastic_error": (
        {"l1_weight": 0.01, "l2_weight": 0.01, "n_tensors": 1, "loss_shape": (1, 1)},
        ["loss", "W0"], ["Y"],
    ),
    "update_penalty_elastic_error": ({"l1": 1e-4, "l2": 1e-4}, ["X"], ["Y"]),
}  # fmt: skip


def run(model, feeds):
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, feeds)


@pytest.mark.parametrize("name", ORIGINAL)
def test_function_has_the_original_options(name):
    options, inputs, outputs = ORIGINAL[name]
    plain = function_onnx_graph(name)
    assert [value.name for value in plain.graph.input] == inputs
    assert [value.name for value in plain.graph.output] == outputs
    assert function_onnx_graph(name, **options) == plain  # the defaults
    for option, value in options.items():
        if isinstance(value, float):
            assert function_onnx_graph(name, **{option: value + 0.25}) != plain


def test_losses_are_of_shape_1_and_weights_optional():
    two = {"X1": Y, "X2": X[:, :1]}
    rows = (Y - X[:, :1]) ** 2
    weights = np.linspace(0, 2, 30, dtype=np.float32)
    for name in ("square_error", "grad_loss_square_error"):
        model = function_onnx_graph(name, weight_name="weight")
        found = run(model, two)[0]
        assert found.shape == (1,)
        np.testing.assert_allclose(found, [rows.sum()], rtol=1e-5)
        np.testing.assert_allclose(
            run(model, {**two, "weight": weights})[0], [(rows[:, 0] * weights).sum()], rtol=1e-5
        )
    half, slope = run(function_onnx_graph("grad_loss_square_error", multiply=1), two)
    np.testing.assert_allclose(half, [rows.sum() / 2], rtol=1e-5)
    np.testing.assert_allclose(slope, X[:, :1] - Y, rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_penalty_takes_a_loss_of_any_shape(shape):
    model = function_onnx_graph(
        "n_penalty_elastic_error", n_tensors=2, loss_shape=None, l1_weight=0.1, l2_weight=0.2
    )
    found = run(model, {"loss": np.full(shape, 3, np.float32), "W0": X, "W1": Y[:, 0]})[0]
    size = np.abs(X).sum() + np.abs(Y).sum()
    squares = (X**2).sum() + (Y**2).sum()
    assert found.shape == (1,)
    np.testing.assert_allclose(found, [3 + 0.1 * size + 0.2 * squares], rtol=1e-5)


def test_update_of_the_penalty():
    w = np.array([[1, -2, 0]], np.float32)
    found = run(function_onnx_graph("update_penalty_elastic_error"), {"X": w})[0]
    np.testing.assert_allclose(found, w * (1 - 2e-4) - 1e-4 * np.sign(w), rtol=1e-6)


def stock(array):
    from onnxruntime import OrtValue

    return OrtValue.ortvalue_from_numpy(array)


def test_stock_bool_values():
    bits = np.array([True, False, True])
    for value in (stock(bits), stock(bits)._ortvalue):
        found = array_of(value)
        assert found.dtype == np.bool_
        np.testing.assert_array_equal(found, bits)
    onx = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        chosen (bool[N, 1] c, float[N, 2] x) => (float[N, 1] y)
        <float[2, 1] W = {1, 1}, float zero = {0}>
        { p = MatMul(x, W)
          y = Where(c, p, zero) }""")
    passes = OrtGradientForwardBackward(onx, ["W"]).new_instance()
    chosen = np.array([[True], [False], [True]])
    found = passes.forward([stock(chosen), X[:3], np.ones((2, 1), np.float32)])
    expected = np.where(chosen, X[:3].sum(1, keepdims=True), 0)
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-6)


def stock_vector(*arrays):
    from onnxruntime.capi._pybind_state import OrtValueVector as StockVector

    values = [stock(array) for array in arrays]
    vector = StockVector()
    for value in values:
        vector.push_back(value._ortvalue)
    return vector, arrays


def test_stock_values_are_changed_in_place():
    rate = LearningRateSGDNesterov(0.1, momentum=0.5, nesterov=False)
    rate.build_onnx_function(17, None, 1)
    rate.init_learning_rate()
    for view in (lambda value: value, lambda value: value._ortvalue):
        weight = stock(np.ones((2, 1), np.float32))
        velocity = stock(np.full((2, 1), 2, np.float32))
        slope = stock(np.full((2, 1), 3, np.float32))
        rate.update_weights(0, None, view(weight), view(slope), 1, view(velocity))
        np.testing.assert_allclose(velocity.numpy(), np.full((2, 1), 0.5 * 2 - 0.3), rtol=1e-6)
        np.testing.assert_allclose(weight.numpy(), np.full((2, 1), 1 + 0.7), rtol=1e-6)


def test_stock_values_as_cache():
    passes = OrtGradientForwardBackward(linear(), ["W", "b"]).new_instance()
    inputs = [X, np.ones((2, 1), np.float32), np.zeros(1, np.float32)]
    cache, memory = stock_vector(np.zeros((30, 1), np.float32))
    found = passes.forward(inputs, forward_outputs_cache=cache)
    assert found is cache
    np.testing.assert_allclose(memory[0], X.sum(1, keepdims=True), rtol=1e-5)
    lists = [stock(np.zeros((30, 1), np.float32))]
    passes.forward(inputs, forward_outputs_cache=lists)
    np.testing.assert_allclose(lists[0].numpy(), memory[0])
    small, _ = stock_vector(np.zeros((3, 1), np.float32))
    with pytest.raises(
        TypeError, match=r"float32 \[3, 1\] at position 0, expected float32 \[30, 1\]"
    ):
        passes.forward(inputs, forward_outputs_cache=small)


def test_memory_that_is_read_only_is_named():
    rate = LearningRateSGD(0.1)
    rate.build_onnx_function(17, None, 1)
    rate.init_learning_rate()
    weight = np.ones(2, np.float32)
    weight.flags.writeable = False
    with pytest.raises(TypeError, match=r"ndarray float32 \[2\] is read-only"):
        rate.update_weights(0, None, weight, np.ones(2, np.float32), 1)
    assert len(OrtValueVector([weight])) == 1
