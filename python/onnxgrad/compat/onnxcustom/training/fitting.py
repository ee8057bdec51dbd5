"""Shared by both optimizers: data, epochs, the learning rate, losses, progress."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

import onnxgrad as og
from onnxgrad.compat.onnxcustom.training.base_onnx_class import BaseOnnxClass
from onnxgrad.compat.onnxcustom.training.excs import EvaluationError
from onnxgrad.compat.onnxcustom.training.sgd_learning_rate import BaseLearningRate
from onnxgrad.compat.onnxruntime.values import array_of

__all__ = [
    "BaseEstimator",
    "as_array",
    "as_column",
    "as_inputs",
    "as_weights",
    "check_device",
    "draw_weights",
    "new_seed",
    "train",
]


class BaseEstimator(BaseOnnxClass):
    """Base class of the optimizers.

    Parameters
    ----------
    model_onnx : onnx.ModelProto
    learning_rate : float, str or BaseLearningRate
    device : str
    """

    max_iter: int
    batch_size: int
    verbose: int
    validation_every: int
    train_losses_: list[float]
    validation_losses_: list[float] | None

    def __init__(self, model_onnx: Any, learning_rate: Any, device: Any) -> None:
        self.model_onnx = model_onnx
        self.learning_rate = BaseLearningRate.select(learning_rate)
        self.device = device

    def __sklearn_tags__(self) -> Any:
        # Only called by scikit-learn, so it is installed.
        from sklearn.base import BaseEstimator as Estimator

        return Estimator().__sklearn_tags__()

    def _set_validation_every(self, validation_every: float) -> None:
        is_fraction = validation_every < 1
        every = self.max_iter * validation_every if is_fraction else validation_every
        self.validation_every = int(every)


class _Epochs(og.callbacks.Callback):
    """Records losses, sets the learning rate and shows the progress at the end of each epoch."""

    def __init__(self, estimator: BaseEstimator, bar: Any, every: int) -> None:
        super().__init__()
        self.estimator, self.bar, self.every = estimator, bar, every
        self.losses: list[float] = []
        self.validation: list[float] = []

    def on_epoch_end(self, trainer: og.Trainer, logs: Mapping[str, float]) -> None:
        estimator, epoch = self.estimator, len(self.losses)
        loss = float(logs["train_loss"])
        self.losses.append(loss)
        if "val_loss" in logs and self.every and (epoch + 1) % self.every == 0:
            self.validation.append(float(logs["val_loss"]))
        rate = estimator.learning_rate
        rate.update_loss(loss)
        trainer.session.lr = rate.update_learning_rate(epoch).value / estimator.batch_size
        if self.bar is not None:
            self.bar.set_description(self._text(loss, rate.value), refresh=False)
            self.bar.update(1)

    def _text(self, loss: float, rate: float) -> str:
        """Return the text before the bar, which is longer if `verbose` is above 1."""
        if self.estimator.verbose < 2:
            return f"loss={loss:1.3g} lr={rate:1.3g}"
        parts = [f"loss={loss:1.6g}", f"best={min(self.losses):1.6g}"]
        if self.validation:
            parts.append(f"validation={self.validation[-1]:1.6g}")
        return " ".join([*parts, f"lr={rate:1.6g}"])


def train(
    estimator: BaseEstimator,
    trainer: og.Trainer,
    data: tuple[Any, Any, Any],
    validation: tuple[Any, ...] | None,
) -> None:
    """Train for the estimator's epochs in the engine's loop, and set the estimator's losses.

    The trainer's loss is a sum over the batch, so its rate is the estimator's divided by the batch
    size.

    Parameters
    ----------
    estimator : BaseEstimator
    trainer : onnxgrad.Trainer
    data : (X, y, sample weight or None)
        `y` is None if X has the inputs of a model with a loss, by name.
    validation : (X, y) or (X, y, sample weight), or None
    """
    rate = estimator.learning_rate.init_learning_rate()
    trainer.session.lr = rate.value / estimator.batch_size
    bar = _bar(estimator)
    epochs = _Epochs(estimator, bar, estimator.validation_every)
    X, y, weight = data
    first = next(array for array in (y, X) if array is not None)
    rows = len(next(iter(first.values())) if isinstance(first, Mapping) else first)
    if not rows:
        raise EvaluationError("There are no rows to train on.")
    try:
        trainer.fit(
            X,
            y,
            weight,
            validation=validation,
            epochs=estimator.max_iter,
            sampling="windows",
            batch_size=min(estimator.batch_size, rows),
            callbacks=[epochs],
            verbose=0,
        )
    finally:
        if bar is not None:
            bar.close()
        estimator.train_losses_ = epochs.losses
        estimator.validation_losses_ = None if validation is None else epochs.validation


def _bar(estimator: BaseEstimator) -> Any:
    if not estimator.verbose:
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        logging.getLogger("onnxcustom").warning("verbose needs tqdm, which is not installed")
        return None
    return tqdm(total=estimator.max_iter)


def as_array(data: Any) -> np.ndarray[Any, Any]:
    """Convert a list, a pandas table, or an array or OrtValue (without a copy) to an array."""
    if isinstance(data, (list, tuple)) or hasattr(data, "__dataframe__") or hasattr(data, "iloc"):
        return np.asarray(data)
    return array_of(data)


def as_inputs(
    data: Mapping[str, np.ndarray[Any, Any]], session: og.InferenceSession
) -> dict[str, np.ndarray[Any, Any]]:
    """Convert data to the types of a model's inputs, flattened for inputs of rank 1."""
    kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64}
    feeds = {}
    for one in session.get_inputs():
        value = data[one.name].astype(kinds.get(one.type, np.int64), copy=False)
        feeds[one.name] = value.reshape(-1) if len(one.shape) == 1 else value
    return feeds


def as_column(y: Any) -> np.ndarray[Any, Any]:
    """Convert a target to an array; a one-dimensional one becomes a column."""
    array = as_array(y)
    return array.reshape((-1, 1)) if array.ndim == 1 else array


def as_weights(sample_weight: Any, target: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert the weights of rows, [N] or [N, 1], to an array [N].

    Raises
    ------
    ValueError
        Their number differs from the rows of the target.
    """
    weights = as_array(sample_weight)
    if weights.size != len(target) or weights.shape[:1] != target.shape[:1]:
        raise ValueError(
            f"Shape mismatch y.shape={target.shape!r}, sample_weight.shape={weights.shape!r}."
        )
    return weights.reshape(-1)


def draw_weights(shapes: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Draw weights from N(0, 1) with NumPy's global generator, in the given order."""
    return {
        name: np.asarray(np.random.randn(*array.shape)).astype(array.dtype)  # noqa: NPY002
        for name, array in shapes.items()
    }


def new_seed() -> int:
    """Draw a seed with NumPy's global generator, which `numpy.random.seed` seeds."""
    return int(np.random.randint(0, 2**31 - 1))  # noqa: NPY002


def check_device(device: Any) -> str:
    """Return onnxgrad's name of a device, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    ValueError
        It is neither.
    """
    from onnxgrad.compat.onnxcustom.utils.onnxruntime_helper import (
        get_ort_device,
        ort_device_to_string,
    )

    return ort_device_to_string(get_ort_device(device))
