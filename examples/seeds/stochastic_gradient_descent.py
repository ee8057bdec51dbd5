"""Stochastic gradient descent on a simple function, then on a network of scikit-learn.

What it shows, step by step: a function as ONNX; its gradient; a square loss; the gradient of the
loss; training with the loss in the graph; training with forward and backward passes; a multi-layer
perceptron; Nesterov's momentum; a profile; the graphs as files.

    python examples/seeds/stochastic_gradient_descent.py [folder]
"""

import pprint
import time
import warnings
from pathlib import Path

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
from onnxgrad.compat.onnxruntime import get_device
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
MAX_ITER, BATCH_SIZE = 100, 15
# Text that the trained objects print, with the rate after 100 epochs at the end.
RATE = "LearningRateSGD(eta0={eta0}, alpha=0.0001, power_t=0.25, learning_rate='invscaling')"
REPR_WITH_LOSS = (
    "OrtGradientOptimizer(model_onnx='ir_version...', weights_to_train=['init', 'init_1', "
    "'init_b10'], loss_output_name='loss', max_iter=100, training_optimizer_name='SGDOptimizer', "
    "batch_size=5, learning_rate=" + RATE.format(eta0=0.1) + ", value=0.03162277660168379, "
    "device='cpu', warm_start=False, verbose=0, validation_every=10, saved_gradient=None, "
    "sample_weight_name='weight')"
)
PASSES = (
    "OrtGradientForwardBackwardOptimizer(model_onnx='ir_version...', weights_to_train={weights}, "
    "loss_output_name='loss', max_iter=100, training_optimizer_name='SGDOptimizer', "
    "batch_size={batch}, learning_rate={rate}, value={value}, device='cpu', warm_start=False, "
    "verbose=0, validation_every=10, learning_loss=SquareLearningLoss(), enable_logging=False, "
    "weight_name=None, learning_penalty=NoLearningPenalty(), exc=True)"
)
REPR_WITH_PASSES = PASSES.format(
    weights=WEIGHTS, batch=2, rate=RATE.format(eta0=0.1), value=0.03162277660168379
)
SHORTENED = '"[\'I0_coeff...]"'
REPR_NETWORK = PASSES.format(
    weights=SHORTENED, batch=15, rate=RATE.format(eta0=5e-05), value=1.5811388300841898e-05
)
NESTEROV = RATE.format(eta0=1e-05).replace("SGD(", "SGDNesterov(")
NESTEROV = NESTEROV.removesuffix(")") + ", momentum=0.9, nesterov=True)"
REPR_NESTEROV = PASSES.format(
    weights=SHORTENED, batch=15, rate=NESTEROV, value=3.162277660168379e-06
)
SAVED = {
    "learning_rate": {"axpyw_onnx_": "LRateSGDNesterov.learning_rate.axpyw_onnx_.onnx"},
    "learning_loss": {
        "loss_grad_onnx_": "SquareLLoss.learning_loss.loss_grad_onnx_.onnx",
        "loss_score_onnx_": "SquareLLoss.learning_loss.loss_score_onnx_.onnx",
    },
    "learning_penalty": {},
}


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
    return fct.to_onnx()


def show_gradient(onx, folder):
    section("Gradient: retropropagation")
    grad = onnx_derivative(onx)
    save(plot_onnxs(grad, title="gradient"), folder / "gradient.png")
    print(onnx_text_plot_io(grad))
    assert [i.name for i in grad.graph.input] == ["x", *WEIGHTS, "y_grad"]
    assert [o.name for o in grad.graph.output] == ["x_grad", *(f"{w}_grad" for w in WEIGHTS)]
    renamed = onnx_rename_names(grad)
    print(onnx_simple_text_plot(renamed))
    print(sorted({n.op_type for n in grad.graph.node}))
    assert {n.domain for n in grad.graph.node} == {""}


def show_loss(onx, folder):
    section("Add a square loss")
    onx_loss = add_loss_output(onx)
    save(plot_onnxs(onx_loss, title="with a loss"), folder / "loss.png")
    print(onnx_simple_text_plot(onx_loss))
    assert [i.name for i in onx_loss.graph.input] == ["x", "label"]
    assert [o.name for o in onx_loss.graph.output] == ["loss", "y"]

    section("The loss alone")
    onx_loss_only = select_model_inputs_outputs(onx_loss, outputs=["loss"])
    print(onnx_simple_text_plot(onx_loss_only))
    assert [o.name for o in onx_loss_only.graph.output] == ["loss"]
    return onx_loss, onx_loss_only


