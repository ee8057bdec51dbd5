"""Notes on the rows of a fit: classes with few of them, arrays that had to be copied."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.base.messages import Verbosity, log, logger, print_stderr
from onnxgrad.data.arrays import as_numpy, is_sparse

__all__ = ["FEW_ROWS", "DataWarning", "class_notes", "copy_notes", "report_notes", "warn"]

FEW_ROWS = 10
_MOST_NAMES = 5
_MOST_COUNTED = 1 << 20
_DEBUG = 10


class DataWarning(UserWarning):
    """The rows can be trained on, but the model will hardly learn from them."""


def report_notes(
    session: _core.TrainingSession, X: Any, y: Any, validation: Any, verbose: Verbosity
) -> None:
    """Warn of classes with few rows, and report copies; with ``verbose=0`` to the logger alone."""
    for note in class_notes(session, y, validation):
        log("warning", note)
        if verbose != 0:
            warn(note)
    listener = logger()
    if verbose == 2 or (listener is not None and listener.isEnabledFor(_DEBUG)):
        for note in copy_notes(session, X):
            log("debug", note)
            if verbose == 2:
                print_stderr(note)


def warn(note: str) -> None:
    """Warn as if the code that called onnxgrad did."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(note, DataWarning, stacklevel=level + 1)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "onnxgrad"


def class_notes(session: _core.TrainingSession, y: Any, validation: Any) -> Iterator[str]:
    """Yield a note for classes that have fewer than `FEW_ROWS` rows, and which none for validation.

    y : array or dict of arrays by output. validation : as for `Trainer.fit`.
    """
    first = session.loss
    is_pair = isinstance(validation, (tuple, list)) and len(validation) > 1
    held_out = validation[1] if is_pair else None
    for loss in (first, *first.others):
        counts = _counts(loss, y)
        of = f" of '{loss.output}'" if first.others else ""
        few = {label: count for label, count in counts.items() if count < FEW_ROWS}
        if few:
            rows = [f"{label!r} has {count}" for label, count in few.items()]
            yield f"classes{of} with fewer than {FEW_ROWS} rows: {_listed(rows)}"
        if held_out is not None:
            there = _counts(loss, held_out)
            missing = [repr(label) for label in counts if there and label not in there]
            if missing:
                yield f"classes{of} that no validation row has: {_listed(missing)}"
        elif isinstance(validation, float):
            missing = [repr(label) for label, count in counts.items() if count * validation < 1]
            if missing:
                yield (
                    f"classes{of} that may be in no validation row, with a share of "
                    f"{validation:g}: {_listed(missing)}"
                )


def copy_notes(session: _core.TrainingSession, X: Any) -> Iterator[str]:
    """Yield a note for each input that is not read in place, with the reason."""
    dtypes = {value.name: value.dtype for value in session.inputs}
    values = X if isinstance(X, Mapping) else dict.fromkeys(list(dtypes)[:1], X)
    for name, value in values.items():
        if is_sparse(value):
            yield f"{name}: sparse, made dense in chunks"
            continue
        array = as_numpy(value, str(name))
        shown = f"{name} {list(array.shape)}: copied,"
        if array.dtype.kind in "fiub" and array.dtype.name != dtypes.get(name):
            yield f"{shown} {array.dtype.name} to {dtypes.get(name)}"
        elif not array.flags.c_contiguous:
            yield f"{shown} its rows are not one after the other in memory"
        elif isinstance(value, (list, tuple)):
            yield f"{shown} a {type(value).__name__}"


def _counts(loss: _core.LossInfo, y: Any) -> dict[Any, int]:
    """Return the number of rows of each label; nothing for targets that are not classes."""
    if isinstance(y, Mapping):
        y = y.get(loss.output, y.get(loss.scores))
    if y is None or not loss.is_classifier:
        return {}
    labels = as_numpy(y, "y")
    if labels.ndim == 0 or labels.size != len(labels) or labels.dtype.kind not in "biufUSOT":
        return {}
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.floor(labels)):
        return {}  # no classes: refused soon
    if (
        labels.dtype.kind == "i"
        and labels.size
        and 0 <= labels.min() <= labels.max() < _MOST_COUNTED
    ):
        counts = np.bincount(labels.reshape(-1))  # no sorting
        names = np.flatnonzero(counts)
        counts = counts[names]
    else:
        names, counts = np.unique(labels, return_counts=True)
    found: dict[Any, int] = dict(zip(names.tolist(), counts.tolist(), strict=True))
    found.pop(getattr(loss.function, "ignore_index", None), None)
    return found


def _listed(texts: list[str]) -> str:
    more = len(texts) - _MOST_NAMES
    return ", ".join(texts[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
