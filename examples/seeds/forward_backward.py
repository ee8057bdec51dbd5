"""OrtGradientForwardBackward: forward and backward passes, and a training loop of one's own.

The loop does what OrtGradientForwardBackwardOptimizer does, one piece at a time: forward, loss and
its gradient, backward, update; on full batches both give the same losses.

    python examples/seeds/forward_backward.py [folder]
"""

import pickle
import pprint

import numpy
import onnx
import onnxruntime
from common import begin, plot_losses, section
from full_training import linear_model

from onnxgrad.compat.onnxcustom.training.data_loader import OrtDataLoader
from onnxgrad.compat.onnxcustom.training.optimizers_partial import (
    OrtGradientForwardBackwardOptimizer,
)
from onnxgrad.compat.onnxcustom.training.ortgradient import OrtGradientForwardBackward
from onnxgrad.compat.onnxcustom.training.sgd_learning_loss import SquareLearningLoss
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import LearningRateSGD
from onnxgrad.compat.onnxcustom.utils.print_helper import str_ortvalue
from onnxgrad.compat.onnxruntime import OrtValueVector


def show_passes(onx, X):
    section("Passes")
    forback = OrtGradientForwardBackward(onx, debug=True)
    print(forback)
    cls = forback.cls_type_
    for name in ("_grad_input_names", "_output_names", "_weights_to_train", "_bw_fetches_names"):
        print(f"{name}={getattr(cls, name)}")
    weights = [numpy.array([[1.0], [2.0]], numpy.float32), numpy.array([3.0], numpy.float32)]
    function = forback.new_instance()
    outputs = function.forward([X[:4], *weights], training=True)
    print("output  ", str_ortvalue(outputs[0]))
    numpy.testing.assert_allclose(outputs[0].numpy(), X[:4] @ weights[0] + 3, rtol=1e-5)
    seeds = numpy.ones((4, 1), numpy.float32)
    gradients = function.backward([onnxruntime.OrtValue.ortvalue_from_numpy(seeds)])
    for name, value in zip(cls._bw_fetches_names, gradients, strict=True):
        print(f"{name:14}", str_ortvalue(value))
    numpy.testing.assert_allclose(gradients[1].numpy(), X[:4].T @ seeds, rtol=1e-5)
    assert function.saved_tensors_ == []
    assert forback.get_initializer("no", exc=False) is None
    again = pickle.loads(pickle.dumps(forback)).new_instance()
    numpy.testing.assert_array_equal(
        again.forward([X[:4], *weights])[0].numpy(), outputs[0].numpy()
    )
    return function


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
    function = show_passes(onx, X)

    section("A loop of one's own")
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
    plot_losses(curves, folder / "losses.png", "a loop of one's own")

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
