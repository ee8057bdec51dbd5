"""Times of all ways to train the network 100-50-10-1, beside scikit-learn's.

Each way trains 100 epochs of batches of 15 rows; best of three. The times, and the names of the
ways from the fastest to the slowest, go to benchmark.json in the folder. The script fails if a way
is not ten times as fast as scikit-learn, or as many times as the third argument says.

    python examples/seeds/benchmark.py [folder] [epochs] [times]
"""

import json
import sys
import time
import warnings

import numpy
from common import begin, plt, save, section
from skl2onnx import to_onnx
from sklearn.datasets import make_regression
from sklearn.neural_network import MLPRegressor

import onnxgrad
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

REPEATS = 3


def best_time(fit, repeats=REPEATS):
    """Seconds of the fastest of some calls; the first, which compiles, is one of them."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        fit()
        times.append(time.perf_counter() - start)
    return min(times)


def ways(epochs):
    """The timed functions by name."""
    X, y = make_regression(1000, n_features=100, bias=2, random_state=0)
    X, y = X.astype(numpy.float32), y.astype(numpy.float32)
    options = {"max_iter": epochs, "batch_size": 15}
    nn = MLPRegressor(
        hidden_layer_sizes=(50, 10), solver="sgd", learning_rate_init=5e-5, momentum=0.9,
        n_iter_no_change=1000, learning_rate="invscaling", random_state=0, **options,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.fit(X, y)
    onx = onnx_rename_weights(to_onnx(nn, X[:1], target_opset=15))
    weights = [*get_train_initializer(onx)]
    momentum = LearningRateSGDNesterov(1e-5, nesterov=True, momentum=0.9)
    trainers = {
        "scikit-learn": nn,
        "OrtGradientOptimizer": OrtGradientOptimizer(
            add_loss_output(onx), weights, learning_rate=5e-5, **options
        ),
        "OrtGradientOptimizer, Nesterov": OrtGradientOptimizer(
            add_loss_output(onx), weights, learning_rate=momentum, **options
        ),
        "forward and backward": OrtGradientForwardBackwardOptimizer(
            onx, learning_rate=5e-5, **options
        ),
        "forward and backward, Nesterov": OrtGradientForwardBackwardOptimizer(
            onx, learning_rate=momentum, **options
        ),
    }
    timed = {name: lambda t=trainer: t.fit(X, y) for name, trainer in trainers.items()}
    timed["onnxgrad.Trainer"] = lambda: onnxgrad.Trainer(
        onx, "squared_error", "nesterov", lr=1e-5
    ).fit(X, y, epochs=epochs, batch_size=15, verbose=0)
    return timed


def main():
    folder = begin()
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    least = float(sys.argv[3]) if len(sys.argv) > 3 else 10
    section("Times")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds = {name: best_time(fit) for name, fit in ways(epochs).items()}
    ratios = {name: seconds["scikit-learn"] / value for name, value in seconds.items()}
    report = {"onnxgrad": onnxgrad.__version__, "epochs": epochs, "seconds": seconds,
              "fastest_first": sorted(seconds, key=seconds.get),
              "times_as_fast_as_scikit_learn": ratios}  # fmt: skip
    slow = []
    for name, value in seconds.items():
        ratio = ratios[name]
        print(f"{name:32} {value:8.4f} s, {ratio:6.1f} times scikit-learn's speed")
        if name != "scikit-learn" and ratio < least:
            slow.append(name)
    (folder / "benchmark.json").write_text(json.dumps(report, indent=1), encoding="utf-8")

    axes = plt.figure(figsize=(7, 3), layout="constrained").add_subplot()
    axes.barh([*seconds][::-1], [*seconds.values()][::-1])
    axes.set(xlabel=f"seconds for {epochs} epochs", xscale="log", title="network 100-50-10-1")
    axes.grid(visible=True, axis="x", alpha=0.3)
    save(axes, folder / "times.png")
    if slow:
        sys.exit(f"less than {least:g} times as fast as scikit-learn: {slow}")


if __name__ == "__main__":
    main()
