"""Labels: class numbers of string labels, and weights of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import nearest_or, real_number
from onnxgrad.base.option_texts import pairs_of
from onnxgrad.data.arrays import NativeArray, as_numpy, to_native
from onnxgrad.data.columns import Feeds, name_list
from onnxgrad.data.tables import TRUTHS
from onnxgrad.errors import DataError, OptionError

__all__ = [
    "ClassWeight",
    "Labels",
    "class_weight_from_text",
    "native_class_weights",
    "native_targets",
    "with_class_weights",
]

ClassWeight: TypeAlias = "Mapping[Any, float] | Literal['balanced']"
"""Weights by label, or ``"balanced"``."""


def class_weight_from_text(text: str, is_text: bool) -> ClassWeight:
    """Parse ``"balanced"``, or ``LABEL=WEIGHT,...`` into a dictionary from labels to weights.

    `is_text` is whether labels are strings; otherwise they are integers, and truth values are 0
    and 1.
    """
    if text == "balanced":
        return "balanced"
    weights: dict[Any, float] = {}
    for label, weight in pairs_of("class_weight", text):
        try:
            number: Any = float(weight)
        except ValueError:
            number = weight
        try:
            key: Any = label if is_text else int(TRUTHS[label] if label in TRUTHS else float(label))
        except ValueError:
            raise OptionError(
                what=f"class_weight: the label '{label}' is not a number, unlike those in the data",
                value="class_weight",
                hint="Give labels as they are in the target.",
            ) from None
        weights[key] = real_number(f"class_weight of {label}", number)
    return weights


def with_class_weights(class_weight: Any, y: Any, sample_weight: Any) -> np.ndarray[Any, Any]:
    """Return the weight of each row: that of its class, times its sample weight.

    Raises
    ------
    OptionError
        Neither a dictionary nor ``"balanced"``, or a weight that is not a nonnegative number.
    DataError
        Labels that are not one class for each row, or a label that no row has.
    """
    labels = _labels(y)
    try:
        classes, rows, counts = np.unique(labels, return_inverse=True, return_counts=True)
    except TypeError as error:
        raise DataError(
            what="class_weight: the labels are of several types, which have no order",
            value="class_weight",
            detail=str(error),
            hint="Give labels of one type: all integers, or all strings.",
        ) from error
    if isinstance(class_weight, str) and class_weight == "balanced":
        weights = len(labels) / (len(classes) * counts)
    elif isinstance(class_weight, Mapping):
        weights = np.ones(len(classes))
        numbers = {_as_key(label): number for number, label in enumerate(classes)}
        for label, weight in class_weight.items():
            if label not in numbers:
                known = [str(one) for one in classes[:20]]
                raise DataError(
                    what=f"class_weight: no row has the label {label!r}",
                    value="class_weight",
                    detail=f"Labels: {', '.join(known)}{', ...' if len(classes) > 20 else ''}.",
                    hint=nearest_or(str(label), known, "Give weights only for labels in y."),
                )
            weights[numbers[label]] = real_number(f"class_weight of {label!r}", weight)
    else:
        raise _class_weight_error(class_weight)
    result: np.ndarray[Any, Any] = weights[rows.reshape(-1)]
    if sample_weight is not None:
        result = result * _row_weights(sample_weight, len(result))
    return result


def _row_weights(sample_weight: Any, rows: int) -> np.ndarray[Any, Any]:
    weights = as_numpy(sample_weight, "sample_weight")
    if weights.dtype.kind not in "fiub" or weights.ndim == 0 or weights.size != rows:
        raise DataError(
            what=f"sample_weight: {weights.dtype} of shape {list(weights.shape)}, expected "
            f"{rows} numbers, as many as labels",
            value="sample_weight",
            hint="Give one weight for each row.",
        )
    return weights.reshape(-1)


def native_class_weights(class_weight: Any) -> _core.ClassWeights:
    """Return weights of classes for the extension, which applies them to rows.

    Raises
    ------
    OptionError
        Neither a dictionary nor ``"balanced"``, or a weight that is not a nonnegative number.
    """
    if isinstance(class_weight, str) and class_weight == "balanced":
        return _core.ClassWeights(None, [], True)
    if not isinstance(class_weight, Mapping) or not class_weight:
        raise _class_weight_error(class_weight)
    weights = [
        real_number(f"class_weight of {label!r}", weight) for label, weight in class_weight.items()
    ]
    return _core.ClassWeights(to_native(list(class_weight), "class_weight"), weights, False)


def _class_weight_error(class_weight: Any) -> OptionError:
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
            hint="Give sample_weight instead.",
        )
    labels = as_numpy(y, "y")
    is_classes = labels.dtype.kind in "biuUSOT" or (
        labels.dtype.kind == "f" and np.array_equal(labels, np.floor(labels))
    )
    if labels.ndim == 0 or labels.size != len(labels) or not is_classes:
        raise DataError(
            what="class_weight: the labels are not one class for each row",
            value="class_weight",
            hint="Give class labels [N], or sample_weight instead.",
        )
    return labels.reshape(-1)


def _as_key(label: Any) -> Any:
    """Return a label as the key of a dictionary."""
    return label.item() if isinstance(label, np.generic) else label


def native_targets(y: Any) -> dict[str, NativeArray]:
    """Convert targets for the extension, by the output of their loss; a single one has ``""``."""
    targets = y if isinstance(y, Mapping) else {"": y}
    return {str(name): to_native(value, str(name) or "y") for name, value in targets.items()}


class Labels:
    """Class numbers of string labels, for models that do not list their classes.

    The classes are the sorted labels of the first rows that are trained on, separately by loss.
    """

    def __init__(self) -> None:
        self.classes: dict[str, list[str]] = {}  # by the output of the loss

    def learn(
        self,
        session: _core.TrainingSession,
        targets: Mapping[str, NativeArray],
        *,
        every: bool = False,
        feeds: Feeds | None = None,
    ) -> None:
        """Set the classes from `native_targets` of rows to train on, unless they are set already.

        With `every`, rows that do not have each class of the model raise a DataError: they do not
        tell the numbers that training gave to the classes. `feeds` has the names of the rows.

        Raises
        ------
        DataError
            An empty label, or more different ones than the model has classes.
        """
        for output, labels in targets.items():
            loss = _loss_on(session, output)
            if loss is None or not _needs_numbers(loss, labels) or loss.output in self.classes:
                continue
            _check_filled(labels[0], output, feeds)
            classes = sorted(set(labels[0]))
            known, count = loss.num_classes, len(classes)
            if known and count > known:
                raise _class_count_error(
                    output,
                    classes,
                    f"there are {count} different labels{_of(output)}, but the model has {known} "
                    "classes",
                    "Remove or relabel rows, or give the model other classes with replace_head().",
                )
            if every and known and count < known:
                raise _class_count_error(
                    output,
                    classes,
                    f"the rows have {count} of the model's {known} classes{_of(output)}, and the "
                    "model does not list their names",
                    "Give class numbers, or rows of every class.",
                )
            self.classes[loss.output] = classes

    def native(
        self,
        session: _core.TrainingSession,
        labels: NativeArray,
        output: str = "",
        feeds: Feeds | None = None,
    ) -> NativeArray:
        """Return the labels of one loss with numbers for strings; `feeds` names their rows."""
        loss = _loss_on(session, output)
        if loss is None or not _needs_numbers(loss, labels):
            return labels
        texts, shape = labels
        classes = self.classes.get(loss.output)
        if classes is None:
            _check_filled(texts, output, feeds)
            raise DataError(
                what=f"labels{_of(output)} are strings, but the model does not list its classes",
                value=output or "y",
                hint="Train on them first, or give class numbers.",
            )
        numbers = {label: number for number, label in enumerate(classes)}
        unknown = next((row for row, label in enumerate(texts) if label not in numbers), None)
        if unknown is not None:  # a label without a character is no class
            _check_filled(texts, output, feeds)
            row = _row_name(feeds, unknown)
            raise DataError(
                what=f"label '{texts[unknown]}' in {row}{_of(output)} is not one of the classes",
                value=output or "y",
                detail=f"Classes: {', '.join(classes[:8])}.",
                hint="Remove or relabel such rows, or train on rows with this label too.",
            )
        return np.array([numbers[label] for label in texts], np.int64).reshape(shape)


def _check_filled(texts: Sequence[str], output: str, feeds: Feeds | None) -> None:
    """Refuse labels without a character: cells that nobody filled, not a class of their own."""
    empty = [row for row, text in enumerate(texts) if not text.strip()]
    if not empty:
        return
    most = 5
    rows = ", ".join(_row_name(feeds, row) for row in empty[:most])
    more = f" and {len(empty) - most} more" if len(empty) > most else ""
    raise DataError(
        what=f"the label{_of(output)} is empty in {rows}{more}",
        value=output or "y",
        hint="Fill or remove such rows; if it is a class, give it a name such as 'none'.",
    )


def _class_count_error(output: str, classes: list[str], what: str, hint: str) -> DataError:
    return DataError(
        what=what, value=output or "y", detail=f"Labels: {name_list(classes)}.", hint=hint
    )


def _row_name(feeds: Feeds | None, row: int) -> str:
    return f"row {row}" if feeds is None else feeds.row(row)


def _of(output: str) -> str:
    return f" of '{output}'" if output else ""


def _loss_on(session: _core.TrainingSession, output: str) -> _core.LossInfo | None:
    """Return the loss applied to an output or value; the first one for an empty name."""
    first = session.loss
    losses = (first, *first.others)
    named = (loss for loss in losses if output in ("", loss.output, loss.scores))
    return next(named, None)


def _needs_numbers(loss: _core.LossInfo, labels: Any) -> bool:
    is_text = isinstance(labels, tuple) and isinstance(labels[0], list)
    return is_text and loss.is_classifier and loss.classes is None
