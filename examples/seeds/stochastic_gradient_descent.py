"""Stochastic gradient descent on a simple function, then on a network of scikit-learn.

What it shows, step by step: a function as ONNX; its gradient; a square loss; the gradient of the
loss; training with the loss in the graph; training with forward and backward passes; a multi-layer
perceptron; Nesterov's momentum; a profile; the graphs as files.

    python examples/seeds/stochastic_gradient_descent.py [folder]
"""

import pprint
import time
import warnings

import numpy
from common import begin, plot_losses, save, section
from skl2onnx import to_onnx
from sklearn.datasets import make_regression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor

import onnxgrad
from onnxgrad.compat.mlprodict.numpy import NDArray, onnxnumpy_default
from onnxgrad.compat.mlprodict.onnx_tools.onnx_manipulations import (
    onnx_rename_names,
    select_model_inputs_outputs,
)
from onnxgrad.compat.mlprodict.onnxrt import OnnxInference
from onnxgrad.compat.mlprodict.plotting.text_plot import onnx_simple_text_plot, onnx_text_plot_io
from onnxgrad.compat.onnxcustom.plotting.plotting_onnx import plot_onnxs
from onnxgrad.compat.onnxcustom.training.grad_helper import DerivativeOptions, onnx_derivative
from onnxgrad.compat.onnxcustom.training.optimizers import OrtGradientOptimizer
from onnxgrad.compat.onnxcustom.training.optimizers_partial import (
    OrtGradientForwardBackwardOptimizer,
)
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import LearningRateSGDNesterov
from onnxgrad.compat.onnxcustom.utils.onnx_helper import onnx_rename_weights
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import add_loss_output
from onnxgrad.compat.pyquickhelper.pycode.profiling import profile, profile2graph

POINTS = numpy.array([[0, 0], [1, 0], [0, 1], [1, 1], [2, 2]], dtype=numpy.float32)
PRINTED = {
    "init_1_grad": [[109.333244, 102.666565]],
    "init_b10_grad": [76.6666],
    "init_grad": [[193.33316, 186.66649]],
    "label_grad": [[-4], [-12], [-5.33332], [-13.333321], [-41.99996]],
    "loss": [[532.5546]],
    "x_grad": [
        [2, 1.33332],
        [54, 3.99996],
        [2.66666, 33.777676],
        [59.999943, 84.44432],
        [356.99966, 517.9994],
    ],
}
WEIGHTS = ["init", "init_1", "init_b10"]


@onnxnumpy_default
def fct(x: NDArray[(None, 2), numpy.float32]) -> NDArray[(None, 1), numpy.float32]:
    coef_x = numpy.array([[-2, 3]], dtype=numpy.float32)
    coef_x2 = numpy.array([[0.5, -0.33333]], dtype=numpy.float32)
    bias = numpy.array([-1], dtype=numpy.float32)
    poly = x * coef_x + x * x * coef_x2
    y = poly[:, 0] + poly[:, 1] + bias
    return y.reshape((-1, 1))


def show_function(folder):
    section("A simple problem")
    y = fct(POINTS)
    print(y)
    numpy.testing.assert_allclose(
        y.ravel(), [-1, -2.5, 1.6666701, 0.16667008, 1.6666799], rtol=1e-6
    )
    print(onnx_simple_text_plot(fct.to_onnx()))
    save(plot_onnxs(fct.to_onnx(), title="fct"), folder / "function.png")
    return fct.to_onnx(), y


def show_gradient(onx, folder):
    section("Gradient: retropropagation")
    grad = onnx_derivative(onx)
    print(onnx_text_plot_io(grad))
    assert [o.name for o in grad.graph.output] == ["x_grad", *(f"{w}_grad" for w in WEIGHTS)]
    save(plot_onnxs(grad, title="gradient"), folder / "gradient.png")
    renamed = onnx_rename_names(grad)
    print(onnx_simple_text_plot(renamed))
    print(sorted({n.op_type for n in grad.graph.node}))
    assert {n.domain for n in grad.graph.node} == {""}


def show_loss(onx, y, folder):
    section("Add a square loss")
    onx_loss = add_loss_output(onx)
    print(onnx_text_plot_io(onx_loss))
    save(plot_onnxs(onx_loss, title="with a loss"), folder / "loss.png")
    onx_loss_only = select_model_inputs_outputs(onx_loss, outputs=["loss"])

    section("Gradient again: loss and retropropagation")
    grad_loss = onnx_rename_names(
        onnx_derivative(
            onx_loss_only, options=DerivativeOptions.FillGrad | DerivativeOptions.KeepOutputs
        )
    )
    print(onnx_text_plot_io(grad_loss))
    oinf = OnnxInference(grad_loss, runtime="onnxruntime1")
    result = oinf.run(
        {
            "x": POINTS,
            "label": y,
            "init": numpy.array([[2, 3]], dtype=numpy.float32),
            "init_1": numpy.array([[0.5, 0.33333]], dtype=numpy.float32),
            "init_b10": numpy.array([1], dtype=numpy.float32),
        }
    )
    pprint.pprint(result)
    for name, value in PRINTED.items():
        numpy.testing.assert_allclose(result[name], value, rtol=2e-6, err_msg=name)
    return onx_loss


