"""Training step by step the same as scikit-learn, from equal weights over equal batches."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from sklearn.datasets import load_digits, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.neural_network._stochastic_optimizers import SGDOptimizer

import onnxgrad as og
from support import initializers

EPOCHS = 4
BATCH = 30
LR = 0.01


def exported(network, dtype):
    """The network with its current weights as ONNX: MatMul, Add, Relu; scores as output."""
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, weights, value = [], [], "X"
    layers = list(zip(network.coefs_, network.intercepts_, strict=True))
    for i, (coefs, intercepts) in enumerate(layers):
        for name, array in ((f"W{i}", coefs), (f"b{i}", intercepts)):
            weights.append(numpy_helper.from_array(np.array(array, dtype), name))
        out = "Y" if i == len(layers) - 1 else f"a{i}"
        nodes.append(onnx.helper.make_node("MatMul", [value, f"W{i}"], [f"m{i}"]))
        nodes.append(onnx.helper.make_node("Add", [f"m{i}", f"b{i}"], [out]))
        if out != "Y":
            nodes.append(onnx.helper.make_node("Relu", [out], [f"h{i}"]))
            value = f"h{i}"
    shapes = (network.coefs_[0].shape[0], network.coefs_[-1].shape[1])
    infos = [
        onnx.helper.make_tensor_value_info(name, element, [None, size])
        for name, size in zip("XY", shapes, strict=True)
    ]
    graph = onnx.helper.make_graph(nodes, "mlp", infos[:1], infos[1:], weights)
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


def continued(kind, X, y, **options):
    """(ONNX model of the weights before, network after EPOCHS epochs in order of the rows)."""
    network = kind(
        hidden_layer_sizes=(20, 10),
        batch_size=BATCH,
        epsilon=1e-200,
        learning_rate_init=LR,
        max_iter=1,
        n_iter_no_change=10**6,
        random_state=0,
        shuffle=False,
        warm_start=True,
        **{"alpha": 0.0, **options},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(X, y)
        model = exported(network, X.dtype)
        del network._optimizer  # a fresh state, as ours
        network.loss_curve_ = []
        network.t_ = 0
        network.max_iter = EPOCHS
        network.fit(X, y)
    return model, network


def assert_same(trainer, network, loss_factor, rtol):
    found = initializers(trainer.trained_model())
    scale = max(np.abs(w).max() for w in network.coefs_)
    for i, (coefs, intercepts) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        np.testing.assert_allclose(found[f"W{i}"], coefs, rtol=rtol, atol=rtol * scale)
        np.testing.assert_allclose(found[f"b{i}"], intercepts, rtol=rtol, atol=rtol * scale)
    losses = np.array(trainer.history["train_loss"]) * loss_factor
    np.testing.assert_allclose(losses, network.loss_curve_[-EPOCHS:], rtol=max(rtol, 1e-9))


OPTIMIZERS = {
    "sgd": ({"solver": "sgd", "momentum": 0.0}, lambda lr: og.optimizers.SGD(lr)),
    "momentum": (
        {"solver": "sgd", "momentum": 0.9, "nesterovs_momentum": False},
        lambda lr: og.optimizers.SGD(lr, momentum=0.9),
    ),
    "nesterov": (
        {"solver": "sgd", "momentum": 0.9, "nesterovs_momentum": True},
        lambda lr: og.optimizers.SGD(lr, momentum=0.9, nesterov=True),
    ),
    # scikit-learn adds epsilon elsewhere, so there is none to speak of.
    "adam": ({"solver": "adam"}, lambda lr: og.optimizers.Adam(lr, epsilon=1e-200)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_regressor(optimizer):
    options, make = OPTIMIZERS[optimizer]
    X, y = make_regression(200, 6, noise=1.0, random_state=0)
    y = y / 100
    model, network = continued(MLPRegressor, X, y, **options)
    # scikit-learn's loss is half of the mean of squares; Adam does not see the factor.
    lr = LR if optimizer == "adam" else LR / 2
    trainer = og.Trainer(model, "squared_error", make(lr), threads=1)
    trainer.fit(X, y[:, None], epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(trainer, network, 0.5, 1e-9)


class RateOf(og.callbacks.Callback):
    """Rates of scikit-learn, which fall with the number of rows, after each epoch."""

    def __init__(self, first, power, rows):
        super().__init__()
        self.first, self.power, self.rows = first, power, rows

    def on_epoch_end(self, trainer, logs):
        seen = logs["epoch"] * self.rows
        trainer.session.lr = self.first / (seen + 1) ** self.power


@pytest.mark.parametrize("nesterov", [False, True], ids=["momentum", "nesterov"])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_velocity_that_holds_the_rate_while_it_falls(nesterov, alpha):
    X, y = make_regression(210, 6, noise=1.0, random_state=0)
    y = y / 100
    options = {"learning_rate": "invscaling", "power_t": 0.1, "alpha": alpha}
    model, network = continued(
        MLPRegressor, X, y, solver="sgd", momentum=0.9, nesterovs_momentum=nesterov, **options
    )
    optimizer = og.optimizers.SGD(LR, momentum=0.9, nesterov=nesterov, rate_in_velocity=True)
    trainer = og.Trainer(
        model,
        {"Y": ("squared_error", 0.5)},
        optimizer,
        penalty={"W*": {"l2": alpha / (2 * BATCH)}},
        threads=1,
    )
    trainer.fit(
        X,
        {"Y": y[:, None]},
        epochs=EPOCHS,
        batch_size=BATCH,
        shuffle=False,
        callbacks=[RateOf(LR, 0.1, len(X))],
        verbose=0,
    )
    assert_same(trainer, network, 1.0, 1e-12)


@pytest.mark.parametrize("nesterov", [False, True], ids=["momentum", "nesterov"])
@pytest.mark.parametrize("shape", [(4, 3), (40, 37)], ids=["small", "product"])
def test_velocity_is_that_of_scikit_learns_optimizer(nesterov, shape):
    """Another rate at each step; y = X W + b with the gradient by hand."""
    rng = np.random.default_rng(1)
    W, b = rng.normal(size=shape), rng.normal(size=shape[1])
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    main (double[N, {shape[0]}] X) => (double[N, {shape[1]}] Y)
    {{ product = MatMul(X, W)  Y = Add(product, b) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(
        [numpy_helper.from_array(W.copy(), "W"), numpy_helper.from_array(b.copy(), "b")]
    )
    optimizer = og.optimizers.SGD(0.1, momentum=0.8, nesterov=nesterov, rate_in_velocity=True)
    session = og.TrainingSession(model, "squared_error", optimizer, threads=1)
    reference = SGDOptimizer([W, b], momentum=0.8, nesterov=nesterov)
    for step in range(50):
        X, y = rng.normal(size=(15, shape[0])), rng.normal(size=(15, shape[1]))
        session.lr = reference.learning_rate = 0.1 / (step + 1) ** 0.5
        session.step({"X": X, "label": y})
        error = 2 * (X @ W + b - y) / y.size
        reference.update_params([W, b], [X.T @ error, error.sum(axis=0)])
    state = session.state()
    for found, expected in (("W", W), ("b", b)):
        np.testing.assert_allclose(state[found], expected, rtol=1e-12, atol=1e-12)
    for found, expected in zip("Wb", reference.velocities, strict=True):
        np.testing.assert_allclose(state[f"velocity/{found}"], expected, rtol=1e-12, atol=1e-12)
    with session.profiling() as profile:
        session.step({"X": X, "label": y})
    assert sum("velocity" in kernel.kernel for kernel in profile.kernels) == 2  # one a weight


def test_velocity_needs_momentum():
    with pytest.raises(og.OptionError, match="rate_in_velocity needs a momentum"):
        og.optimizers.SGD(0.1, rate_in_velocity=True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("classes", [2, 10])
def test_classifier(optimizer, classes):
    options, make = OPTIMIZERS[optimizer]
    X, y = load_digits(n_class=classes, return_X_y=True)
    X = X / 16
    model, network = continued(MLPClassifier, X, y, **options)
    loss = "binary_cross_entropy" if classes == 2 else "softmax_cross_entropy"
    trainer = og.Trainer(model, loss, make(LR), threads=1)
    trainer.fit(X, y, epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(trainer, network, 1.0, 1e-9)
    scores = trainer.predict(X)
    predicted = (scores > 0).ravel() if classes == 2 else scores.argmax(axis=1)
    np.testing.assert_array_equal(predicted, network.predict(X))


def test_classifier_in_float32():
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    model, network = continued(MLPClassifier, X, y, solver="sgd", momentum=0.0)
    trainer = og.Trainer(model, "softmax_cross_entropy", og.optimizers.SGD(LR))
    trainer.fit(X, y, epochs=EPOCHS, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(trainer, network, 1.0, 1e-4)
