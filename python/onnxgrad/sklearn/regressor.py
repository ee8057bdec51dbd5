"""Regression with any ONNX model."""

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


class OnnxRegressor(
    RegressorMixin,  # type: ignore[misc]
    OnnxEstimator,
):
    """Regression with an ONNX model, given or built with the given layer sizes.

    {parameters}
    validation_scores_ : list of float or None
        R^2 on the rows held out for validation.
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
        """Train on X [N, ...] and y [N] or [N, K], or [N, ...] for a given model.

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
        """Train for one more epoch from the current weights; parameters as for `fit`."""
        return self._fit(X, y, sample_weight, 1, incremental=True)

    def _fit(self, X: Any, y: Any, sample_weight: Any, epochs: int, *, incremental: bool) -> Self:
        is_new = self._is_new(incremental)
        X, y = self._validated(X, y, is_new, multi_output=True, y_numeric=True)
        weight = self._weights(sample_weight, X)
        if is_new:
            self.n_outputs_ = 1 if y.ndim == 1 else y.shape[1]
            self._shape_of_row = y.shape[1:]
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
        if len(self._shape_of_row) > 1:
            return ()
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
        """Return the values for the rows X [N, ...], with rows of the shape of `y`."""
        check_is_fitted(self)
        values = self._values(X, self._output)
        return values.reshape(len(values), *self._shape_of_row)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R^2 of `predict`, averaged over the columns; parameters as for `fit`."""
        y = np.asarray(y)
        columns = y if y.ndim < 3 else y.reshape(len(y), -1)
        predicted = self.predict(X).reshape(columns.shape)
        return float(r2_score(columns, predicted, sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