def train_function(onx, onx_loss, folder):
    section("TrainingSession")
    X = numpy.random.randn(100, 2).astype(numpy.float32) / 10
    y = fct(X) + (numpy.random.randn(100, 1) / 1000).astype(numpy.float32)
    train_session = OrtGradientOptimizer(
        onx_loss, WEIGHTS, learning_rate=1e-1, batch_size=5, max_iter=100
    )
    print(train_session.fit(X, y))
    assert "value=0.03162277660168379" in repr(train_session)
    print(train_session.trained_coef_)
    print(train_session.train_losses_[-5:])
    assert train_session.train_losses_[-1] < 0.02

    section("Forward backward")
    partial = OrtGradientForwardBackwardOptimizer(
        onx, WEIGHTS, learning_rate=1e-1, batch_size=2, max_iter=100
    )
    print(partial.fit(X, y))
    print(partial.train_losses_[-5:])
    print({k: v.numpy() for k, v in partial.trained_coef_.items()})
    assert partial.train_losses_[-1] < 2e-3
    trained_onx = partial.get_trained_onnx()
    predicted = OnnxInference(trained_onx).run({"x": X})["y"]
    print("predicted", predicted[:5].ravel(), "expected", y[:5].ravel())
    assert numpy.abs(predicted - y).max() < 0.3
    curves = {"loss in the graph": train_session.train_losses_, "passes": partial.train_losses_}
    plot_losses(curves, folder / "losses_function.png", "a function of two variables")


def train_network(folder):
    section("MLPRegressor")
    X, y = make_regression(1000, n_features=100, bias=2, random_state=0)
    X, y = X.astype(numpy.float32), y.astype(numpy.float32)
    X_train, _, y_train, _ = train_test_split(X, y, random_state=0)
    batch_size, max_iter = 15, 100
    nn = MLPRegressor(
        hidden_layer_sizes=(50, 10), max_iter=max_iter, solver="sgd", learning_rate_init=5e-5,
        n_iter_no_change=max_iter * 3, batch_size=batch_size, learning_rate="invscaling",
        momentum=0.9, nesterovs_momentum=True, power_t=0.5, random_state=0,
    )  # fmt: skip
    times = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        nn.fit(X_train, y_train)
        times["scikit-learn"] = time.perf_counter() - start
    onx = onnx_rename_weights(to_onnx(nn, X_train[:1], target_opset=15))
    onx_loss = add_loss_output(onx)
    trainers = {
        "OrtGradientOptimizer": OrtGradientOptimizer(
            onx_loss, [i.name for i in onx.graph.initializer if "shape" not in i.name],
            learning_rate=5e-5, max_iter=max_iter, batch_size=batch_size,
        ),
        "forward backward": OrtGradientForwardBackwardOptimizer(
            onx, device="cpu", learning_rate=5e-5, warm_start=False, max_iter=max_iter,
            batch_size=batch_size,
        ),
        "Nesterov": OrtGradientForwardBackwardOptimizer(
            onx, device="cpu", warm_start=False, max_iter=max_iter, batch_size=batch_size,
            learning_rate=LearningRateSGDNesterov(1e-5, nesterov=True, momentum=0.9),
        ),
    }  # fmt: skip
    curves = {"scikit-learn (half of the square)": nn.loss_curve_}
    for name, trainer in trainers.items():
        start = time.perf_counter()
        trainer.fit(X_train, y_train)
        times[name] = time.perf_counter() - start
        curves[name] = trainer.train_losses_
        print(trainer)
        assert trainer.train_losses_[-1] < 0.05 * trainer.train_losses_[0]
    plot_losses(curves, folder / "losses_network.png", "MLPRegressor 100-50-10-1")
    for name, seconds in times.items():
        faster = times["scikit-learn"] / seconds
        print(f"{name:24} {seconds:7.3f} s, {faster:5.1f} times scikit-learn's speed")
    return trainers["Nesterov"], X_train, y_train


def show_profile_and_files(trainer, X, y, folder):
    section("Profiling")

    def clean_name(text):
        for word in ("onnxgrad", "onnxruntime", "sklearn", "site-packages"):
            if word in text:
                return text[text.index(word) :]
        return text

    ps = profile(lambda: trainer.fit(X, y))[0]
    root, _ = profile2graph(ps, clean_text=clean_name)
    text = root.to_text(with_file=False)
    print("\n".join(text.splitlines()[:40]))

    section("Profiling: the engine's kernels")
    session = onnxgrad.TrainingSession(trainer.model_onnx, "squared_error", "nesterov")
    session.lr = 1e-5
    with session.profiling() as kernels:
        onnxgrad.Trainer(session).fit(X, y, epochs=10, batch_size=15, verbose=0)
    print(kernels)
    assert kernels.kernels[0].calls == 10 * 50

    section("The graphs as files")
    saved = trainer.save_onnx_graph(str(folder))
    pprint.pprint(saved)
    assert saved["learning_penalty"] == {}
    assert [*saved["train_function_"]] == ["_trained_onnx", "_optimized_pre_grad_model"]
    graph = trainer.learning_rate.axpyw_onnx_
    save(plot_onnxs(graph, title="Nesterov's update"), folder / "update.png")


def main():
    folder = begin()
    onx, y = show_function(folder)
    show_gradient(onx, folder)
    onx_loss = show_loss(onx, y, folder)
    train_function(onx, onx_loss, folder)
    show_profile_and_files(*train_network(folder), folder)


if __name__ == "__main__":
    main()
