"""OrtGradientForwardBackward: forward and backward passes, and a custom training loop.

The loop does what OrtGradientForwardBackwardOptimizer does, one piece at a time: forward, loss and
its gradient, backward, update; on full batches both give the same losses.

    python examples/seeds/forward_backward.py [folder]
"""

import logging
import pickle
import pprint
import sys

import numpy
import onnx
import onnxruntime
from common import begin, plot_losses, save, section
from full_training import linear_model

from onnxgrad.compat.onnxcustom.plotting.plotting_onnx import plot_onnxs
from onnxgrad.compat.onnxcustom.training.data_loader import OrtDataLoader
from onnxgrad.compat.onnxcustom.training.optimizers_partial import (
    OrtGradientForwardBackwardOptimizer,
)
from onnxgrad.compat.onnxcustom.training.ortgradient import (
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardFunction,
)
from onnxgrad.compat.onnxcustom.training.sgd_learning_loss import SquareLearningLoss
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import LearningRateSGD
from onnxgrad.compat.onnxcustom.utils.print_helper import str_ortvalue
from onnxgrad.compat.onnxruntime import OrtValueVector

CLASS_ATTRIBUTES = [
    "__doc__", "__module__", "_run_options", "_sess", "_sess_eval", "_training_agent", "_cache",
    "_logger", "_input_names", "_debug", "_grad_input_names", "_output_names", "_weights_to_train",
    "_bw_fetches_names", "_fw_outputs_device_info", "_bw_outputs_device_info",
    "_fw_no_grad_output_device_info", "_graph_info", "_trained_onnx", "_optimized_pre_grad_model",
    "_graph_builder",
]  # fmt: skip


def show_class(onx, folder):
    section("The class that is made")
    forback = OrtGradientForwardBackward(onx, class_name="LinearPasses", debug=True)
    print(forback)
    cls = forback.cls_type_
    assert cls.__name__ == "LinearPasses"
    assert issubclass(cls, OrtGradientForwardBackwardFunction)
    for name in CLASS_ATTRIBUTES:
        value = getattr(cls, name)
        shown = isinstance(value, str | list | dict | bool) or value is None
        print(f"{name}={value!r}" if shown else f"{name}: {type(value).__name__}")
    print(OrtGradientForwardBackward._repr_helper_(forback, indent=2))
    print(forback._select_initializer_names(onx), end=" ")
    print(forback._provider_name_to_device_type("CPUExecutionProvider"))
    print("coef", str_ortvalue(forback.get_initializer("coef")))
    assert forback.get_initializer("no", exc=False) is None
    save(plot_onnxs(cls._trained_onnx, title="_trained_onnx"), folder / "trained.png")
    title = "_optimized_pre_grad_model"
    save(plot_onnxs(cls._optimized_pre_grad_model, title=title), folder / "pre_grad.png")
    return forback


def show_passes(forback, X):
    section("Passes")
    cls = forback.cls_type_
    weights = [numpy.array([[1.0], [2.0]], numpy.float32), numpy.array([3.0], numpy.float32)]
    function = forback.new_instance()
    print([function.device_name(device) for device in cls._fw_outputs_device_info])
    vector = function.input_to_ort([X[:4], *weights], cls._fw_outputs_device_info, debug=True)
    outputs = function.forward(vector, training=True)
    print("output  ", str_ortvalue(outputs[0]))
    numpy.testing.assert_allclose(outputs[0].numpy(), X[:4] @ weights[0] + 3, rtol=1e-5)
    assert len(function.saved_tensors_) == 1
    seeds = numpy.ones((4, 1), numpy.float32)
    gradients = function.backward([onnxruntime.OrtValue.ortvalue_from_numpy(seeds)])
    for name, value in zip(cls._bw_fetches_names, gradients, strict=True):
        print(f"{name:14}", str_ortvalue(value))
    numpy.testing.assert_allclose(gradients[0].numpy(), seeds @ weights[0].T, rtol=1e-5)
    numpy.testing.assert_allclose(gradients[1].numpy(), X[:4].T @ seeds, rtol=1e-5)
    numpy.testing.assert_allclose(gradients[2].numpy(), [4], rtol=1e-5)
    assert function.saved_tensors_ == []

    section("Two passes open, the last one first")
    first, second = X[:2], X[2:4]
    for rows in (first, second):
        function.forward([rows, *weights], training=True)
    for rows in (second, first):
        gradients = function.backward([seeds[:2]])
        print("coef_grad", str_ortvalue(gradients[1]))
        numpy.testing.assert_allclose(gradients[1].numpy(), rows.T @ seeds[:2], rtol=1e-5)
    inputs = [first]
    function.save_for_backward(inputs)
    inputs.append(second)
    assert len(function.saved_tensors) == 1
    function.forward([first, *weights], training=False)
    assert function.saved_tensors_ == []
    print("a pass with training=False saves nothing")
    again = pickle.loads(pickle.dumps(forback)).new_instance()
    numpy.testing.assert_array_equal(
        again.forward([X[:4], *weights])[0].numpy(), outputs[0].numpy()
    )
    print("the pickled object gives the same output")
    return function