def show_gradient_of_loss(onx_loss_only, folder):
    section("Gradient again: loss and retropropagation")
    grad_loss = onnx_rename_names(
        onnx_derivative(
            onx_loss_only, options=DerivativeOptions.FillGrad | DerivativeOptions.KeepOutputs
        )
    )
    save(plot_onnxs(grad_loss, title="gradient of the loss"), folder / "gradient_loss.png")
    print(onnx_simple_text_plot(grad_loss))
    assert [i.name for i in grad_loss.graph.input] == ["x", "label", *WEIGHTS]
    gradients = [f"{name}_grad" for name in ("x", "label", *WEIGHTS)]
    assert [o.name for o in grad_loss.graph.output] == [*gradients, "loss"]

    section("The gradient by numbers")
    x = POINTS
    y = fct(x)
    print(x, y, sep="\n")
    oinf = OnnxInference(grad_loss, runtime="onnxruntime1")
    init = numpy.array([[2, 3]], dtype=numpy.float32)
    init_1 = numpy.array([[0.5, 0.33333]], dtype=numpy.float32)
    init_b10 = numpy.array([1], dtype=numpy.float32)
    result = oinf.run({"x": x, "label": y, "init": init, "init_1": init_1, "init_b10": init_b10})
    pprint.pprint(result)
    assert sorted(result) == sorted(PRINTED)
    for name, value in PRINTED.items():
        numpy.testing.assert_allclose(result[name], value, rtol=2e-6, err_msg=name)


def train_with_loss(onx, onx_loss, folder):
    section("TrainingSession")
    X = numpy.random.randn(100, 2).astype(numpy.float32) / 10
    y = fct(X) + (numpy.random.randn(100, 1) / 1000).astype(numpy.float32)
    print(X.shape, y.shape)
    print(onnx_simple_text_plot(onx))
    train_session = OrtGradientOptimizer(
        onx_loss, WEIGHTS, learning_rate=1e-1, batch_size=5, max_iter=100
    )
    print(train_session.fit(X, y))
    assert repr(train_session) == REPR_WITH_LOSS
    print(train_session.trained_coef_)
    print(train_session.train_losses_[-5:])
    assert train_session.train_losses_[-1] < 0.02  # the original: 0.0032
    plot_losses({"loss": train_session.train_losses_}, folder / "losses_session.png",
                "OrtGradientOptimizer", logy=False)  # fmt: skip
    return X, y


def train_with_passes(onx, X, y, folder):
    section("Forward backward: TrainingAgent")
    train_session = OrtGradientForwardBackwardOptimizer(
        onx, WEIGHTS, learning_rate=1e-1, batch_size=2, max_iter=100
    )
    print(train_session.fit(X, y))
    assert repr(train_session) == REPR_WITH_PASSES
    print(train_session.train_losses_[-5:])
    assert train_session.train_losses_[-1] < 2e-3  # the original: 0.0003
    plot_losses({"loss": train_session.train_losses_}, folder / "losses_passes.png",
                "OrtGradientForwardBackwardOptimizer", logy=False)  # fmt: skip
    print({name: type(value).__name__ for name, value in train_session.trained_coef_.items()})
    print({k: v.numpy() for k, v in train_session.trained_coef_.items()})

    section("The trained model")
    trained_onx = train_session.get_trained_onnx()
    print(onnx_simple_text_plot(trained_onx))
    predicted = OnnxInference(trained_onx).run({"x": X})["y"]
    print("predicted", predicted[:5].ravel())
    print("expected ", y[:5].ravel())
    assert numpy.abs(predicted - y).max() < 0.3


