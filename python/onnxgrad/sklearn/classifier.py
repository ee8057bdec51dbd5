"""Classification with any ONNX model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import onnx
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d

from onnxgrad import losses
from onnxgrad.errors import ModelError
from onnxgrad.losses import LossLike
from onnxgrad.sklearn.base import OnnxEstimator
from onnxgrad.sklearn.described import ClassifierParameters
from onnxgrad.sklearn.networks import Head, multi_layer_perceptron
from onnxgrad.sklearn.training import Training

__all__ = ["OnnxClassifier"]

Array: TypeAlias = "np.ndarray[Any, Any]"

_MARGIN_LOSSES = ("hinge", "squared_hinge", "modified_huber")
# Loss of scores -> the function from scores to probabilities.
_LINKS = {
    "softmax_cross_entropy": "softmax",
    "kl_divergence": "softmax",
    "binary_cross_entropy": "sigmoid",
    "one_vs_rest_log": "sigmoid",
}
_LABEL_TYPES = ("tensor(int64)", "tensor(int32)", "tensor(string)")


def _head_of(loss: LossLike, num_classes: int) -> Head:
    """Return the head of a network that is trained with this loss."""
    described: Any = losses.from_name(loss) if isinstance(loss, str) else loss
    if isinstance(described, losses.OneVsRest):
        return "one_vs_rest" if described.kind == "log" else "margins"
    of_one = isinstance(described, (losses.Auto, losses.BinaryCrossEntropy, losses.LogLoss))
    return "sigmoid" if of_one and num_classes == 2 else "softmax"


def _takes_several_labels(loss: LossLike) -> bool:
    if isinstance(loss, str):
        return loss in ("auto", "bce", "binary_cross_entropy", "log_loss")
    return isinstance(loss, (losses.Auto, losses.BinaryCrossEntropy, losses.LogLoss))


def _has_margins(estimator: Any) -> bool:
    if hasattr(estimator, "_training"):
        return bool(estimator._is_margin)
    return _head_of(estimator.loss, 2) == "margins"


def _has_probabilities(estimator: Any) -> bool:
    return not _has_margins(estimator)


class OnnxClassifier(
    ClassifierMixin,  # type: ignore[misc]
    ClassifierParameters,
    OnnxEstimator,
):
    """Classification with an ONNX model, given or built with the given layer sizes.

    A given model may end in labels and probabilities as from exporters, in probabilities, or in
    scores.

    {parameters}
    validation_scores_ : list of float or None
        Accuracy on the rows held out for validation.
    classes_ : array [C]
        Labels: those that a given model lists, in its order, else those of `y`, sorted.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxgrad.sklearn import OnnxClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = OnnxClassifier(hidden_layer_sizes=(10,), lr=0.01, random_state=0).fit(X, y)
    >>> classifier.score(X, y) > 0.95, classifier.predict_proba(X).shape
    (True, (150, 3))
    >>> [value.name for value in classifier.to_onnx().graph.output]
    ['label', 'probabilities']
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X [N, ...] and labels y [N], or [N, ...] for a model with scores per position.

        Parameters
        ----------
        X : array-like
        y : array-like [N], or [N, C] of 0 and 1 for several labels per row
            For a given model whose scores have three or more axes, such as [N, T, C], the label of
            each position [N, T].
        sample_weight : array-like [N], default=None

        Returns
        -------
        OnnxClassifier
            Itself.
        """
        return self._fit(X, y, sample_weight, self.max_iter, None, incremental=False)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one more epoch, continuing from the current weights.

        Parameters
        ----------
        X, y, sample_weight : array-like
            As for `fit`.
        classes : array-like [C], default=None
            All labels; required in the first call if the model does not list them.

        Returns
        -------
        OnnxClassifier
            Itself.
        """
        return self._fit(X, y, sample_weight, 1, classes, incremental=True)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        epochs: int,
        classes: Any,
        *,
        incremental: bool,
    ) -> Self:
        if incremental and self.class_weight == "balanced":
            raise ValueError(
                "class_weight 'balanced' is not supported by partial_fit, which does not see all "
                "rows. Use compute_class_weight('balanced', classes=classes, y=y) of "
                "sklearn.utils.class_weight and give the weights as a dictionary."
            )
        is_new = self._is_new(incremental)
        X, y = self._validated(X, y, is_new, multi_output=True)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        check_classification_targets(y if y.ndim < 3 else y.ravel())
        weight = self._weights(sample_weight, X)
        if y.ndim == 1:
            weight = self._with_class_weights(weight, y)
        if is_new:
            self._choose_classes(y, weight, classes, incremental)
            self._start(X, len(self.classes_))
            self._choose_output(y)
        if self._has_positions:
            return self._train(X, self._position_targets(y), weight, epochs, self._class_weights())
        if y.ndim == 2:
            weight = self._with_class_weights(weight, y)
        return self._train(X, self._targets(y), weight, epochs)

    def _with_class_weights(self, weight: Any, y: Array) -> Any:
        if self.class_weight is None:
            return weight
        of_classes = compute_sample_weight(self.class_weight, y)
        return of_classes if weight is None else weight * of_classes

    def _choose_classes(self, y: Array, weight: Any, classes: Any, incremental: bool) -> None:
        """Set `classes_`, unless a given model replaces them by its own later."""
        self._is_multi_label = y.ndim == 2 and type_of_target(y) == "multilabel-indicator"
        if self._is_multi_label:
            self.classes_ = np.arange(y.shape[1])
            return
        if y.ndim > 1 and self.model is None:
            raise ValueError(f"y has {y.shape[1]} columns, which must contain only 0 and 1.")
        if classes is None and incremental and self.model is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        self.classes_ = np.unique(y if classes is None else classes)
        if not incremental:
            self._check_several_classes(y, weight)

    def _check_several_classes(self, y: Array, weight: Any) -> None:
        present = np.unique(y if weight is None else y[np.asarray(weight) > 0])
        if len(present) < 2:
            of = "" if weight is None else " with a sample_weight above 0"
            raise ValueError(
                f"The number of classes{of} must be greater than one; got 1 class: {present[0]!r}"
            )

    def _network(self, num_features: int, dtype: str, seed: int) -> onnx.ModelProto:
        num_classes = len(self.classes_)
        head = "multi_label" if self._is_multi_label else _head_of(self.loss, num_classes)
        single = head not in ("softmax", "multi_label") and num_classes == 2
        labels = self.classes_
        if labels.dtype.kind == "f":
            labels = labels.astype(np.int64)  # integers, see check_classification_targets
        return multi_layer_perceptron(
            self._layers(num_features, 1 if single else num_classes),
            activation=self.activation,
            head=head,
            classes=labels,
            dtype=dtype,
            scheme=self.initializer or "auto",
            seed=seed,
        )

    def _placed_loss(self) -> LossLike:
        loss: Any = losses.from_name(self.loss) if isinstance(self.loss, str) else self.loss
        is_single = self.model is None and not self._is_multi_label and len(self.classes_) == 2
        if is_single and isinstance(loss, losses.LogLoss):
            loss = loss.replace(output="positive")
        placed: LossLike = loss
        return placed

    def _settle(self, training: Training) -> Training:
        session = training.use(lambda trainer: trainer.session)
        outputs = training.outputs()
        if session.is_classifier or self.loss != "auto":
            return training
        # Columns without a head look like a regression; here they are scores.
        shape = outputs[0].shape
        binary = (self._is_multi_label and len(shape) < 3) or len(shape) < 2 or shape[-1] == 1
        loss = "binary_cross_entropy" if binary else "softmax_cross_entropy"
        as_classifier = training.with_options(loss=loss)
        try:
            as_classifier.outputs()
        except ModelError:  # they are not scores of classes
            return training
        return as_classifier

    def _choose_output(self, y: Array) -> None:
        """Determine what the model returns: labels, and margins, scores or probabilities."""
        session = self._training.use(lambda trainer: trainer.session)
        loss = session.loss_name
        values = [out for out in session.get_outputs() if out.type not in _LABEL_TYPES]
        if not values:
            raise ValueError("The model has neither scores nor probabilities among its outputs.")
        names = [out.name for out in values]
        scores = self._training.unchanged(session.scores_name)
        has_scores = scores in names
        chosen = values[names.index(scores) if has_scores else 0]
        self._output = chosen.name
        # skl2onnx converts the margins of the modified Huber loss to probabilities.
        self._is_margin = loss in _MARGIN_LOSSES and (has_scores or loss != "modified_huber")
        self._link = _LINKS.get(loss, "") if has_scores else ""
        self._is_normalised = loss != "binary_cross_entropy"
        listed = session.classes
        if listed is not None and self.model is not None:
            self.classes_ = np.array(listed.tolist())
        self._lists_labels = listed is not None
        self._takes_labels = session.is_classifier
        self._has_positions = self._takes_labels and len(chosen.shape) > 2 and y.ndim > 1
        if self._has_positions:
            self._is_multi_label = False
            if listed is None:
                self.classes_ = self._position_classes(y, chosen.shape)
            return
        if y.ndim > 1 and not self._is_multi_label:
            raise ValueError(f"y has {y.shape[1]} columns, which must contain only 0 and 1.")
        columns = chosen.shape[-1] if len(chosen.shape) > 1 else None
        self._num_columns = columns if isinstance(columns, int) else len(self.classes_)
        fits = [len(self.classes_)]
        if len(self.classes_) == 2 and not self._is_multi_label:
            fits.append(1)
        if self._num_columns not in fits:
            raise ValueError(
                f"The model has {columns} columns of scores in '{self._output}', but there are "
                f"{len(self.classes_)} classes. new_head={len(self.classes_)} gives it as many."
            )

    def _position_classes(self, y: Array, shape: Sequence[Any]) -> Array:
        """Return the labels of the classes for scores per position: numbers or strings."""
        if y.dtype.kind not in "biuf":
            strings: Array = np.unique(y)
            return strings
        axis = self._training.use(lambda trainer: trainer.session.class_axis)
        sizes = [size for size in shape[1:] if isinstance(size, int)]
        size = shape[axis] if axis is not None else (sizes[0] if len(sizes) == 1 else None)
        return np.arange(size if isinstance(size, int) else int(y.max()) + 1)

    def _position_targets(self, y: Array) -> Array:
        """Convert labels of positions for the loss: class numbers, or strings of the model."""
        if y.dtype.kind in "biuf" or self._lists_labels:
            return y.astype(np.int64) if y.dtype.kind in "bf" else y
        numbers: Array = self._encoded(y.ravel()).reshape(y.shape)
        return numbers

    def _class_weights(self) -> Any:
        """Return the class weights with labels converted as by `_position_targets`."""
        weights = self.class_weight
        if not isinstance(weights, Mapping) or self._lists_labels:
            return weights
        numbers = {label: number for number, label in enumerate(self.classes_.tolist())}
        return {numbers.get(label, label): weight for label, weight in weights.items()}

    def _encoded(self, y: Array) -> Array:
        """Return the class number of each label [N]."""
        numbers = {label: i for i, label in enumerate(self.classes_.tolist())}
        labels, inverse = np.unique(y, return_inverse=True)
        unknown = [label for label in labels.tolist() if label not in numbers]
        if unknown:
            raise ValueError(
                f"y has labels {unknown[:5]} that are not among the classes "
                f"{self.classes_.tolist()[:20]}"
            )
        found: Array = np.array([numbers[label] for label in labels.tolist()], np.int64)
        of_rows: Array = found[inverse]
        return of_rows

    def _targets(self, y: Array) -> Array:
        """Convert labels for the loss: labels of the model, class numbers, or rows of 0 and 1."""
        if y.ndim != 1 + self._is_multi_label:
            raise ValueError("y must have either one label per row in all calls, or several.")
        if self._is_multi_label:
            if y.shape[1] != len(self.classes_):
                raise ValueError(f"y has {y.shape[1]} columns, expected {len(self.classes_)}.")
            targets: Array = y.astype(np.float32)
            return targets
        numbers = self._encoded(y)
        if not self._takes_labels:
            columns: Array = np.eye(len(self.classes_), dtype=np.float32)
            return columns[numbers] if self._num_columns > 1 else columns[numbers, 1:]
        if not self._lists_labels:
            return numbers
        listed = self._training.use(lambda trainer: trainer.session.classes)
        labels: Array = np.asarray(listed)[numbers]
        return labels

    def predict(self, X: Any) -> Array:
        """Return the labels [N], or [N, C] of 0 and 1, of the rows X [N, ...].

        For a model with scores per position, such as [N, T, C], these are labels [N, T].
        """
        check_is_fitted(self)
        if self._has_positions:
            position_labels: Array = self.classes_[self.predict_proba(X).argmax(axis=-1)]
            return position_labels
        if self._is_multi_label:
            likely: Array = (self.predict_proba(X) > 0.5).astype(int)
            return likely
        if self._is_margin:
            margins = self.decision_function(X)
            numbers = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        else:
            numbers = self.predict_proba(X).argmax(axis=1)
        labels: Array = self.classes_[numbers]
        return labels

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities [N, C] of the classes, in the order of `classes_`.

        Not available for margin losses such as ``"hinge"``. With several labels per row, the
        probability of each label. For a model with scores per position: [N, T, C].
        """
        check_is_fitted(self)
        values: Array = self._values(X, self._output)
        if self._has_positions:
            axis = self._training.use(lambda trainer: trainer.session.class_axis)
            values = np.moveaxis(values, 1 if axis is None else axis, -1)
            if self._link == "softmax":
                values = np.exp(values - values.max(axis=-1, keepdims=True))
            probabilities: Array = values / values.sum(axis=-1, keepdims=True)
            return probabilities
        values = values.reshape(len(values), -1)
        if self._link == "softmax":
            values = np.exp(values - values.max(axis=1, keepdims=True))
        elif self._link == "sigmoid":
            values = (1 + np.tanh(values / 2)) / 2
        if self._is_multi_label:
            return values
        if values.shape[1] == 1:
            return np.hstack([1 - values, values])
        if self._link or not self._is_normalised:
            values = values / values.sum(axis=1, keepdims=True)
        return values

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            logarithms: Array = np.log(self.predict_proba(X))
        return logarithms

    @available_if(_has_margins)  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Array:
        """Return the margins [N, C], or [N] for two classes; only for margin losses."""
        check_is_fitted(self)
        values: Array = self._values(X, self._output)
        values = values.reshape(len(values), -1)
        margins: Array = values[:, -1] if len(self.classes_) == 2 else values
        return margins

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of `predict`; positions without the label of a class are ignored."""
        if not getattr(self, "_has_positions", False):
            return float(super().score(X, y, sample_weight))
        y = np.asarray(y)
        counts = np.isin(y, self.classes_).astype(float)
        if sample_weight is not None:
            counts *= np.reshape(sample_weight, (-1, *[1] * (y.ndim - 1)))
        return float(np.average(self.predict(X) == y, weights=counts))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = _takes_several_labels(self.loss)
        return tags
