"""Notes on the rows of a fit: classes with few rows, arrays that had to be copied."""

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
_MAX_NAMES = 5
_MAX_LABEL = 1 << 20  # counted without sorting
_DEBUG = 10


class DataWarning(UserWarning):
    """The rows can be trained on, but the model is unlikely to learn well from them."""


def report_notes(
    session: _core.TrainingSession, X: Any, y: Any, validation: Any, verbose: Verbosity
) -> None:
    """Warn about classes with few rows and report copies; if ``verbose=0``, only to the logger."""
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


def warn(note: str, category: type[Warning] = DataWarning) -> None:
    """Issue a warning at the code that called onnxgrad."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(note, category, stacklevel=level + 1)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "onnxgrad"


def class_notes(session: _core.TrainingSession, y: Any, validation: Any) -> Iterator[str]:
    """Yield notes on classes with fewer than `FEW_ROWS` rows, or without a validation row.

    `y` is an array or a dictionary by output; `validation` is that of `Trainer.fit`.
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
            found = _counts(loss, held_out)
            missing = [repr(label) for label in counts if found and label not in found]
            if missing:
                yield f"classes{of} without a validation row: {_listed(missing)}"
        elif isinstance(validation, float):
            missing = [repr(label) for label, count in counts.items() if count * validation < 1]
            if missing:
                yield (
                    f"classes{of} that may have no validation row, with a fraction of "
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
            yield f"{shown} it is not contiguous"
        elif isinstance(value, (list, tuple)):
            yield f"{shown} a {type(value).__name__}"


def _counts(loss: _core.LossInfo, y: Any) -> dict[Any, int]:
    """Return the number of rows of each label; empty for targets that are not classes."""
    if isinstance(y, Mapping):
        y = y.get(loss.output, y.get(loss.scores))
    if y is None or not loss.is_classifier:
        return {}
    labels = as_numpy(y, "y")
    if labels.ndim == 0 or labels.size != len(labels) or labels.dtype.kind not in "biufUSOT":
        return {}
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.floor(labels)):
        return {}  # not classes: refused later
    if labels.dtype.kind == "i" and labels.size and 0 <= labels.min() <= labels.max() < _MAX_LABEL:
        counts = np.bincount(labels.reshape(-1))
        names = np.flatnonzero(counts)
        counts = counts[names]
    else:
        names, counts = np.unique(labels, return_counts=True)
    found: dict[Any, int] = dict(zip(names.tolist(), counts.tolist(), strict=True))
    found.pop(getattr(loss.function, "ignore_index", None), None)
    return found


def _listed(texts: list[str]) -> str:
    more = len(texts) - _MAX_NAMES
    return ", ".join(texts[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
