"""Learning rates, their schedules by epoch, and the updates that use them.

In `fit` the update is the engine's; `update_weights` is for custom training loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np

import onnxgrad as og
from onnxgrad.compat.onnxcustom.training.base_onnx_class import BaseOnnxClass, GraphRunner
from onnxgrad.compat.onnxcustom.utils.onnx_function import function_onnx_graph
from onnxgrad.compat.onnxruntime.values import OrtValue, array_of, write_into

__all__ = ["BaseLearningRate", "LearningRateSGD", "LearningRateSGDNesterov"]

_SCHEDULES = ("adaptive", "constant", "invscaling", "optimal")


class BaseLearningRate(BaseOnnxClass):
    """Base class of learning rates.

    A user-defined subclass defines `init_learning_rate`, `update_learning_rate` and `value`; it may
    define `optimizer`, the update of the engine.
    """

    def init_learning_rate(self) -> Self:
        """Reset the rate for a new training."""
        raise NotImplementedError("This method must be overwritten.")

    def update_learning_rate(self, t: int) -> Self:
        """Set the rate after epoch `t`, counted from 0."""
        raise NotImplementedError("This method must be overwritten.")

    @property
    def value(self) -> float:
        """The current rate."""
        raise NotImplementedError("This method must be overwritten.")

    @property
    def needs_grad(self) -> bool:
        """Whether past gradients are kept."""
        return False

    def optimizer(self, lr: float) -> Any:
        """Return the engine's optimizer, with a learning rate."""
        return og.optimizers.SGD(lr)

    def update_loss(self, loss: float) -> None:
        """Record the loss of an epoch."""

    def loop(self, n: int = 1000) -> Iterator[float]:
        """Yield the rates of `n` epochs."""
        self.init_learning_rate()
        for t in range(n):
            yield self.value
            self.update_learning_rate(t + 1)

    @staticmethod
    def select(class_name: Any, **kwargs: Any) -> BaseLearningRate:
        """Return the learning rate for a name or number (its first value), or the object itself.

        Raises
        ------
        ValueError
            An unknown name.
        """
        if isinstance(class_name, BaseLearningRate):
            return class_name
        if isinstance(class_name, (int, float)) and not isinstance(class_name, bool):
            return LearningRateSGD(float(class_name), **kwargs)
        names: dict[str, type[BaseLearningRate]] = {
            "SGD": LearningRateSGD,
            "SGDRegressor": LearningRateSGD,
            "LearningRateSGD": LearningRateSGD,
            "Nesterov": LearningRateSGDNesterov,
            "SGDNesterov": LearningRateSGDNesterov,
            "LearningRateSGDNesterov": LearningRateSGDNesterov,
        }
        if class_name not in names:
            raise ValueError(
                f"Unexpected class name {class_name!r}. It should be one of {sorted(names)}."
            )
        return names[class_name](**kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_run")}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BaseLearningRate):
            return NotImplemented
        return type(self) is type(other) and self.get_params() == other.get_params()

    __hash__ = BaseOnnxClass.__hash__

    def __repr__(self) -> str:
        value = getattr(self, "value_", None)
        return super().__repr__() + ("" if value is None else f", value={value!r}")


class LearningRateSGD(BaseLearningRate):
    """The rates of scikit-learn's SGDRegressor, changed after each epoch, and its plain update.

    Parameters
    ----------
    eta0 : float, default=0.01
        Initial rate.
    alpha : float, default=0.0001
        Parameter of ``"optimal"``.
    power_t : float, default=0.25
        Parameter of ``"invscaling"``.
    learning_rate : {"invscaling", "constant", "optimal", "adaptive"}, default="invscaling"
        The rate after epoch t, from 0. ``"invscaling"`` is eta0 / (t + 1)^power_t, see
        `onnxgrad.schedules.InverseScaling`; ``"optimal"`` is `onnxgrad.schedules.Optimal` with
        eta0 as its first rate (scikit-learn's scale is that without `first_is_lr`);
        ``"adaptive"`` divides the rate by 5 if the loss has not improved by 0.1 % for five epochs,
        see `onnxgrad.schedules.Plateau`.
    """

    def __init__(
        self,
        eta0: float = 0.01,
        alpha: float = 0.0001,
        power_t: float = 0.25,
        learning_rate: str = "invscaling",
    ) -> None:
        if learning_rate not in _SCHEDULES:
            raise ValueError(
                f"Unexpected value for learning_rate={learning_rate!r}, not in {_SCHEDULES}."
            )
        self.eta0 = eta0
        self.alpha = alpha
        self.power_t = power_t
        self.learning_rate = learning_rate
        self.value_: float | None = None

    @property
    def value(self) -> float:
        """The current rate."""
        if self.value_ is None:
            raise RuntimeError("Method init_learning_rate was never called.")
        return self.value_

    def init_learning_rate(self) -> Self:
        """Reset the rate for a new training."""
        self.eta0_ = float(self.eta0)
        self._losses: list[float] = []
        self._rates = [self.eta0_]
        self.value_ = self.eta0_
        return self

    def _schedule(self) -> og.schedules.Schedule:
        if self.learning_rate == "optimal":
            return og.schedules.Optimal(self.alpha, first_is_lr=True, unit="epoch")
        if self.learning_rate == "invscaling":
            return og.schedules.InverseScaling(self.power_t, unit="epoch")
        if self.learning_rate == "adaptive":
            return og.schedules.Plateau(factor=0.2, patience=4, threshold=1e-3)
        return og.schedules.Constant()

    def update_learning_rate(self, t: int) -> Self:
        """Set the rate after epoch `t`, counted from 0."""
        if self.learning_rate == "adaptive":
            epochs = len(self._losses) + 1
            rates = self._schedule().rates(self.eta0_, epochs, 1, self._losses)
            self.value_ = rates[-1]
            return self
        if t >= len(self._rates):
            self._rates = self._schedule().rates(self.eta0_, 2 * (t + 1), 1)
        self.value_ = self._rates[t]
        return self

    def update_loss(self, loss: float) -> None:
        """Record the loss of an epoch, for ``"adaptive"``."""
        if self.learning_rate == "adaptive":
            self._losses.append(loss)

    def build_onnx_function(
        self, opset: int, device: Any, n_tensors: int, dtype: Any = np.float32
    ) -> None:
        """Build the graph of the update, ``axpy_onnx_``: w - rate / batch_size g."""
        del device, n_tensors
        self.axpy_onnx_ = function_onnx_graph("axpy", target_opset=opset, dtype=dtype)
        vars(self).pop("_run_axpy", None)

    def update_weights(
        self,
        n_bind: int,
        device: Any,
        statei: Any,
        gradienti: Any,
        batch_size: int,
        velocity: Any = None,
    ) -> OrtValue:
        """Update a weight in place by a gradient step, and return it."""
        del n_bind, device
        if velocity is not None:
            raise RuntimeError("Velocity must be None for this way of updating weights.")
        return self._run_update("axpy_onnx_", statei, gradienti, batch_size, {})[0]

    def _run_update(
        self, name: str, statei: Any, gradienti: Any, batch_size: int, more: dict[str, Any]
    ) -> list[OrtValue]:
        if not hasattr(self, name):
            raise RuntimeError(f"{name!r} is missing: build_onnx_function has not been called.")
        if not hasattr(self, "_run_axpy"):
            self._run_axpy = GraphRunner(getattr(self, name))
        alpha = np.array([-self.value / batch_size], array_of(statei).dtype)
        found = self._run_axpy({"X1": gradienti, "X2": statei, "alpha": alpha, **more})
        write_into(statei, found[0].numpy())
        return found


class LearningRateSGDNesterov(LearningRateSGD):
    """`LearningRateSGD` with momentum.

    V' = momentum V - rate g, and w' = w + V' or, with Nesterov's correction,
    w' = w + momentum V' - rate g.

    Parameters
    ----------
    eta0, alpha, power_t, learning_rate
        As in `LearningRateSGD`.
    momentum : float, default=0.9
    nesterov : bool, default=True
    """

    def __init__(
        self,
        eta0: float = 0.01,
        alpha: float = 0.0001,
        power_t: float = 0.25,
        learning_rate: str = "invscaling",
        momentum: float = 0.9,
        nesterov: bool = True,
    ) -> None:
        super().__init__(eta0, alpha, power_t, learning_rate)
        self.momentum = momentum
        self.nesterov = nesterov

    @property
    def needs_grad(self) -> bool:
        """Whether past gradients are kept; True."""
        return True

    def optimizer(self, lr: float) -> Any:
        """Return the engine's optimizer, with a learning rate."""
        if not self.momentum:
            return og.optimizers.SGD(lr)
        return og.optimizers.SGD(
            lr, momentum=self.momentum, nesterov=self.nesterov, rate_in_velocity=True
        )

    def build_onnx_function(
        self, opset: int, device: Any, n_tensors: int, dtype: Any = np.float32
    ) -> None:
        """Build the graph of the update, ``axpyw_onnx_``."""
        del device, n_tensors
        name = "axpyw2" if self.nesterov else "axpyw"
        self.axpyw_onnx_ = function_onnx_graph(name, target_opset=opset, dtype=dtype)
        vars(self).pop("_run_axpy", None)

    def update_weights(
        self,
        n_bind: int,
        device: Any,
        statei: Any,
        gradienti: Any,
        batch_size: int,
        velocity: Any = None,
    ) -> Any:
        """Update weight and velocity in place, and return both."""
        del n_bind, device
        if velocity is None:
            raise RuntimeError("Velocity must not be None for this way of updating weights.")
        more = {"G": velocity, "beta": np.array([self.momentum], array_of(statei).dtype)}
        found = self._run_update("axpyw_onnx_", statei, gradienti, batch_size, more)
        write_into(velocity, found[1].numpy())
        return found
