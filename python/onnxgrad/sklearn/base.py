"""The base class of the estimators: from parameters to a trained model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import onnx
import threadpoolctl
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

import onnxgrad
from onnxgrad.base.checks import checked_names
from onnxgrad.callbacks import CallbackLike, EarlyStopping
from onnxgrad.errors import OptionError
from onnxgrad.files import save_model
from onnxgrad.losses import LossLike, PenaltyLike
from onnxgrad.metrics import MetricLike
from onnxgrad.optimizers import LBFGS, OptimizerLike, ParameterGroup
from onnxgrad.precision import PrecisionLike
from onnxgrad.schedules import ScheduleLike
from onnxgrad.sklearn.training import Training

__all__ = ["ModelOrFactory", "OnnxEstimator"]

ModelOrFactory: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | Callable[..., Any]"
"""A model, or a function of (number of features, number of outputs) that returns one."""

_SEEDS = np.iinfo(np.int32).max
_INPUT_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
}


# The parameters and attributes of both estimators; a subclass fills in what differs.
_PARAMETERS = """
    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or function, default=None
        Any ONNX model with one numeric input, whose weights training starts from; or a function of
        (number of features, number of {outputs}) that returns one. None builds a multi-layer
        perceptron with `hidden_layer_sizes`, see `multi_layer_perceptron`.
    hidden_layer_sizes : int or sequence of int, default=(100,)
        Only without `model`.
    activation : str, default="relu"
        ``"relu"``, ``"leaky_relu"``, ``"tanh"``, ``"logistic"`` or ``"identity"``. Only without
        `model`.
    loss : str or Loss, default="auto"
        See `onnxgrad.losses`; {loss}
    penalty : Penalty, list of Penalty or dict, default=None
        See `onnxgrad.losses.Penalty`.
    optimizer : str or Optimizer, default="adam"
        See `onnxgrad.optimizers`.
    lr : float, default=None
        Learning rate; None means the optimizer's own.
    schedule : str or Schedule, default=None
        How the learning rate changes in each `fit`, see `onnxgrad.schedules`.
    groups : list of ParameterGroup, default=()
        Weights with their own learning rate, weight decay or optimizer, see `onnxgrad.optimizers`.
    clip_value, clip_norm : float, default=None
        Bounds for the elements of the gradient and for its norm.
    accumulate : int, default=1
        Number of batches whose gradients make up an update.
    batch_size : int or "auto", default="auto"
        ``"auto"`` means 200, or all rows if there are fewer or with L-BFGS.
    max_iter : int, default=200
        Maximum number of epochs of a `fit`.
    tol : float, default=1e-4
        Stop if the loss has not improved by `tol` for `n_iter_no_change` epochs; None always trains
        for `max_iter` epochs.
    n_iter_no_change : int, default=10
    early_stopping : bool, default=False
        Whether to monitor the loss on rows held out for validation, and restore the weights of the
        best epoch.
    validation_fraction : float, default=0.1
        Fraction of the rows held out for validation with `early_stopping`.
{more}    shuffle : bool, default=True
        A new order of the rows in each epoch.
    warm_start : bool, default=False
        Whether another `fit` continues from the weights and the optimizer state of the last one.
    initializer : str, default=None
        How to draw new weights, see `onnxgrad.initialize`. None means ``"auto"`` for a network
        built here; a given model keeps its weights.
    trainable, frozen : str or list of str, default=None
        Names or glob patterns of the weights to train, and of those to keep as they are.
    untie : bool, default=True
        Whether to train weights separately that are one in the file by accident, see
        `TrainingSession`.
    stop_gradient : str or list of str, default=None
        Values of the model, or nodes (all their outputs), that no gradient flows through, see
        `TrainingSession`.
    training_mode : "auto", True or False, default="auto"
        Whether Dropout and BatchNormalization of a given model are in training mode, see
        `TrainingSession`.
    open_batch : "auto", True or False, default="auto"
        What to do with a given model whose file fixes the number of rows of a batch, see
        `TrainingSession`.
    precision : str or onnxgrad.Precision, default="float32"
        What training steps multiply and store in 16 bits.
    dtype : {{"float32", "float64"}}, default=None
        Dtype of a network built here; None means float32 if `X` is, else float64.
    callbacks : list of Callback or function, default=()
        See `onnxgrad.callbacks`.
    random_state : int, RandomState or None, default=None
        Seed of weights, shuffling, the validation split and random operators.
    threads : int, default=None
        Number of threads; None means OpenMP's limit: all cores, or less in joblib's workers and
        with threadpoolctl.
    verbose : {{0, 1, 2, "auto"}}, default=0
        As for `onnxgrad.Trainer.fit`.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if `X` had column names.
    loss_curve_ : list of float
        Training loss of each epoch since the weights were initialized (for calls with very many
        epochs, of those in `history_`).
    loss_ : float
        The last training loss.
    n_iter_ : int
        Number of epochs since the weights were initialized.
    history_ : History
        History of the last `fit`, see `onnxgrad.Trainer`.
    validation_losses_ : list of float or None
        Validation losses of the epochs of the last `fit`, with `early_stopping`.
