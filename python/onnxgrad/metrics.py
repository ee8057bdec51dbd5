"""Metrics of a model on validation rows.

A metric is the name of a built-in one, or a function ``metric(y_true, y_pred)``, which is called
once with all validation rows. If it has a parameter `sample_weight`, it also gets the weights of
the rows. For classifiers `y_true` are class numbers int64 [N] and `y_pred` probabilities [N, C];
for other models both are numbers [N, K].

In `Trainer.history` and in callbacks, the metric ``"f1"`` is called ``val_f1``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import choice, listed, plain_text, unknown_name
from onnxgrad.data.arrays import as_numpy
from onnxgrad.errors import OptionError

__all__ = ["MetricLike", "compute", "is_larger_better", "names"]

MetricLike: TypeAlias = "str | Callable[..., float]"
"""The name of a built-in metric, or a function of (y_true, y_pred)."""


def names() -> list[str]:
    """Return the names of the built-in metrics.

    Examples
    --------
    >>> import onnxgrad as og
    >>> "f1" in og.metrics.names()
    True
    """
    return _core.metric_names()


def is_larger_better(metric: str) -> bool:
    """Return whether larger values are better; True for metrics that are not built in."""
    return _core.is_larger_better(plain_text("metric", metric, "accuracy"))


def compute(name: str, y_true: Any, y_pred: Any, sample_weight: Any = None) -> float:
    """Compute a built-in metric from predictions.

    Parameters
    ----------
    name : str
        See `names`.
    y_true : array [N], or [N, K]
        Class numbers (an integer type), or numbers.
    y_pred : array [N, C], or [N, K]
        Probabilities or scores of the classes, or numbers.
    sample_weight : array [N], default=None

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> og.metrics.compute("mae", np.array([1.0, 2.0]), np.array([1.5, 2.0]))
    0.25
    """
    choice("metric", name, names())
    predicted = _numbers(as_numpy(y_pred, "y_pred"), "y_pred")
    target = as_numpy(y_true, "y_true")
    if target.dtype.kind in "iub":
        target = np.ascontiguousarray(target.ravel(), np.int64)
        columns = predicted.shape[1] if predicted.ndim == 2 else 1
        if columns < 2:
            raise OptionError(
                what="y_pred has one column, expected a score for each class",
                value="y_pred",
                hint="Give [N, C]; for two classes np.column_stack([1 - p, p]).",
            )
        if target.size and not 0 <= target.min() <= target.max() < columns:
            raise OptionError(
                what=f"y_true has class numbers outside 0 to {columns - 1}",
                value="y_true",
                hint="Number the classes from 0, and give y_pred a column for each.",
            )
    else:
        target = _numbers(target, "y_true")
    predicted, target = (_two_dimensional(predicted), _rows(target, predicted))
    weight = None
    if sample_weight is not None:
        weight = _numbers(as_numpy(sample_weight, "sample_weight"), "sample_weight")
    if len(predicted) != len(target) or (weight is not None and weight.shape != (len(target),)):
        raise OptionError(
            what="y_true, y_pred and sample_weight have different numbers of rows",
            hint="Give all of them the same number of rows.",
        )
    return _core.metric_value(name, target, predicted, weight)


def _numbers(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    try:
        return np.atleast_1d(np.ascontiguousarray(array, np.float64))
    except (TypeError, ValueError) as error:
        raise OptionError(
            what=f"{name} is an array of {array.dtype}, expected numbers",
            value=name,
            hint="Give numbers: of classes, their indices or scores.",
        ) from error


def _two_dimensional(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.reshape(len(array), -1)


def _rows(target: np.ndarray[Any, Any], predicted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if target.dtype.kind == "i":
        return target
    shaped = _two_dimensional(target)
    if shaped.shape != _two_dimensional(predicted).shape:
        raise OptionError(
            what=f"y_true has shape {target.shape}, y_pred {predicted.shape}",
            value="y_true",
            hint="Give both the same shape; reshape(-1, 1) makes a column.",
        )
    return shaped


def native_metrics(
    metrics: MetricLike | Iterable[MetricLike] | Mapping[str, MetricLike],
    *,
    has_rows: bool = True,
) -> list[_core.Metric]:
    """Convert metrics, or a dictionary of metrics by name, for the extension."""
    given: Iterable[tuple[str | None, MetricLike]]
    if isinstance(metrics, str) or callable(metrics):
        given = [(None, metrics)]
    elif isinstance(metrics, Mapping):
        given = metrics.items()
    else:
        given = [(None, metric) for metric in listed(metrics)]
    result = [_native(name, metric) for name, metric in given]
    if result and not has_rows:
        raise OptionError(
            what="metrics need validation rows, and there is no validation",
            value="metrics",
            hint="Give validation=0.1, or separate rows.",
        )
    taken = [metric.name for metric in result]
    for name in taken:
        if taken.count(name) > 1 or name == "loss":
            raise OptionError(
                what=f"metrics: there are two with the name '{name}'",
                value="metrics",
                hint="Name functions by a dictionary: {'name': function}.",
            )
    return result


def _native(name: str | None, metric: MetricLike) -> _core.Metric:
    if isinstance(metric, str):
        if metric not in names():
            raise unknown_name("metrics", metric, names())
        return _core.Metric(metric, None)
    if not callable(metric):
        raise OptionError(
            what=f"metrics: {metric!r} is neither a name nor a function",
            value="metrics",
            hint=f"Known names: {', '.join(names())}.",
        )
    title = name or str(getattr(metric, "__name__", type(metric).__name__))
    return _core.Metric(title, _caller(metric))


def _caller(metric: Callable[..., Any]) -> Callable[[Any, Any, Any], float]:
    import inspect

    try:
        takes_weight = "sample_weight" in inspect.signature(metric).parameters
    except (TypeError, ValueError):
        takes_weight = False

    def call(y_true: Any, y_pred: Any, weight: Any) -> float:
        if takes_weight and weight is not None:
            return float(metric(y_true, y_pred, sample_weight=weight))
        return float(metric(y_true, y_pred))

    return call
