"""The base class of the estimators: from parameters to a trained model."""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from collections.abc import Mapping
from numbers import Real
from typing import Any, Self

import numpy as np
import onnx
import threadpoolctl
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

import onnxgrad
from onnxgrad.base.exporters import is_exported
from onnxgrad.base.models import Kind, deliver, is_model, to_core_model
from onnxgrad.callbacks import CallbackLike, EarlyStopping
from onnxgrad.data.arrays import as_numpy
from onnxgrad.data.arrow import is_table
from onnxgrad.data.foreign import plain_table
from onnxgrad.errors import OptionError
from onnxgrad.files import save_model
from onnxgrad.losses import LossLike
from onnxgrad.metrics import MetricLike
from onnxgrad.optimizers import LBFGS
from onnxgrad.sklearn import described
from onnxgrad.sklearn.described import SESSION_PARAMETERS, EstimatorParameters
from onnxgrad.sklearn.training import Training

__all__ = ["OnnxEstimator"]

_SEEDS = np.iinfo(np.int32).max
_INPUT_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
}
_ATTRIBUTES = """\
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


class OnnxEstimator(EstimatorParameters):
    """Base class of `OnnxRegressor` and `OnnxClassifier`, which share their attributes' docs.

    ``{parameters}`` in the docstring of a subclass is replaced by parameters and attributes.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = next(base for base in cls.__mro__ if base.__module__ == described.__name__)
        parameters = inspect.cleandoc(own.__doc__ or "").partition("\n\n")[2]
        text = f"{parameters}\n\n{_ATTRIBUTES}".rstrip()

        def indented(found: re.Match[str]) -> str:
            return textwrap.indent(text, found[1])

        cls.__doc__ = re.sub(r"^( *)\{parameters\}$", indented, cls.__doc__ or "", flags=re.M)

    def to_onnx(
        self, path: str | os.PathLike[str] | None = None, *, like: bool = False
    ) -> onnx.ModelProto:
        """Return the trained model; also write it to a file if a path is given.

        Parameters
        ----------
        path : path, default=None
        like : bool, default=False
            As for `onnxgrad.gradient`.

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
        if not like:
            return trained
        result: onnx.ModelProto = deliver(to_core_model(trained), path, self._kind)
        return result

    # Models that cannot be copied or pickled: open files, and programs of torch.

    def __sklearn_clone__(self) -> Self:
        shared = {n: v for n, v in self.get_params(deep=False).items() if _is_uncopied(v)}
        bare = object.__new__(type(self))
        bare.__dict__ = vars(self) | dict.fromkeys(shared)
        made: Self = super(OnnxEstimator, bare).__sklearn_clone__()
        return made.set_params(**shared) if shared else made

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        given = {n: state[n] for n in self.get_params(deep=False) if _is_uncopied(state.get(n))}
        return state | {name: to_core_model(model).to_bytes() for name, model in given.items()}

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
        X, y = _readable(X, "X"), _readable(y, "y")
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
        sample_weight = _readable(sample_weight, "sample_weight")
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
            given = model = self._network(X.shape[1], dtype, seed)
        else:
            if callable(model) and not is_model(model):
                model = model(X.shape[1], num_outputs)
            given = model
            if self.initializer is not None:
                model = onnxgrad.initialize(model, self.initializer, seed, untie=self.untie)
        self._kind = Kind.of(given)
        options = {name: getattr(self, name) for name in SESSION_PARAMETERS} | {
            "loss": self._placed_loss(),
            "optimizer": self.optimizer,
            "lr": self.lr,
            "schedule": self.schedule,
            "seed": seed,
            "threads": _thread_limit() if self.threads is None else self.threads,
        }
        self._training = self._settle(Training(to_core_model(model).to_bytes(), options))
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
            _readable(X, "X"),
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


def _is_uncopied(value: Any) -> bool:
    return isinstance(value, memoryview) or is_exported(value)


def _readable(value: Any, name: str) -> Any:
    """Return arrays and tables that scikit-learn cannot read as those that it can."""
    table, value = value, plain_table(value, name)
    if isinstance(value, Mapping) and table is not value:  # of transformed rows
        return as_numpy(table, name)
    has_arrow = hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")
    is_known = hasattr(value, "iloc") or (is_table(value) and hasattr(value, "__array__"))
    if not hasattr(value, "__dlpack__") and (is_known or not has_arrow):
        return value
    array = as_numpy(value, name)
    is_small = array.dtype.name.startswith(("bfloat", "float8"))  # types that NumPy lacks
    return array.astype(np.float32) if is_small else array


def _thread_limit() -> int:
    """Return OpenMP's limit of threads, which is lower in joblib's workers."""
    pools = threadpoolctl.threadpool_info()
    return min((pool["num_threads"] for pool in pools if pool["user_api"] == "openmp"), default=1)
