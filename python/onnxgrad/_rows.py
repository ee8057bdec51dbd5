"""Rows as users have them, made ready for the loop of the extension."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from onnxgrad import _core
from onnxgrad._arrays import NativeArray, to_native
from onnxgrad._arrow import named_arrays
from onnxgrad._columns import Feeds, name_list
from onnxgrad.data import Source
from onnxgrad.errors import DataError

if TYPE_CHECKING:
    from onnxgrad.sessions import TrainingSession

__all__ = [
    "Labels",
    "NativeRows",
    "as_pair",
    "check_alone",
    "has_weight",
    "named_inputs",
    "unpack_table",
    "validation_names",
]

NativeRows: TypeAlias = "_core.Dataset | _core.DataSource"


def unpack_table(
    session: TrainingSession, X: Any, y: Any = None, sample_weight: Any = None
) -> tuple[Any, Any, Any]:
    """Return `_arrow.named_arrays` for the inputs of `session`."""
    dtypes = {value.name: value.dtype for value in session._core.inputs}
    return named_arrays(dtypes, X, y, sample_weight)


def named_inputs(session: TrainingSession, X: Any) -> Iterable[tuple[str, Any]]:
    """Return what the model's inputs are fed with, by name."""
    if isinstance(X, Mapping):
        return [(str(name), to_native(value, str(name))) for name, value in X.items()]
    names = [value.name for value in session._core.inputs]
    if len(names) != 1:
        raise DataError(
            what=f"X is one array, but the model has {len(names)} inputs",
            value="X",
            hint=f"Give a dictionary with {', '.join(repr(name) for name in names)}.",
        )
    return [(names[0], to_native(X, "X"))]


def as_pair(rows: NativeRows | None) -> tuple[_core.Dataset | None, _core.DataSource | None]:
    """Return rows as the extension takes them: arrays, or a source."""
    if isinstance(rows, _core.DataSource):
        return None, rows
    return rows, None


def has_weight(rows: Any) -> bool:
    """Tell whether validation rows, or a source, have sample weights."""
    if isinstance(rows, Source):
        return rows.has_sample_weight
    return isinstance(rows, (tuple, list)) and len(rows) == 3 and rows[2] is not None


def check_alone(source: Source, **given: Any) -> None:
    """Raise an error for what a source has itself."""
    for name, value in given.items():
        if value is not None:
            raise DataError(
                what=f"{name} cannot be given beside a {type(source).__name__}",
                value=name,
                hint="Leave it out: the rows of the source have it.",
            )


def validation_names(session: TrainingSession, options: _core.FitOptions) -> list[str]:
    """Return the names of what a validation tells."""
    names = ["val_loss", *(["val_accuracy"] if session.is_classifier else [])]
    names += [f"val_{metric.name}" for metric in options.metrics]
    return list(dict.fromkeys(names))


class Labels:
    """Class numbers of text labels, for models that do not list their classes.

    The classes are the sorted labels of the first rows that are trained on, of each loss its own.
    """

    def __init__(self) -> None:
        self.classes: dict[str, list[str]] = {}  # by the output that the loss is on

    def learn(self, session: TrainingSession, y: Any) -> None:
        """Take the classes of rows to train on, where there are none yet."""
        targets = y if isinstance(y, Mapping) else {"": y}
        for output, labels in targets.items():
            loss = _loss_on(session, output)
            found = to_native(labels, str(output) or "y")
            if loss is None or not _needs_numbers(loss, found) or loss.output in self.classes:
                continue
            classes = sorted(set(found[0]))
            if loss.num_classes and len(classes) > loss.num_classes:
                raise DataError(
                    what=f"there are {len(classes)} different labels{_of(output)}, but the model "
                    f"has {loss.num_classes} classes",
                    value=output or "y",
                    detail=f"Labels: {name_list(classes)}.",
                    hint="Remove or rename rows, or train a model with as many classes as labels.",
                )
            self.classes[loss.output] = classes

    def native(
        self, session: TrainingSession, y: Any, output: str = "", feeds: Feeds | None = None
    ) -> NativeArray:
        """Return the labels of one loss as the extension takes them; `feeds` names their rows."""
        labels = to_native(y, output or "y")
        loss = _loss_on(session, output)
        if loss is None or not _needs_numbers(loss, labels):
            return labels
        texts, shape = labels
        classes = self.classes.get(loss.output)
        if classes is None:
            raise DataError(
                what=f"labels{_of(output)} are text, but the model does not list its classes",
                value=output or "y",
                hint="Train it on them first, or give class numbers.",
            )
        numbers = {label: number for number, label in enumerate(classes)}
        unknown = next((row for row, label in enumerate(texts) if label not in numbers), None)
        if unknown is not None:
            row = _row_name(feeds, unknown)
            raise DataError(
                what=f"label '{texts[unknown]}' in {row}{_of(output)} is none of the classes",
                value=output or "y",
                detail=f"Classes: {', '.join(classes[:8])}.",
                hint="Remove or rename such rows, or train on rows that have this label, too.",
            )
        return np.array([numbers[label] for label in texts], np.int64).reshape(shape)


def _row_name(feeds: Feeds | None, row: int) -> str:
    return f"row {row}" if feeds is None else feeds.row(row)


def _of(output: str) -> str:
    return f" of '{output}'" if output else ""


def _loss_on(session: TrainingSession, output: str) -> _core.LossInfo | None:
    """Return the loss on that output or value; of the first one for an empty name."""
    first = session._core.loss
    losses = (first, *first.others)
    named = (loss for loss in losses if output in ("", loss.output, loss.scores))
    return next(named, None)


def _needs_numbers(loss: _core.LossInfo, labels: Any) -> bool:
    is_text = isinstance(labels, tuple) and isinstance(labels[0], list)
    return is_text and loss.is_classifier and loss.classes is None
