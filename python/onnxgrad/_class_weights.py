"""Weights of classes, turned into weights of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from onnxgrad import _core
from onnxgrad._arrays import as_numpy, to_native
from onnxgrad._checks import nearest_or, real_number
from onnxgrad.errors import DataError, OptionError

ClassWeight: TypeAlias = "Mapping[Any, float] | Literal['balanced']"
"""Weights by label, or ``"balanced"``."""


def with_class_weights(class_weight: Any, y: Any, sample_weight: Any) -> np.ndarray[Any, Any]:
    """Return the weight of each row: that of its class, times its sample weight.

    Raises
    ------
    OptionError
        Neither a dictionary nor ``"balanced"``, or a weight that is no number of at least 0.
    DataError
        Labels that are not one class for each row, or a label in no row.
    """
    labels = _labels(y)
    classes, rows, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if isinstance(class_weight, str) and class_weight == "balanced":
        weights = len(labels) / (len(classes) * counts)
    elif isinstance(class_weight, Mapping):
        weights = np.ones(len(classes))
        places = {_plain(label): place for place, label in enumerate(classes)}
        for label, weight in class_weight.items():
            if label not in places:
                known = [str(one) for one in classes[:20]]
                raise DataError(
                    what=f"class_weight: no row has the label {label!r}",
                    value="class_weight",
                    detail=f"Labels: {', '.join(known)}{', ...' if len(classes) > 20 else ''}.",
                    hint=nearest_or(str(label), known, "Give weights for labels of y alone."),
                )
            weights[places[label]] = real_number(f"class_weight of {label!r}", weight)
    else:
        raise _refusal(class_weight)
    result: np.ndarray[Any, Any] = weights[rows.reshape(-1)]
    if sample_weight is not None:
        result = result * as_numpy(sample_weight, "sample_weight").reshape(-1)
    return result


def native_class_weights(class_weight: Any) -> _core.ClassWeights:
    """Return weights of classes for rows that come in chunks.

    Raises
    ------
    OptionError
        Neither a dictionary nor ``"balanced"``, or a weight that is no number of at least 0.
    """
    if isinstance(class_weight, str) and class_weight == "balanced":
        return _core.ClassWeights(None, [], True)
    if not isinstance(class_weight, Mapping) or not class_weight:
        raise _refusal(class_weight)
    weights = [
        real_number(f"class_weight of {label!r}", weight) for label, weight in class_weight.items()
    ]
    return _core.ClassWeights(to_native(list(class_weight), "class_weight"), weights, False)


def _refusal(class_weight: Any) -> OptionError:
    return OptionError(
        what=f"class_weight: {class_weight!r}",
        value="class_weight",
        hint="Give a dictionary from labels to numbers, or 'balanced'.",
    )


def _labels(y: Any) -> np.ndarray[Any, Any]:
    if isinstance(y, Mapping):
        raise OptionError(
            what="class_weight: there are several targets",
            value="class_weight",
            hint="Give sample_weight.",
        )
    labels = as_numpy(y, "y")
    is_classes = labels.dtype.kind in "biuUSOT" or (
        labels.dtype.kind == "f" and np.array_equal(labels, np.floor(labels))
    )
    if labels.ndim == 0 or labels.size != len(labels) or not is_classes:
        raise DataError(
            what="class_weight: the labels are not one class for each row",
            value="class_weight",
            hint="Give class labels [N], or sample_weight.",
        )
    return labels.reshape(-1)


def _plain(label: Any) -> Any:
    """Return a label as a dictionary finds it."""
    return label.item() if isinstance(label, np.generic) else label
