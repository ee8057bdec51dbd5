"""Training of a model without a loss, with a choice of loss, penalty and update."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import onnx

import onnxgrad as og
from onnxgrad.compat.models import takes_models
from onnxgrad.compat.onnxcustom.training.base_onnx_class import BaseOnnxClass
from onnxgrad.compat.onnxcustom.training.fitting import (
    BaseEstimator,
    as_array,
    as_column,
    as_inputs,
    as_weights,
    check_device,
    draw_weights,
    new_seed,
    train,
)
from onnxgrad.compat.onnxcustom.training.ortgradient import (
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardFunction,
)
from onnxgrad.compat.onnxcustom.training.sgd_learning_loss import BaseLearningLoss
from onnxgrad.compat.onnxcustom.training.sgd_learning_penalty import BaseLearningPenalty
from onnxgrad.compat.onnxcustom.utils.onnx_function import function_onnx_graph
from onnxgrad.compat.onnxcustom.utils.onnx_helper import (
    get_onnx_opset,
    replace_initializers_into_onnx,
)
from onnxgrad.compat.onnxcustom.utils.onnxruntime_helper import device_to_providers, get_ort_device
from onnxgrad.compat.onnxcustom.utils.orttraining_helper import get_train_initializer
from onnxgrad.compat.onnxruntime.training_session import TrainingParameters
from onnxgrad.compat.onnxruntime.values import OrtValue, as_ort_value

__all__ = ["OrtGradientForwardBackwardOptimizer"]

_KINDS = ("weight", "grad")


class OrtGradientForwardBackwardOptimizer(BaseEstimator):
    """Trains a model on a loss of its first output.

    `fit` compiles model, loss, penalty and update into one step and runs it in the engine's epoch
    loop. `train_session_`, `train_function_` and the methods of loss, penalty and learning rate are
    the individual parts, for custom training loops.

    Parameters
    ----------
    model_onnx : onnx.ModelProto
    weights_to_train : list of str, default=None
        Names, in any order; None means all initializers of floating type.
    loss_output_name : str, default="loss"
        Accepted for compatibility.
    max_iter : int, default=100
        Number of epochs.
    training_optimizer_name : str, Optimizer or onnx.ModelProto, default="SGDOptimizer"
        See `TrainingParameters`; the default uses the update of the learning rate.
    batch_size : int, default=10
    learning_rate : float, str or BaseLearningRate, default="SGD"
    device : str, default="cpu"
    warm_start : bool, default=False
        False draws the weights from N(0, 1) at the beginning of `fit`.
    verbose : int, default=0
        1 shows a progress bar with loss and rate, with tqdm; 2 shows more digits, the smallest loss
        so far and the last validation loss.
    validation_every : int or float, default=0.1
        Epochs between validations, or that fraction of `max_iter`.
    learning_loss : str or BaseLearningLoss, default="square_error"
    enable_logging : bool, default=False
        Whether to log to the logger ``onnxcustom``.
    weight_name : str, default=None
        Name of the input for weights of rows in the graphs of the loss.
    learning_penalty : str or BaseLearningPenalty, default=None
        Penalty on all trained weights, added to the loss of each batch.
    exc : bool, default=True
        Whether a loss that is not finite raises ConvergenceError. Otherwise the training ends with
        a warning, with the last finite weights.

    Attributes
    ----------
    train_session_ : OrtGradientForwardBackward
    train_function_ : OrtGradientForwardBackwardFunction
    trained_coef_ : dict of str to OrtValue
    train_losses_ : list of float
        Loss per row of each epoch.
    validation_losses_ : list of float or None
    """

    @takes_models("model_onnx")
    def __init__(
        self,
        model_onnx: onnx.ModelProto,
        weights_to_train: Sequence[str] | None = None,
        loss_output_name: str = "loss",
        max_iter: int = 100,
        training_optimizer_name: Any = "SGDOptimizer",
        batch_size: int = 10,
        learning_rate: Any = "SGD",
        device: str = "cpu",
        warm_start: bool = False,
        verbose: int = 0,
        validation_every: float = 0.1,
        learning_loss: Any = "square_error",
        enable_logging: bool = False,
        weight_name: str | None = None,
        learning_penalty: Any = None,
        exc: bool = True,
    ) -> None:
        super().__init__(model_onnx, learning_rate, device)
        if weights_to_train is None:
            weights_to_train = [*get_train_initializer(model_onnx)]
        self.learning_loss = BaseLearningLoss.select(learning_loss)
        self.learning_penalty = BaseLearningPenalty.select(learning_penalty)
        self.weights_to_train = weights_to_train
        self.loss_output_name = loss_output_name
        self.max_iter = max_iter
        self.training_optimizer_name = training_optimizer_name
        self.batch_size = batch_size
        self.warm_start = warm_start
        self.verbose = verbose
        self._set_validation_every(validation_every)
        self.enable_logging = enable_logging
        self.weight_name = weight_name
        self.exc = exc
        self.build_onnx_function()

    @property
    def needs_grad(self) -> bool:
        """Whether past gradients are kept."""
        return self.learning_rate.needs_grad

    def build_onnx_function(self) -> None:
        """Build the graphs of loss, penalty and update."""
        opset = get_onnx_opset(self.model_onnx)
        device = get_ort_device(check_device(self.device))
        count = len(self.weights_to_train)
        dtype = self._dtype()
        # A user-defined class may not have the option; it builds float32 graphs.
        more = {} if dtype == np.float32 else {"dtype": dtype}
        for part in (self.learning_rate, self.learning_penalty):
            if hasattr(part, "build_onnx_function"):
                part.build_onnx_function(opset, device, count, **more)
        self.learning_loss.build_onnx_function(opset, device, self.weight_name, **more)
        self.zero_onnx_ = function_onnx_graph("zero", target_opset=opset, dtype=dtype)

    def _dtype(self) -> Any:
        """Return the NumPy type of the weights."""
        for init in self.model_onnx.graph.initializer:
            if init.name in self.weights_to_train:
                return onnx.helper.tensor_dtype_to_np_dtype(init.data_type)
        return np.dtype(np.float32)

    def _graphs(self) -> dict[str, Any]:
        # In the order of the original notebook.
        parts: dict[str, Any] = {
            "model_onnx": self.model_onnx,
            "learning_rate": self.learning_rate,
            "learning_loss": self.learning_loss,
            "learning_penalty": self.learning_penalty,
            "zero_onnx_": self.zero_onnx_,
        }
        if hasattr(self, "train_function_"):
            parts["train_function_"] = _Function(self.train_function_)
        return parts

    def __getstate__(self) -> dict[str, Any]:
        kept = {"train_losses_", "validation_losses_", "zero_onnx_"}
        state = {k: v for k, v in vars(self).items() if not k.endswith("_") or k in kept}
        if self._is_fitted():
            state["_pickled"] = {
                kind: {name: value.numpy() for name, value in values.items()}
                for kind, values in self._states_.items()
            }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        pickled = state.pop("_pickled", None)
        vars(self).update(state)
        if pickled is not None:
            self._states_ = {
                kind: {name: OrtValue(array) for name, array in values.items()}
                for kind, values in pickled.items()
            }
            self._make_function()

    def _is_fitted(self) -> bool:
        return hasattr(self, "_states_")

    def _make_function(self) -> None:
        self.train_session_ = OrtGradientForwardBackward(
            self.model_onnx,
            list(self.weights_to_train),
            providers=device_to_providers(self.device),
            enable_logging=self.enable_logging,
        )
        self.train_function_ = self.train_session_.new_instance()
        self.input_names_ = self.train_session_.cls_type_._grad_input_names
        self.output_names_ = self.train_session_.cls_type_._bw_fetches_names

    def _description(self, columns: int) -> Any:
        """Return the loss for the engine, whose mean over the columns is scaled to a sum."""
        loss = self.learning_loss.description()
        if columns == 1:
            return loss
        return {self.model_onnx.graph.output[0].name: (loss, float(columns))}

    def _optimizer(self) -> Any:
        if self.training_optimizer_name == "SGDOptimizer":
            return self.learning_rate.optimizer(0.0)
        parameters = TrainingParameters()
        parameters.training_optimizer_name = self.training_optimizer_name
        return parameters.optimizer()

    def _trainer(self, columns: int, seed: int) -> og.Trainer:
        return og.Trainer(
            self.model_onnx,
            self._description(columns),
            self._optimizer(),
            penalty=self.learning_penalty.description(list(self.weights_to_train)),
            trainable=list(self.weights_to_train),
            untie=False,
            seed=seed,
            device=check_device(self.device),
        )

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        use_numpy: bool = False,
    ) -> Self:
        """Train.

        Parameters
        ----------
        X : array [N, ...]
        y : array [N] or [N, K]
        sample_weight : array [N] or [N, 1], default=None
        X_val, y_val : arrays, default=None
            Validation data.
        use_numpy : bool, default=False
            Accepted for compatibility: arrays are always read in place.

        Raises
        ------
        ConvergenceError
            If the loss is not finite, and `exc` is set.
        """
        del use_numpy
        check_device(self.device)
        logger = logging.getLogger("onnxcustom") if self.enable_logging else None
        X, target = as_array(X), as_column(y)
        if len(X) != len(target):
            raise ValueError(f"Shape mismatch X.shape={X.shape!r}, y.shape={target.shape!r}.")
        weight = None if sample_weight is None else as_weights(sample_weight, target)
        self._make_function()
        if logger is not None:
            logger.info("[fit] begin: %d rows, %r", len(X), self.weights_to_train)
        columns = target.shape[1]
        trainer = self._trainer(columns, new_seed())
        self._set_initial_state(trainer.session)
        validation = None if X_val is None else (as_array(X_val), self._target(as_column(y_val)))
        try:
            train(self, trainer, (X, self._target(target), weight), validation)
        except og.ConvergenceError as error:
            self._take_state(trainer.session)
            if self.exc:
                raise
            from warnings import warn

            from onnxgrad.compat.onnxcustom.training.excs import ConvergenceWarning

            warn(str(error), ConvergenceWarning, stacklevel=2)
        self._take_state(trainer.session)
        if logger is not None:
            logger.info("[fit] end: loss=%r", self.train_losses_[-1:])
        return self

    def _target(self, target: np.ndarray[Any, Any]) -> Any:
        if self.learning_loss.is_classifier:
            return target.reshape(-1)
        if target.shape[1] == 1:
            return target
        return {self.model_onnx.graph.output[0].name: target}

    def _set_initial_state(self, session: og.TrainingSession) -> None:
        """Set the initial weights of a session."""
        state = session.state()
        if not self.warm_start:
            drawn = draw_weights({name: state[name] for name in self.weights_to_train})
            session.load_state({**state, **drawn})
        elif self._is_fitted():
            before = {name: value.numpy() for name, value in self._states_["weight"].items()}
            moments = {name: value.numpy() for name, value in self._states_["grad"].items()}
            slots = {
                name: moments[name] for name in moments if name in state and name not in before
            }
            session.load_state({**state, **before, **slots})

    def _take_state(self, session: og.TrainingSession) -> None:
        """Store weights and slots, both in the order of `weights_to_train`.

        A slot is named ``<kind>/<weight>``; the step count, which has no weight, is last.
        """
        state = session.state()
        order = {name: i for i, name in enumerate(self.weights_to_train)}
        slots = sorted(
            (name for name in state if name not in order),
            key=lambda name: order.get(name.partition("/")[2], len(order)),
        )
        self._states_ = {
            "weight": {name: OrtValue(state[name]) for name in order},
            "grad": {name: OrtValue(state[name]) for name in slots},
        }

    @property
    def trained_coef_(self) -> dict[str, OrtValue]:
        """The trained weights, by name."""
        return dict(self._fitted()["weight"])

    def _fitted(self) -> dict[str, dict[str, OrtValue]]:
        if not self._is_fitted():
            raise AttributeError("Method fit must be called before.")
        return self._states_

    def get_state(self, kind: Any = "weight") -> Any:
        """Return the trained weights as a list, in the order of `weights_to_train`.

        Parameters
        ----------
        kind : {"weight", "grad"} or list of them, default="weight"
            ``"grad"`` means the optimizer state: the velocities of momentum, or nothing.

        Raises
        ------
        AttributeError
            Before `fit`.
        """
        if isinstance(kind, (list, tuple)):
            return [self.get_state(one) for one in kind]
        if kind not in _KINDS:
            raise ValueError(f"Unexpected kind={kind!r}, expected one of {_KINDS}.")
        return list(self._fitted()[kind].values())

    def get_full_state(self, kind: Any = "weight") -> Any:
        """Return `get_state`, preceded by None for each input of the model."""
        if isinstance(kind, (list, tuple)):
            return [self.get_full_state(one) for one in kind]
        self._fitted()
        inputs: list[Any] = [None] * len(self.train_session_.input_names)
        return [*inputs, *self.get_state(kind)]

    def set_state(
        self, state: Any, check_trained: bool = True, kind: str = "weight", zero: bool = False
    ) -> None:
        """Set the trained weights.

        Parameters
        ----------
        state : list or dict of arrays or OrtValues
            A result of `get_state` or `get_full_state`, or a dictionary by name.
        check_trained : bool, default=True
            Whether to require that `fit` has been called.
        kind : {"weight", "grad"}, default="weight"
        zero : bool, default=False
            Whether to set zeros of the given shapes instead.
        """
        if kind not in _KINDS:
            raise ValueError(f"Unexpected kind={kind!r}, expected one of {_KINDS}.")
        if not self._is_fitted():
            if check_trained:
                raise AttributeError("Method fit must be called before.")
            self._take_state(self._trainer(1, 0).session)
            self._make_function()
        if not self._states_[kind]:  # a plain update has no slots: stored by weight
            zeros = {n: np.zeros_like(v.numpy()) for n, v in self._states_["weight"].items()}
            self._states_[kind] = {name: OrtValue(value) for name, value in zeros.items()}
        names = list(self._states_[kind])
        if not isinstance(state, dict):
            given = [value for value in state if value is not None]
            if len(given) != len(names):
                raise ValueError(f"{len(given)} values were given for {len(names)}: {names}.")
            state = dict(zip(names, given, strict=True))
        for name, value in state.items():
            new = as_ort_value(value)
            if name not in names or new.shape() != self._states_[kind][name].shape():
                raise ValueError(f"Unexpected value {name!r} {new.shape()}, expected {names}.")
            self._states_[kind][name] = OrtValue(np.zeros_like(new.numpy())) if zero else new

    @takes_models("model")
    def get_trained_onnx(self, model: onnx.ModelProto | None = None) -> onnx.ModelProto:
        """Return a model with the trained weights; None means the one that was trained."""
        return replace_initializers_into_onnx(
            model or self.model_onnx, dict(self._fitted()["weight"])
        )

    def losses(self, X: Any, y: Any, sample_weight: Any = None) -> np.ndarray[Any, Any]:
        """Return the loss of each row [N] with the trained weights, without the penalty."""
        target = as_column(y)
        loss = self.learning_loss.description().replace(reduction="none")
        weight = None if sample_weight is None else "sample_weight"
        with_loss = og.add_loss(
            self.get_trained_onnx(), loss, target="expected", sample_weight=weight
        )
        session = og.InferenceSession(with_loss)
        data: dict[str, Any] = {
            self.model_onnx.graph.input[0].name: as_array(X),
            "expected": target,
            "sample_weight": None if weight is None else as_weights(sample_weight, target),
        }
        feeds = as_inputs(data, session)
        found = np.asarray(session.run([with_loss.graph.output[0].name], feeds)[0])
        # The engine takes the mean over the columns of a row.
        return found if self.learning_loss.is_classifier else found * target.shape[1]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the negative mean loss of the rows."""
        return -float(np.mean(self.losses(X, y, sample_weight)))


class _Function(BaseOnnxClass):
    """The graphs of a forward-backward function, saved under the names of its class."""

    def __init__(self, function: OrtGradientForwardBackwardFunction) -> None:
        self.function = function

    def _short_name(self) -> str:  # type: ignore[override]
        return type(self.function).__name__

    def save_onnx_graph(
        self, folder: Any, prefix: str | None = None, suffix: str | None = None
    ) -> dict[str, Any]:
        name = f"{self._short_name()}."
        start = (prefix or "").removeprefix(name)
        return dict(self.function.save_onnx_graph(folder, start, suffix))
