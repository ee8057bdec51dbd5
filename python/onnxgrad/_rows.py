"""Rows as users have them, made ready for the loop of the extension."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from onnxgrad import _core
from onnxgrad._arrays import to_native
from onnxgrad._arrow import columns_of, is_table, match_columns, take_column
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
    """Return (X, y, sample_weight) with the columns of an Arrow table as arrays by input.

    `y` and `sample_weight` may be names of columns. What is no table comes back as it is.
    """
    if not is_table(X):
        return X, y, sample_weight
    columns = columns_of(X)
    taken = [name for name in (y, sample_weight) if isinstance(name, str)]
    dtypes = {value.name: value.dtype for value in session._core.inputs}
    inputs = match_columns(columns, dtypes, taken)
    y = take_column(columns, y) if isinstance(y, str) else y
    if isinstance(sample_weight, str):
        sample_weight = take_column(columns, sample_weight)
    return inputs, y, sample_weight


def named_inputs(session: TrainingSession, X: Any) -> Iterable[tuple[str, Any]]:
    """Return what the model's inputs are fed with, by name."""
    if isinstance(X, Mapping):
        return [(str(name), to_native(value, str(name))) for name, value in X.items()]
    names = [value.name for value in session._core.inputs]
    if len(names) != 1:
        raise DataError(
            what=f"X is one array, but the model has {len(names)} inputs",
            value="X",
            mend=f"Give a dictionary with {', '.join(repr(name) for name in names)}.",
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
                mend="Leave it out: the rows of the source have it.",
            )


def validation_names(session: TrainingSession, options: _core.FitOptions) -> list[str]:
    """Return the names of what a validation tells."""
    names = ["val_loss", *(["val_accuracy"] if session.is_classifier else [])]
    names += [f"val_{metric.name}" for metric in options.metrics]
    return list(dict.fromkeys(names))


class Labels:
    """Class numbers of text labels, for models that do not list their classes.

    The classes are the sorted labels of the first rows that are trained on.
    """

    def __init__(self) -> None:
        self.classes: list[str] | None = None

    def native(self, session: TrainingSession, y: Any, *, learn: bool = False) -> Any:
        """Return labels as the extension takes them."""
        labels = to_native(y, "y")
        is_text = isinstance(labels, tuple) and isinstance(labels[0], list)
        if not is_text or not session.is_classifier or session.classes is not None:
            return labels
        texts, shape = labels
        if self.classes is None:
            if not learn:
                raise DataError(
                    what="labels are text, but the model does not list its classes",
                    value="y",
                    mend="Train it on them first, or give class numbers.",
                )
            self.classes = sorted(set(texts))
            known = session._core.loss.num_classes
            if known and len(self.classes) > known:
                found = len(self.classes)
                self.classes = None
                raise DataError(
                    what=f"there are {found} different labels, but the model has {known} classes",
                    value="y",
                    mend="Remove rows, or train a model with as many classes as labels.",
                )
        numbers = {label: number for number, label in enumerate(self.classes)}
        unknown = next((row for row, label in enumerate(texts) if label not in numbers), None)
        if unknown is not None:
            raise DataError(
                what=f"label '{texts[unknown]}' in row {unknown} is none of the classes",
                value="y",
                detail=f"Classes: {', '.join(self.classes[:8])}.",
                mend="Remove or rename such rows, or train on rows that have this label, too.",
            )
        return np.array([numbers[label] for label in texts], np.int64).reshape(shape)
