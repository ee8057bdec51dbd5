"""Training of a model that computes its loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import onnx

from onnxgrad.compat.models import takes_models
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
from onnxgrad.compat.onnxcustom.utils.onnx_helper import replace_initializers_into_onnx
from onnxgrad.compat.onnxcustom.utils.onnxruntime_helper import device_to_providers
from onnxgrad.compat.onnxruntime.training_session import TrainingParameters, TrainingSession

__all__ = ["BaseEstimator", "OrtGradientOptimizer"]


class OrtGradientOptimizer(BaseEstimator):
    """Trains a model that computes its loss, with any of onnxgrad's optimizers.

    Parameters
    ----------
    model_onnx : onnx.ModelProto
        A model with a loss, see `add_loss_output`.
    weights_to_train : list of str
        Names, in any order.
    loss_output_name : str, default="loss"
    max_iter : int, default=100
        Number of epochs.
    training_optimizer_name : str, Optimizer or onnx.ModelProto, default="SGDOptimizer"
        See `TrainingParameters`; the default uses the update of the learning rate.
    batch_size : int, default=10
    learning_rate : float, str or BaseLearningRate, default="SGD"
    device : str, default="cpu"
    warm_start : bool, default=False
        False draws the weights from N(0, 1) at the beginning of `fit`; True continues from the
        current ones.
    verbose : int, default=0
        1 shows a progress bar with loss and rate, with tqdm; 2 shows more digits, the smallest loss
        so far and the last validation loss.
    validation_every : int or float, default=0.1
        Epochs between validations, or that fraction of `max_iter`.
    saved_gradient : str, default=None
        File to save the gradient graph to.
    sample_weight_name : str, default="weight"
        Input of the model for the weights of the rows.

    Attributes
    ----------
    train_session_ : TrainingSession
    trained_coef_ : dict of str to numpy.ndarray
    train_losses_ : list of float
        Loss per row of each epoch.
    validation_losses_ : list of float
        Empty without validation.
    """

    @takes_models("model_onnx")
    def __init__(
        self,
        model_onnx: onnx.ModelProto,
        weights_to_train: Iterable[str],
        loss_output_name: str = "loss",
        max_iter: int = 100,
        training_optimizer_name: Any = "SGDOptimizer",
        batch_size: int = 10,
        learning_rate: Any = "SGD",
        device: str = "cpu",
        warm_start: bool = False,
        verbose: int = 0,
        validation_every: float = 0.1,
        saved_gradient: str | None = None,
        sample_weight_name: str = "weight",
    ) -> None:
        super().__init__(model_onnx, learning_rate, device)
        self.weights_to_train = weights_to_train
        self.loss_output_name = loss_output_name
        self.max_iter = max_iter
        self.training_optimizer_name = training_optimizer_name
        self.batch_size = batch_size
        self.warm_start = warm_start
        self.verbose = verbose
        self._set_validation_every(validation_every)
        self.saved_gradient = saved_gradient
        self.sample_weight_name = sample_weight_name

    def __getstate__(self) -> dict[str, Any]:
        kept = {"trained_coef_", "train_losses_", "validation_losses_"}
        return {k: v for k, v in vars(self).items() if not k.endswith("_") or k in kept}

    def _create_training_session(self) -> TrainingSession:
        parameters = TrainingParameters()
        parameters.loss_output_name = self.loss_output_name
        parameters.weights_to_train = list(self.weights_to_train)
        parameters.training_optimizer_name = self.training_optimizer_name
        if self.training_optimizer_name == "SGDOptimizer":
            optimizer = self.learning_rate.optimizer(0.0)
            parameters.optimizer = lambda: optimizer  # type: ignore[method-assign]
        check_device(self.device)
        return TrainingSession(
            self.model_onnx,
            parameters,
            providers=device_to_providers(self.device),
            for_epochs=True,
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
            For a model with an input `sample_weight_name`.
        X_val, y_val : arrays, default=None
            Validation data.
        use_numpy : bool, default=False
            Accepted for compatibility: arrays are always read in place.
        """
        del use_numpy
        before = self.get_state() if self.warm_start and self._is_fitted() else None
        self.train_session_ = self._create_training_session()
        trainer = self.train_session_.use_trainer(new_seed())
        if before is not None:
            self.train_session_.load_state(before)
        elif not self.warm_start:
            self.train_session_.load_state(draw_weights(self.train_session_.get_state()))
        if self.saved_gradient is not None:
            self._save_gradient(self.saved_gradient)
        data = self._feeds(X, y, sample_weight)
        validation = None if X_val is None else self._feeds(X_val, y_val, None)
        train(self, trainer, (*data, None), validation)
        self.validation_losses_ = self.validation_losses_ or []
        self.trained_coef_ = self.train_session_.get_state()
        return self

    def _feeds(self, X: Any, y: Any, weight: Any) -> tuple[dict[str, Any], None]:
        """Return the inputs of the model by name, including the target, and None."""
        names = [value.name for value in self._session().get_inputs()[:-1]]
        target = as_column(y)
        feeds = {names[0]: as_array(X), names[1]: target}
        if len(feeds[names[0]]) != len(target):
            raise ValueError(
                f"Shape mismatch X.shape={feeds[names[0]].shape!r}, y.shape={target.shape!r}."
            )
        if self.sample_weight_name in names:
            ones = np.ones(len(target), np.float32)
            feeds[self.sample_weight_name] = ones if weight is None else as_weights(weight, target)
        elif weight is not None:
            raise ValueError(
                f"The model has no input {self.sample_weight_name!r} for sample weights; give "
                "weight_name to add_loss_output."
            )
        return feeds, None

    def _save_gradient(self, path: str) -> None:
        from onnxgrad.compat.onnxcustom.training.grad_helper import (
            DerivativeOptions,
            onnx_derivative,
        )

        names = [value.name for value in self.train_session_.get_inputs()[:1]]
        onnx_derivative(
            self.model_onnx,
            list(self.weights_to_train),
            names,
            DerivativeOptions.Loss,
            self.loss_output_name,
            path_name=path,
        )

    def _is_fitted(self) -> bool:
        return hasattr(self, "trained_coef_")

    def _session(self) -> TrainingSession:
        """Return the session; after unpickling, create a new one.

        Raises
        ------
        AttributeError
            Before `fit`.
        """
        if not hasattr(self, "train_session_"):
            if not self._is_fitted():
                raise AttributeError("Method fit must be called before.")
            session = self._create_training_session()
            session.load_state(self.trained_coef_)
            self.train_session_ = session
        return self.train_session_

    def get_state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the trained weights.

        Raises
        ------
        AttributeError
            Before `fit`.
        """
        return self._session().get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Set the trained weights.

        Raises
        ------
        AttributeError
            Before `fit`.
        """
        self._session().load_state(state)
        if self._is_fitted():
            self.trained_coef_ = self.train_session_.get_state()

    @takes_models("model")
    def get_trained_onnx(self, model: onnx.ModelProto | None = None) -> onnx.ModelProto:
        """Return a model with the trained weights; None means the one that was trained."""
        return replace_initializers_into_onnx(model or self.model_onnx, self.get_state())

    def losses(self, X: Any, y: Any, sample_weight: Any = None) -> np.ndarray[Any, Any]:
        """Return the total loss of all rows with the current weights, [1, 1]."""
        import onnxgrad as og

        feeds, _ = self._feeds(X, y, sample_weight)
        session = og.InferenceSession(self.get_trained_onnx())
        return np.asarray(session.run([self.loss_output_name], as_inputs(feeds, session))[0])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the negative loss per row, including any penalty."""
        return -float(self.losses(X, y, sample_weight).sum()) / len(as_array(X))
