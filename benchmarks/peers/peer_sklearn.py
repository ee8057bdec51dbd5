"""scikit-learn: MLPRegressor / MLPClassifier (no hidden layer for a linear model), SGDRegressor.

Same mathematics as the other peers: shuffle off, no L2 term, no early stop, initial weights
injected; scikit-learn's squared loss is half the mean squared error, hence twice the learning rate
and twice the reported loss. SGDRegressor updates on every row (batch 1): its learning rate is
divided by the batch size, so it follows nearly the same path, but it is another algorithm.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import sklearn
import worker
from sklearn.linear_model import SGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from threadpoolctl import threadpool_limits

warnings.filterwarnings("ignore")


def with_initial_weights(base: type, kernels: list[np.ndarray], biases: list[np.ndarray]) -> type:
    """A subclass of a scikit-learn network that starts from the given weights."""

    class Network(base):
        def _init_coef(self, fan_in, fan_out, dtype):
            layer = self._next_layer = getattr(self, "_next_layer", -1) + 1
            assert kernels[layer].shape == (fan_in, fan_out)
            return kernels[layer].astype(dtype), biases[layer].astype(dtype)

    return Network


class Mlp:
    version = sklearn.__version__

    def __init__(self, task: worker.Task) -> None:
        workload, optimizer = task.workload, task.workload.optimizer
        self.task, self.targets = task, task.targets.ravel()
        self.squared = workload.loss == "mse"
        self.factor = 2.0 if self.squared else 1.0
        weights, layers = task.weights, range(len(workload.hidden) + 1)
        kernels = [weights[f"W{i}"] if self.squared else weights[f"W{i}"].T for i in layers]
        self.network = with_initial_weights(
            MLPRegressor if self.squared else MLPClassifier,
            [np.ascontiguousarray(kernel) for kernel in kernels],
            [weights[f"B{i}"] for i in layers],
        )
        self.options: dict[str, object] = {
            "solver": optimizer.name,
            "learning_rate_init": optimizer.rate * self.factor,
            "learning_rate": "constant",
            "alpha": optimizer.decay,
            "batch_size": workload.batch,
            "hidden_layer_sizes": workload.hidden,
            "activation": "relu",
            "shuffle": False,
            "tol": 0.0,
            "n_iter_no_change": 10**6,
            "max_iter": workload.epochs,
            "random_state": 0,
        }
        if optimizer.name == "sgd":
            self.options.update(momentum=optimizer.momentum, nesterovs_momentum=optimizer.nesterov)
        self.reset()

    def first(self) -> None:
        size = self.task.workload.batch
        classes = {} if self.squared else {"classes": np.arange(10)}
        model = self.network(**self.options)
        model.partial_fit(self.task.inputs[:size], self.targets[:size], **classes)

    def reset(self) -> None:
        self.model = self.network(**self.options)

    def run(self) -> Sequence[float]:
        self.model.fit(self.task.inputs, self.targets)
        assert self.model.coefs_[0].dtype == np.float32
        return np.asarray(self.model.loss_curve_) * self.factor


class Sgd:
    version = sklearn.__version__

    def __init__(self, task: worker.Task) -> None:
        self.task, self.targets = task, task.targets.ravel()
        self.kernel, self.bias = task.weights["W0"].ravel(), task.weights["B0"]
        self.reset()

    def make(self, epochs: int) -> SGDRegressor:
        workload = self.task.workload
        return SGDRegressor(
            penalty=None, learning_rate="constant", shuffle=False, max_iter=epochs, tol=None,
            eta0=2 * workload.optimizer.rate / workload.batch, random_state=0,
        )  # fmt: skip

    def fit(self, model: SGDRegressor, rows: int) -> None:
        model.fit(
            self.task.inputs[:rows], self.targets[:rows],
            coef_init=self.kernel.copy(), intercept_init=self.bias.copy(),
        )  # fmt: skip

    def first(self) -> None:
        self.fit(self.make(1), self.task.workload.batch)

    def reset(self) -> None:
        self.model = self.make(self.task.workload.epochs)

    def run(self) -> Sequence[float]:
        self.fit(self.model, self.task.workload.rows)
        return [float(np.mean((self.model.predict(self.task.inputs) - self.targets) ** 2))]


def make(task: worker.Task) -> Mlp | Sgd:
    if task.workload.kind not in ("linear", "mlp"):
        raise NotImplementedError("scikit-learn trains dense layers only")
    threadpool_limits(task.threads)
    if task.variant == "sklearn-sgd":
        if task.workload.kind != "linear":
            raise NotImplementedError("SGDRegressor is linear only")
        return Sgd(task)
    return Mlp(task)


if __name__ == "__main__":
    worker.main(make)
