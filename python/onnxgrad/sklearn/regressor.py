"""Regression by any ONNX model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import onnx
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from onnxgrad import losses
from onnxgrad.errors import OptionError
from onnxgrad.losses import LossLike
from onnxgrad.metrics import MetricLike
from onnxgrad.sklearn.base import OnnxEstimator
from onnxgrad.sklearn.networks import multi_layer_perceptron
from onnxgrad.sklearn.training import Training

__all__ = ["OnnxRegressor"]


class OnnxRegressor(RegressorMixin, OnnxEstimator):  # type: ignore[misc]
    """Regression by an ONNX model, given or made by the sizes of its layers.

    Parameters
    ----------
    model : path, bytes, onnx.ModelProto or function, default=None
        Any ONNX model with one input of numbers, whose weights training starts from; or a function
        of (number of features, number of targets) that returns one. None makes a
        multi-layer perceptron of `hidden_layer_sizes`, see `multi_layer_perceptron`.
    hidden_layer_sizes : int or sequence of int, default=(100,)
        Only without `model`, as `activation`.
    activation : str, default="relu"
        ``"relu"``, ``"leaky_relu"``, ``"tanh"``, ``"logistic"`` or ``"identity"``.
    loss : str or Loss, default="auto"
        See `onnxgrad.losses`; ``"auto"`` is squared error. A network made here for ``"poisson"``
        ends in an exponential.
    penalty : Penalty, list of Penalty or dict, default=None
        See `onnxgrad.losses.Penalty`.
    optimizer : str or Optimizer, default="adam"
        See `onnxgrad.optimizers`.
    lr : float, default=None
        Learning rate; None is the optimizer's own.
    schedule : str or Schedule, default=None
        How the learning rate changes in each `fit`, see `onnxgrad.schedules`.
    groups : list of ParameterGroup, default=()
        Weights that are updated in a way of their own, see `onnxgrad.optimizers`.
    clip_value, clip_norm : float, default=None
        Bounds for the elements of the gradient and for its norm.
    accumulate : int, default=1
        Number of batches whose gradients are put together for a step.
    batch_size : int or "auto", default="auto"
        ``"auto"`` is 200, or all rows where there are fewer, and for L-BFGS.
    max_iter : int, default=200
        Epochs of a `fit`, at most.
    tol : float, default=1e-4
        Training ends when the loss has not become smaller by `tol` for `n_iter_no_change` epochs;
        None: it always goes on to `max_iter`.
    n_iter_no_change : int, default=10
    early_stopping : bool, default=False
        Whether it is the loss on rows kept for validation that has to become smaller, and the
        weights of the best epoch are kept.
    validation_fraction : float, default=0.1
        Share of the rows kept for validation with `early_stopping`.
    shuffle : bool, default=True
        A new order of the rows in each epoch.
    warm_start : bool, default=False
        Whether another `fit` goes on from the weights and the optimizer state of the last one.
    initializer : str, default=None
        How new weights are drawn, see `onnxgrad.initialize`. None is ``"auto"`` for a network made
        here; a given model keeps its weights.
    trainable, frozen : str or list of str, default=None
        Names or glob patterns of the weights to train and of those that stay as they are.
    training_mode : "auto", True or False, default="auto"
        Whether Dropout and BatchNormalization of a given model train, see `TrainingSession`.
    dtype : {"float32", "float64"}, default=None
        Of a network made here; None is float32 if `X` is, else float64.
    callbacks : list of Callback or function, default=()
        See `onnxgrad.callbacks`.
    random_state : int, RandomState or None, default=None
        Of weights, order of the rows, validation rows and random operators.
    threads : int, default=None
        None is what OpenMP may use here: all cores, in joblib's workers their share, and what
        threadpoolctl allows.
    verbose : {0, 1, 2, "auto"}, default=0
        As for `onnxgrad.Trainer.fit`.

    Attributes
    ----------
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if `X` had names of columns.
    loss_curve_ : list of float
        Training loss of each epoch since the weights were new (of a call with very many epochs
        those that its `history_` has).
    loss_ : float
        The last of them.
    n_iter_ : int
        Number of epochs since the weights were new.
    history_ : History
        Of the last `fit`, see `onnxgrad.Trainer`.
    validation_losses_ : list of float or None
        Of the epochs of the last `fit`, with `early_stopping`.
    validation_scores_ : list of float or None
        The same: R^2 on the rows kept for validation.
    n_outputs_ : int
        Number of targets.

    Examples
    --------
    >>> import numpy as np
    >>> from onnxgrad.sklearn import OnnxRegressor
    >>> X = np.linspace(-1, 1, 60, dtype=np.float32).reshape(-1, 1)
    >>> regressor = OnnxRegressor(hidden_layer_sizes=(), optimizer="sgd", lr=0.1, random_state=0)
    >>> regressor.fit(X, 3 * X.ravel() + 1).predict([[0.5]]).round(1)
    array([2.5], dtype=float32)
    >>> [value.name for value in regressor.to_onnx().graph.output]
    ['variable']
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X [N, ...] and y [N] or [N, K].

        Parameters
        ----------
        X : array-like
        y : array-like
        sample_weight : array-like [N], default=None

        Returns
        -------
        OnnxRegressor
            Itself.
        """
        return self._fit(X, y, sample_weight, self.max_iter, incremental=False)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train one epoch more, going on from the present weights; parameters as for `fit`."""
        return self._fit(X, y, sample_weight, 1, incremental=True)

    def _fit(self, X: Any, y: Any, sample_weight: Any, epochs: int, *, incremental: bool) -> Self:
        is_new = self._is_new(incremental)
        X, y = self._validated(X, y, is_new, multi_output=True, y_numeric=True)
        weight = self._weights(sample_weight, X)
        if is_new:
            self.n_outputs_ = 1 if y.ndim == 1 else y.shape[1]
            self._has_columns = y.ndim > 1
            self._start(X, self.n_outputs_)
        return self._train(X, y, weight, epochs)

    def _network(self, num_features: int, dtype: str, seed: int) -> onnx.ModelProto:
        return multi_layer_perceptron(
            self._layers(num_features, self.n_outputs_),
            activation=self.activation,
            head="exponential" if self._is_log_linear() else "values",
            dtype=dtype,
            scheme=self.initializer or "auto",
            seed=seed,
        )

    def _is_log_linear(self) -> bool:
        loss: Any = losses.from_name(self.loss) if isinstance(self.loss, str) else self.loss
        return self.model is None and isinstance(loss, losses.Poisson) and loss.log_input

    def _metrics(self) -> str | Mapping[str, MetricLike] | tuple[()]:
        if not self._is_log_linear():
            return "r2"
        return {"r2": lambda y, log_values: r2_score(y, np.exp(log_values))}

    def _placed_loss(self) -> LossLike:
        if not self._is_log_linear():
            return self.loss
        loss: Any = losses.from_name(self.loss) if isinstance(self.loss, str) else self.loss
        placed: LossLike = loss.replace(output="scores")
        return placed

    def _settle(self, training: Training) -> Training:
        if training.use(lambda trainer: trainer.session.is_classifier):
            raise OptionError(
                what="model: it is a classifier",
                value="model",
                detail=training.use(lambda trainer: trainer.session.loss_line),
                hint="Use OnnxClassifier, or give a loss for numbers such as 'squared_error'.",
            )
        scores = training.use(lambda trainer: trainer.session.scores_name)
        names = [value.name for value in training.outputs()]
        self._output = scores if scores in names else names[0]
        return training

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """Return the values [N], or [N, K] if `y` had columns, for the rows X [N, ...]."""
        check_is_fitted(self)
        values = self._values(X, self._output)
        if self._has_columns:
            return values.reshape(len(values), -1)
        return values.ravel()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
