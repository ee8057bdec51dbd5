"""Conversion of rows from any form for the training loop of the extension."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import positive_int
from onnxgrad.data.arrays import as_numpy, by_input, is_sparse, to_native
from onnxgrad.data.arrow import is_table, named_arrays
from onnxgrad.data.batches import Batches
from onnxgrad.data.files import open_file
from onnxgrad.data.foreign import plain_table
from onnxgrad.data.maps import columns_of_maps
from onnxgrad.data.sources import Source
from onnxgrad.data.tokens import completed, token_input
from onnxgrad.errors import DataError

__all__ = [
    "NativeRows",
    "as_pair",
    "as_source",
    "check_alone",
    "has_weight",
    "named_inputs",
    "own_tokens",
    "unpack_table",
    "validation_names",
    "window_starts",
]

NativeRows: TypeAlias = "_core.Dataset | _core.DataSource"


def unpack_table(
    session: _core.TrainingSession, X: Any, y: Any = None, sample_weight: Any = None
) -> tuple[Any, Any, Any]:
    """Return `named_arrays` for the inputs of `session`."""
    dtypes = {value.name: value.dtype for value in session.inputs}
    return named_arrays(dtypes, X, y, sample_weight, columns_of_maps(session.inputs))


def named_inputs(
    session: _core.TrainingSession, X: Any, *, in_place: bool = False
) -> Iterable[tuple[str, Any]]:
    """Return the arrays for the model's inputs, by name; `in_place` as for `to_native`."""
    if isinstance(X, Mapping):
        named: Mapping[str, Any] = {
            str(name): to_native(value, str(name), in_place=in_place) for name, value in X.items()
        }
    elif (tokens := _of_tokens(session, X)) is not None:
        named = {tokens: to_native(X, "X", in_place=in_place)}
    else:
        named = {
            name: to_native(value, "X", in_place=in_place)
            for name, value in by_input(session, X).items()
        }
    if len(named) < len(session.inputs):
        named = completed(session.inputs, named)
    return named.items()


def _of_tokens(session: _core.TrainingSession, X: Any) -> str | None:
    """Return the input of tokens that one array is for, if the others follow from it."""
    name = token_input(session.inputs)
    if name is None or len(session.inputs) < 2 or is_table(X) or not hasattr(X, "shape"):
        return None
    given = {name: np.zeros((1, 1), np.int64)}
    return name if len(completed(session.inputs, given)) == len(session.inputs) else None


def own_tokens(session: _core.TrainingSession, X: Any) -> Any:
    """Return the tokens of `X` if these are the targets of a loss that none were given for."""
    loss = session.loss
    is_causal = _core.loss_name(loss.function) == "causal_lm"
    is_open = not loss.is_classifier and len(loss.target.shape or ()) == 3
    name = token_input(session.inputs)
    if not (is_causal or is_open) or name is None or loss.others:
        return None
    tokens = X.get(name) if isinstance(X, Mapping) else X
    if tokens is None or not hasattr(tokens, "dtype"):
        return None
    array = as_numpy(tokens, "X")
    return tokens if array.ndim == 2 and array.dtype.kind in "iu" else None


def as_pair(rows: NativeRows | None) -> tuple[_core.Dataset | None, _core.DataSource | None]:
    """Return rows as a pair (arrays, source), one of which is None."""
    if isinstance(rows, _core.DataSource):
        return None, rows
    return rows, None


def has_weight(rows: Any) -> bool:
    """Return whether validation rows, or a source, have sample weights."""
    if isinstance(rows, Source):
        return rows.has_sample_weight
    return isinstance(rows, (tuple, list)) and len(rows) == 3 and rows[2] is not None


def check_alone(source: Source, **given: Any) -> None:
    """Raise an error if arguments are given that are part of a source."""
    for name, value in given.items():
        if value is not None:
            raise DataError(
                what=f"{name} cannot be given together with a {type(source).__name__}",
                value=name,
                hint="Leave it out: the source has it.",
            )


def validation_names(session: _core.TrainingSession, options: _core.FitOptions) -> list[str]:
    """Return the names of the results of a validation."""
    names = ["val_loss", *(["val_accuracy"] if session.loss.is_classifier else [])]
    names += [f"val_{metric.name}" for metric in options.metrics]
    return list(dict.fromkeys(names))


def _are_names(y: Any) -> bool:
    if isinstance(y, Mapping):
        return bool(y) and all(isinstance(name, str) for name in y.values())
    return isinstance(y, str)


def as_source(X: Any, y: Any, sample_weight: Any = None) -> tuple[Source | None, Any, Any]:
    """Return `X` as a source, or None if it is arrays, and the remaining `y` and `sample_weight`.

    Names of columns become part of the source and are returned as None.
    """
    if isinstance(X, Source):
        return X, y, sample_weight
    if is_table(X):
        return None, y, sample_weight
    if not callable(X):
        plain_table(X)  # refuses tables that are none yet
    if isinstance(X, (str, os.PathLike)):
        return open_file(X, y, sample_weight), None, None
    array_names = ("__array__", "__dlpack__", "__arrow_c_stream__", "__arrow_c_array__")
    is_array = isinstance(X, Mapping) or is_sparse(X)
    is_array = is_array or any(hasattr(X, name) for name in array_names)
    if is_array or not (callable(X) or hasattr(X, "__iter__")):
        return None, y, sample_weight
    if y is None:
        return Batches(X), y, sample_weight
    if _are_names(y):
        has_name = isinstance(sample_weight, str)
        source = Batches(X, target=y, sample_weight=sample_weight if has_name else False)
        return source, None, None if has_name else sample_weight
    return None, y, sample_weight


def window_starts(rows: int, batch_size: int, seed: int = 0, epoch: int = 0) -> list[int]:
    """Return the first rows of the batches of an epoch of ``fit(sampling="windows")``.

    Parameters
    ----------
    rows, batch_size : int
        At least 1.
    seed : int, default=0
        Seed of the trainer.
    epoch : int, default=0
        Number of the epoch, from 0.

    Returns
    -------
    list of int
        ceil(rows / batch_size) numbers in [0, rows - batch_size], drawn uniformly; only 0 if a
        batch has all rows.

    Raises
    ------
    OptionError
        A number is out of its range.

    Examples
    --------
    >>> from onnxgrad.data import window_starts
    >>> len(window_starts(25, 10))
    3
    """
    rows, batch_size = positive_int("rows", rows), positive_int("batch_size", batch_size)
    seed, epoch = positive_int("seed", seed, 0), positive_int("epoch", epoch, 0)
    return _core.window_starts(rows, batch_size, seed, epoch)