def make_network():
    section("MLPRegressor")
    print("device", get_device())
    X, y = make_regression(1000, n_features=100, bias=2, random_state=0)
    X, y = X.astype(numpy.float32), y.astype(numpy.float32)
    X_train, _, y_train, _ = train_test_split(X, y, random_state=0)
    nn = MLPRegressor(
        hidden_layer_sizes=(50, 10), max_iter=MAX_ITER, solver="sgd", learning_rate_init=5e-5,
        n_iter_no_change=MAX_ITER * 3, batch_size=BATCH_SIZE, learning_rate="invscaling",
        momentum=0.9, nesterovs_momentum=True, power_t=0.5, random_state=0,
    )  # fmt: skip
    seconds = timed("scikit-learn", nn, X_train, y_train)
    onx = onnx_rename_weights(to_onnx(nn, X_train[:1], target_opset=15))
    print([init.name for init in onx.graph.initializer])
    return nn, onx, X_train, y_train, seconds


def timed(name, model, X, y):
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    seconds = time.perf_counter() - start
    print(f"{name}: fit takes {seconds:.3f} s")
    return seconds


def train_network(folder):
    nn, onx, X_train, y_train, seconds = make_network()
    train_session = OrtGradientForwardBackwardOptimizer(
        onx, device="cpu", learning_rate=5e-5, warm_start=False, max_iter=MAX_ITER,
        batch_size=BATCH_SIZE,
    )  # fmt: skip
    own = timed("OrtGradientForwardBackwardOptimizer", train_session, X_train, y_train)
    print(f"{seconds / own:.1f} times as fast as scikit-learn")
    print(train_session)
    assert repr(train_session) == REPR_NETWORK
    assert train_session.train_losses_[-1] < 0.05 * train_session.train_losses_[0]
    # scikit-learn's loss is half of the square.
    curves = {"skl_loss": nn.loss_curve_, "ort_loss": train_session.train_losses_}
    plot_losses(curves, folder / "losses_network.png", "MLPRegressor 100-50-10-1")

    section("Not exactly the same: Nesterov")
    train_session2 = OrtGradientForwardBackwardOptimizer(
        onx, device="cpu", warm_start=False, max_iter=MAX_ITER, batch_size=BATCH_SIZE,
        learning_rate=LearningRateSGDNesterov(1e-5, nesterov=True, momentum=0.9),
    )  # fmt: skip
    own = timed("with Nesterov's momentum", train_session2, X_train, y_train)
    print(f"{seconds / own:.1f} times as fast as scikit-learn")
    print(train_session2)
    assert repr(train_session2) == REPR_NESTEROV
    assert train_session2.train_losses_[-1] < 0.05 * train_session2.train_losses_[0]
    curves["ort_loss2"] = train_session2.train_losses_
    plot_losses(curves, folder / "losses_nesterov.png", "MLPRegressor 100-50-10-1")
    return train_session2, X_train, y_train


def show_profile_and_files(trainer, X, y, folder):
    section("Profiling")

    def clean_name(text):
        for word in ("examples", "onnxgrad", "onnxruntime", "sklearn", "site-packages", "python3."):
            if word in text:
                return text[text.index(word) :]
        return text

    ps = profile(lambda: trainer.fit(X, y))[0]
    root, _ = profile2graph(ps, clean_text=clean_name)
    print("\n".join(root.to_text().splitlines()[:20]))
    print("\n".join(root.to_text(with_file=False).splitlines()[:20]))

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
    assert Path(saved["model_onnx"]).name == "GradFBOptimizer.model_onnx.onnx"
    assert Path(saved["zero_onnx_"]).name == "GradFBOptimizer.zero_onnx_.onnx"
    for key, name in SAVED.items():
        assert {k: Path(v).name for k, v in saved[key].items()} == name
    assert [*saved["train_function_"]] == ["_trained_onnx", "_optimized_pre_grad_model"]
    graph = trainer.learning_rate.axpyw_onnx_
    save(plot_onnxs(graph, title="Nesterov's update"), folder / "update.png")


def main():
    folder = begin()
    onx = show_function(folder)
    show_gradient(onx, folder)
    onx_loss, onx_loss_only = show_loss(onx, folder)
    show_gradient_of_loss(onx_loss_only, folder)
    X, y = train_with_loss(onx, onx_loss, folder)
    train_with_passes(onx, X, y, folder)
    show_profile_and_files(*train_network(folder), folder)


if __name__ == "__main__":
    main()
