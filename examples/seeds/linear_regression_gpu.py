"""A linear regression on a GPU, value by value; without one it says why it stops.

The steps are those of a custom training loop: the weights are OrtValues on the device, `forward`,
loss, `backward` and update take and give OrtValues, and nothing comes back to the host before the
end.

    python examples/seeds/linear_regression_gpu.py [folder] [device]
"""

import sys

import numpy
from common import begin, plot_losses, section, skipped
from full_training import linear_model

import onnxgrad
from onnxgrad.compat.onnxcustom.training.data_loader import OrtDataLoader
from onnxgrad.compat.onnxcustom.training.optimizers_partial import (
    OrtGradientForwardBackwardOptimizer,
)
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import LearningRateSGD
from onnxgrad.compat.onnxcustom.utils.onnxruntime_helper import (
    device_to_providers,
    get_ort_device,
)
from onnxgrad.compat.onnxruntime import OrtValue, get_device


def train(device, folder):
    X = numpy.random.randn(200, 2).astype(numpy.float32)
    y = X @ numpy.array([[1], [-2]], numpy.float32) + 0.5
    section("Values on the device")
    value = OrtValue.ortvalue_from_numpy(X[:3], device)
    print(value.shape(), value.data_type(), value.device_name())
    for data, target in OrtDataLoader(X, y, batch_size=4, device=device).iter_ortvalue():
        print(data.device_name(), data.shape(), target.shape())
        break

    section("Training")
    trainer = OrtGradientForwardBackwardOptimizer(
        linear_model(2), device=device, learning_rate=LearningRateSGD(0.2), batch_size=20,
        max_iter=50,
    ).fit(X, y)  # fmt: skip
    print([float(f"{loss:.3g}") for loss in trainer.train_losses_[::10]])
    state = {name: value.numpy().ravel() for name, value in trainer.trained_coef_.items()}
    print(state)
    numpy.testing.assert_allclose(state["coef"], [1, -2], atol=1e-2)
    plot_losses({"loss": trainer.train_losses_}, folder / "losses.png", f"on {device}")


def main():
    folder = begin()
    device = sys.argv[2] if len(sys.argv) > 2 else "cuda:0"
    section("The device")
    print("get_device()", get_device())
    print(device, "is", get_ort_device(device), "of", device_to_providers(device)[0])
    try:
        train(device, folder)
    except onnxgrad.DeviceError as error:
        skipped(error)


if __name__ == "__main__":
    main()
