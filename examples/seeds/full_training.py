"""A linear regression trained with OrtGradientOptimizer: elastic loss, penalty, weights of rows.

The loss is 0.1 |d| + 0.9 d^2 with 0.01 |coef|^2 added; scikit-learn finds the same coefficients.
Then the same trainer by other optimizers and with momentum, which the original did not have.

    python examples/seeds/full_training.py [folder]
"""

import numpy
import onnx
from common import begin, plot_losses, save, section
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import make_regression
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split

import onnxgrad
from onnxgrad.compat.onnxcustom.plotting.plotting_onnx import plot_onnxs
from onnxgrad.compat.onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import (
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import add_loss_output


def linear_model(features):
    """Y = X coef + intercept, with zeros as weights."""
    nodes = [
        helper.make_node("MatMul", ["X", "coef"], ["product"]),
        helper.make_node("Add", ["product", "intercept"], ["variable"]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, features])],
        [helper.make_tensor_value_info("variable", TensorProto.FLOAT, [None, 1])],
        [
            numpy_helper.from_array(numpy.zeros((features, 1), numpy.float32), "coef"),
            numpy_helper.from_array(numpy.zeros(1, numpy.float32), "intercept"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def check_loss(onx_loss, X, y, w):
    """The loss in the graph is the formula, computed by NumPy."""
    feeds = {"X": X[:20], "label": y[:20, None], "weight": w[:20]}
    found = onnxgrad.InferenceSession(onx_loss).run(["loss"], feeds)[0]
    d = -y[:20].astype(numpy.float64)
    expected = numpy.sum(w[:20] * (0.1 * numpy.abs(d) + 0.9 * d**2))
    print("loss", found.item(), "by NumPy", expected)
    numpy.testing.assert_allclose(found, [[expected]], rtol=1e-5)


def main():
    folder = begin()
    section("Model and loss")
    X, y = make_regression(1000, n_features=10, bias=2, noise=1, random_state=0)
    X, y = X.astype(numpy.float32), y.astype(numpy.float32)
    w = numpy.random.uniform(0.5, 1.5, len(y)).astype(numpy.float32)
    X_train, X_test, y_train, y_test, w_train, _ = train_test_split(X, y, w, random_state=0)
    onx_loss = add_loss_output(
        linear_model(10), weight_name="weight", score_name="elastic", l1_weight=0.1,
        l2_weight=0.9, penalty={"coef": {"l2": 0.01}},
    )  # fmt: skip
    onnx.checker.check_model(onx_loss, full_check=True)
    save(plot_onnxs(onx_loss, title="elastic loss with a penalty"), folder / "loss.png")
    check_loss(onx_loss, X, y, w)

    section("Training")
    train_session = OrtGradientOptimizer(
        onx_loss, ["intercept", "coef"], learning_rate=0.2, max_iter=100
    )
    train_session.fit(X_train, y_train, w_train, X_val=X_test, y_val=y_test)
    print(train_session)
    state_tensors = train_session.get_state()
    losses = train_session.train_losses_
    print("losses", [round(loss, 3) for loss in losses[::20]])
    print("validation", [round(loss, 3) for loss in train_session.validation_losses_])
    reference = LinearRegression().fit(X_train, y_train, w_train)
    print("onnxgrad    ", state_tensors["coef"].ravel().round(2), state_tensors["intercept"])
    print("scikit-learn", reference.coef_.round(2), reference.intercept_)
    numpy.testing.assert_allclose(state_tensors["coef"].ravel(), reference.coef_, atol=0.5)
    assert losses[-1] < 0.05 * losses[0]  # the penalty on these coefficients is 24 a row

    section("Other optimizers")
    curves = {"SGDOptimizer": losses}
    for name, rate in (("AdamOptimizer", 1.0), ("LambOptimizer", 0.1), ("rmsprop", 1.0)):
        trainer = OrtGradientOptimizer(
            onx_loss, ["intercept", "coef"], training_optimizer_name=name, max_iter=100,
            learning_rate=LearningRateSGD(rate * 10),
        ).fit(X_train, y_train, w_train)  # fmt: skip
        curves[name] = trainer.train_losses_
        print(f"{name:15} {trainer.train_losses_[-1]:8.4f}")
        assert trainer.train_losses_[-1] < 0.1 * trainer.train_losses_[0]
    trainer = OrtGradientOptimizer(
        onx_loss, ["intercept", "coef"], max_iter=100,
        learning_rate=LearningRateSGDNesterov(0.01, momentum=0.9),
    ).fit(X_train, y_train, w_train)  # fmt: skip
    curves["Nesterov"] = trainer.train_losses_
    print(f"{'Nesterov':15} {trainer.train_losses_[-1]:8.4f}")
    assert trainer.train_losses_[-1] < 0.05 * trainer.train_losses_[0]
    plot_losses(curves, folder / "losses.png", "linear regression")


if __name__ == "__main__":
    main()