def show_log(onx, X):
    section("A log")
    log = logging.getLogger("onnxcustom")
    handler = logging.StreamHandler(sys.stdout)
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    function = OrtGradientForwardBackward(
        onx, class_name="Logged", enable_logging=True
    ).new_instance()
    weights = [numpy.zeros((2, 1), numpy.float32), numpy.zeros(1, numpy.float32)]
    function.forward([X[:1], *weights], training=True)
    function.backward([numpy.ones((1, 1), numpy.float32)])
    log.removeHandler(handler)


def own_loop(onx, X, y, epochs, rate):
    """Forward, loss, backward, update; returns the losses per row and the weights."""
    forback = OrtGradientForwardBackward(onx)
    function = forback.new_instance()
    state = [forback.get_initializer(name) for name in forback.weights_to_train]
    loss = SquareLearningLoss()
    loss.build_onnx_function(15, None)
    rate.build_onnx_function(15, None, len(state))
    rate.init_learning_rate()
    outputs_cache, gradients_cache = OrtValueVector(), OrtValueVector()
    losses = []
    for epoch in range(epochs):
        for data, target in OrtDataLoader(X, y, batch_size=len(X)).iter_ortvalue():
            prediction = function.forward([data, *state], True, outputs_cache)
            value, gradient = loss.loss_gradient(None, target, prediction[0])
            gradients = function.backward([gradient], gradients_cache)
            for i, weight in enumerate(state):
                rate.update_weights(i, None, weight, gradients[i + 1], len(X))
            losses.append(value.numpy().item() / len(X))
        rate.update_learning_rate(epoch)
    return losses, state


def main():
    folder = begin()
    X = numpy.random.randn(100, 2).astype(numpy.float32)
    y = X @ numpy.array([[1], [-2]], numpy.float32) + 0.5
    onx = linear_model(2)
    forback = show_class(onx, folder)
    function = show_passes(forback, X)
    show_log(onx, X)

    section("A custom training loop")
    losses, state = own_loop(onx, X, y, 30, LearningRateSGD(0.2))
    trainer = OrtGradientForwardBackwardOptimizer(
        onx, learning_rate=LearningRateSGD(0.2), batch_size=100, max_iter=30, warm_start=True
    ).fit(X, y)
    print("own loop", [f"{loss:.3g}" for loss in losses[::6]])
    print("fit     ", [f"{loss:.3g}" for loss in trainer.train_losses_[::6]])
    print("weights ", [value.numpy().ravel() for value in state])
    numpy.testing.assert_allclose(losses, trainer.train_losses_, rtol=1e-3, atol=1e-8)
    numpy.testing.assert_allclose(state[0].numpy().ravel(), [1, -2], atol=1e-2)
    curves = {"own loop": losses, "fit": trainer.train_losses_}
    plot_losses(curves, folder / "losses.png", "a custom training loop")

    section("The graphs as files")
    saved = function.save_onnx_graph(str(folder))
    pprint.pprint(saved)
    for path in saved.values():
        model = onnx.load(path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        print([value.name for value in session.get_inputs()], "->",
              [value.name for value in session.get_outputs()])  # fmt: skip
        assert {node.domain for node in model.graph.node} == {""}


if __name__ == "__main__":
    main()