"""


class OnnxEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of `OnnxRegressor` and `OnnxClassifier`, which share their parameters' docs.

    A subclass passes the parts that differ as keyword arguments; ``{parameters}`` in its docstring
    is replaced by the parameters and attributes.
    """

    def __init_subclass__(cls, **doc_parts: str) -> None:
        super().__init_subclass__()
        if cls.__doc__ and doc_parts:
            parameters = _PARAMETERS.format(**doc_parts).strip()
            cls.__doc__ = cls.__doc__.replace("{parameters}", parameters)

    @checked_names
    def __init__(
        self,
        model: ModelOrFactory | None = None,
        *,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str = "relu",
        loss: LossLike = "auto",
        penalty: PenaltyLike | None = None,
        optimizer: OptimizerLike = "adam",
        lr: float | None = None,
        schedule: ScheduleLike | None = None,
        groups: ParameterGroup | Iterable[ParameterGroup] = (),
        clip_value: float | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        batch_size: int | Literal["auto"] = "auto",
        max_iter: int = 200,
        tol: float | None = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        shuffle: bool = True,
        warm_start: bool = False,
        initializer: str | None = None,
        trainable: str | Iterable[str] | None = None,
        frozen: str | Iterable[str] | None = None,
        untie: bool = True,
        stop_gradient: str | Iterable[str] | None = None,
        training_mode: bool | Literal["auto"] = "auto",
        open_batch: bool | Literal["auto"] = "auto",
        precision: PrecisionLike = "float32",
        dtype: Literal["float32", "float64"] | None = None,
        callbacks: Iterable[CallbackLike] = (),
        random_state: int | np.random.RandomState | None = None,
        threads: int | None = None,
        verbose: int | Literal["auto"] = 0,
    ) -> None:
        self.model = model
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.loss = loss
        self.penalty = penalty
        self.optimizer = optimizer
        self.lr = lr
        self.schedule = schedule
        self.groups = groups
        self.clip_value = clip_value
        self.clip_norm = clip_norm
        self.accumulate = accumulate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.shuffle = shuffle
        self.warm_start = warm_start
        self.initializer = initializer
        self.trainable = trainable
        self.frozen = frozen
        self.untie = untie
        self.stop_gradient = stop_gradient
        self.training_mode = training_mode
        self.open_batch = open_batch
        self.precision = precision
        self.dtype = dtype
        self.callbacks = callbacks
        self.random_state = random_state
        self.threads = threads
        self.verbose = verbose

    def to_onnx(self, path: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
        """Return the trained model; also write it to a file if a path is given.

        Parameters
        ----------
        path : path, default=None

        Returns
        -------
        onnx.ModelProto
            The given model with its trained weights and otherwise unchanged, or the network that
            was built.
        """
        check_is_fitted(self)
        trained = self._training.trained_model()
        if path is not None:
            save_model(trained, path)
        return trained

    # Hooks for the two estimators.

    def _network(self, num_features: int, dtype: str, seed: int) -> onnx.ModelProto:
        """Return a new network with the given layer sizes."""
        raise NotImplementedError

    def _placed_loss(self) -> LossLike:
        """Return the loss, with its output set for a network that was built here."""
        return self.loss

    def _metrics(self) -> str | Mapping[str, MetricLike] | tuple[()]:
        """Return the metrics of a validation besides loss and accuracy."""
        return ()

    def _settle(self, training: Training) -> Training:
        """Check that the model is suitable; return the training, or one with a better loss."""
        raise NotImplementedError

    # Fitting.

    def _is_new(self, incremental: bool) -> bool:
        """Return whether a fit initializes the weights."""
        return not ((incremental or self.warm_start) and hasattr(self, "_training"))

    def _validated(self, X: Any, y: Any, is_new: bool, **options: Any) -> tuple[Any, Any]:
        """Return X and y as arrays, checked as by scikit-learn."""
        own = self.model is None
        if not own and np.asarray(y).ndim > 2:  # validate_data has no option for it
            y = check_array(y, dtype=None, ensure_2d=False, allow_nd=True)
            X = validate_data(self, X, reset=is_new, dtype="numeric", allow_nd=True)
            check_consistent_length(X, y)
            return X, y
        X, y = validate_data(
            self,
            X,
            y,
            reset=is_new,
            dtype=(np.float64, np.float32) if own else "numeric",
            allow_nd=not own,
            **options,
        )
        return X, y

    def _weights(self, sample_weight: Any, X: Any) -> Any:
        if sample_weight is None:
            return None
        weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        if not np.any(weight):
            raise ValueError("Sample weights must contain at least one non-zero number.")
        return weight

    def _start(self, X: np.ndarray[Any, Any], num_outputs: int) -> None:
        """Create the model and its training."""
        self._random = check_random_state(self.random_state)
        seed = int(self._random.randint(_SEEDS))
        model: Any = self.model
        if model is None:
            dtype = self.dtype or ("float32" if X.dtype == np.float32 else "float64")
            model = self._network(X.shape[1], dtype, seed)
        else:
            if callable(model):
                model = model(X.shape[1], num_outputs)
            if self.initializer is not None:
                model = onnxgrad.initialize(model, self.initializer, seed, untie=self.untie)
        options = {
            "loss": self._placed_loss(),
            "penalty": self.penalty,
            "optimizer": self.optimizer,
            "lr": self.lr,
            "schedule": self.schedule,
            "groups": self.groups,
            "clip_value": self.clip_value,
            "clip_norm": self.clip_norm,
            "accumulate": self.accumulate,
            "seed": seed,
            "threads": _thread_limit() if self.threads is None else self.threads,
            "trainable": self.trainable,
            "frozen": self.frozen,
            "untie": self.untie,
            "stop_gradient": self.stop_gradient,
            "training_mode": self.training_mode,
            "open_batch": self.open_batch,
            "precision": self.precision,
        }
        self._training = self._settle(Training(_bytes_of(model), options))
        inputs = self._training.inputs()
        if len(inputs) != 1 or inputs[0].type not in _INPUT_DTYPES:
            found = ", ".join(f"'{value.name}' {value.type}" for value in inputs)
            raise OptionError(
                what=f"model: its inputs are {found}; estimators need one numeric input",
                value="model",
                hint="Use onnxgrad.Trainer, which takes a dictionary of inputs.",
            )
        self._input_dtype = _INPUT_DTYPES[inputs[0].type]
        self.loss_curve_: list[float] = []
        self.n_iter_ = 0

    def _train(
        self,
        X: np.ndarray[Any, Any],
        y: np.ndarray[Any, Any],
        sample_weight: Any,
        epochs: int,
        class_weight: Any = None,
    ) -> Self:
        """Train for some epochs and set the attributes; `y` is already encoded for the model."""
        lr: Any = self.lr
        if isinstance(lr, Real):
            self._training.set_lr(float(lr))
        batch_size = self._auto_batch_size(len(X)) if self.batch_size == "auto" else self.batch_size
        stopping: list[CallbackLike] = []
        validate = self.early_stopping and epochs > 1
        has_own = any(isinstance(callback, EarlyStopping) for callback in self.callbacks)
        if self.tol is not None and not has_own:
            stopping = [EarlyStopping(None, self.n_iter_no_change, self.tol, restore_best=validate)]
        seed = int(self._random.randint(_SEEDS))

        def fit(trainer: onnxgrad.Trainer) -> onnxgrad.Trainer:
            trainer.seed = seed  # shuffles differently in each call
            is_fixed = trainer.session.fixed_batch is not None and self.batch_size == "auto"
            return trainer.fit(
                self._as_input(X),
                y,
                sample_weight,
                class_weight=class_weight,
                validation=self.validation_fraction if validate else None,
                metrics=self._metrics() if validate else (),
                epochs=epochs,
                batch_size=None if is_fixed else batch_size,
                shuffle=self.shuffle,
                callbacks=[*stopping, *self.callbacks],
                verbose="auto" if self.verbose == "auto" else int(self.verbose),  # type: ignore[arg-type]
            )

        trainer = self._training.use(fit)
        self.history_ = trainer.history
        self.loss_curve_.extend(trainer.history["train_loss"])
        self.loss_ = self.loss_curve_[-1] if self.loss_curve_ else float("nan")
        self.n_iter_ += int(trainer.history["epoch"][-1]) if trainer.history else 0
        self.validation_losses_ = trainer.history.get("val_loss")
        self.validation_scores_ = trainer.history.get("val_r2", trainer.history.get("val_accuracy"))
        self.stop_reason_ = trainer.stop_reason
        return self

    def _auto_batch_size(self, num_rows: int) -> int:
        takes_all = self.optimizer == "lbfgs" or isinstance(self.optimizer, LBFGS)
        return num_rows if takes_all else min(200, num_rows)

    def _as_input(self, X: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(X, self._input_dtype)

    # Predicting.

    def _values(self, X: Any, output: str) -> np.ndarray[Any, Any]:
        """Check the rows X and return an output of the fitted model."""
        own = self.model is None
        rows = validate_data(
            self,
            X,
            reset=False,
            dtype=(np.float64, np.float32) if own else "numeric",
            allow_nd=not own,
        )
        return self._training.predict(self._as_input(rows), output)

    def _layers(self, num_features: int, num_outputs: int) -> list[int]:
        hidden: Any = self.hidden_layer_sizes
        sizes = list(hidden) if hasattr(hidden, "__iter__") else [hidden]
        if any(int(size) != size or size < 1 for size in sizes):
            raise ValueError(f"hidden_layer_sizes must be integers above 0, got {hidden!r}.")
        return [num_features, *(int(size) for size in sizes), num_outputs]


def _bytes_of(model: Any) -> bytes:
    if isinstance(model, (str, os.PathLike)):
        proto = onnxgrad.set_weights(model, {})  # raises ModelError for an invalid file
        folder = Path(model).resolve().parent
        onnx.load_external_data_for_model(proto, str(folder))
        model = proto
    if isinstance(model, onnx.ModelProto):
        return bytes(model.SerializeToString())
    return bytes(model)


def _thread_limit() -> int:
    """Return OpenMP's limit of threads, which is lower in joblib's workers."""
    pools = threadpoolctl.threadpool_info()
    return min((pool["num_threads"] for pool in pools if pool["user_api"] == "openmp"), default=1)
