"""A network of scikit-learn trained further, on a GPU where there is one.

MLPRegressor makes the network and skl2onnx the model; both ways of training start from scratch with
weights drawn anew, first on the device that `get_device` names, otherwise on the CPU.

    python examples/seeds/neural_network.py [folder]
"""

import warnings

import numpy
from common import begin, plot_losses, save, section, skipped
from skl2onnx import to_onnx
from sklearn.datasets import make_regression
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor

import onnxgrad
from onnxgrad.compat.onnxcustom.plotting.plotting_onnx import plot_onnxs
from onnxgrad.compat.onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxgrad.compat.onnxcustom.training.optimizers_partial import (
    OrtGradientForwardBackwardOptimizer,
)
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import LearningRateSGDNesterov
from onnxgrad.compat.onnxcustom.utils.onnx_helper import onnx_rename_weights
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import (
    add_loss_output,
    get_train_initializer,
)
from onnxgrad.compat.onnxruntime import get_device

OPTIONS = {"max_iter": 200, "batch_size": 15}


def make_network():
    section("MLPRegressor")
    X, y = make_regression(1000, n_features=10, bias=2, random_state=0)
    X, y = X.astype(numpy.float32), (y / y.std()).astype(numpy.float32)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    nn = MLPRegressor(
        hidden_layer_sizes=(10, 10), max_iter=200, solver="sgd", learning_rate_init=1e-3,
        batch_size=15, n_iter_no_change=1000, random_state=0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.fit(X_train, y_train)
    print(f"mean squared error {mean_squared_error(y_test, nn.predict(X_test)):.4f}")
    onx = onnx_rename_weights(to_onnx(nn, X_train[:1], target_opset=15))
    weights = get_train_initializer(onx)
    print({name: array.shape for name, (array, _) in weights.items()})
    return nn, onx, X_train, X_test, y_train, y_test


def fit_where_possible(make, X, y):
    """Train on a GPU if there is one; otherwise say so and train on the CPU."""
    try:
        return make("cuda").fit(X, y), "cuda"
    except onnxgrad.DeviceError as error:
        skipped(error)
        return make("cpu").fit(X, y), "cpu"


def main():
    folder = begin()
    nn, onx, X_train, X_test, y_train, y_test = make_network()
    curves = {"scikit-learn (half of the square)": nn.loss_curve_}

    section("The loss in the graph")
    onx_loss = add_loss_output(onx)
    save(plot_onnxs(onx_loss, title="the network with a loss"), folder / "network.png")
    weights = [*get_train_initializer(onx)]
    device = "cuda" if get_device().upper() == "GPU" else "cpu"
    print("device", device)
    trainer = OrtGradientOptimizer(
        onx_loss, weights, device=device, learning_rate=5e-3, **OPTIONS
    ).fit(X_train, y_train)
    curves["OrtGradientOptimizer"] = trainer.train_losses_
    print([float(f"{loss:.4f}") for loss in trainer.train_losses_[::40]])

    section("Forward and backward, a GPU first")
    trainer, device = fit_where_possible(
        lambda device: OrtGradientForwardBackwardOptimizer(
            onx, device=device, learning_rate=LearningRateSGDNesterov(1e-3), **OPTIONS
        ),
        X_train,
        y_train,
    )
    print("trained on", device)
    curves["forward and backward, Nesterov"] = trainer.train_losses_
    predicted = onnxgrad.InferenceSession(trainer.get_trained_onnx()).run(None, {"X": X_test})[0]
    error = mean_squared_error(y_test, predicted.ravel())
    print(f"mean squared error {error:.4f}")
    assert error < 0.2  # the targets have variance 1
    plot_losses(curves, folder / "losses.png", "MLPRegressor 10-10-10-1")


if __name__ == "__main__":
    main()
