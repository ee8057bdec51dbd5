"""Cross-validation: a training for each part of the rows, on the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from onnxgrad.base.checks import flag, function_or_none, listed, mapping, positive_int, shown
from onnxgrad.base.models import ModelLike, to_core_model
from onnxgrad.callbacks import Checkpoint, CSVLogger, TensorBoard
from onnxgrad.data.arrays import ArrayLike, as_numpy
from onnxgrad.data.arrow import is_table
from onnxgrad.errors import DataError, OptionError
from onnxgrad.history import History
from onnxgrad.losses import LossLike
from onnxgrad.optimizers import OptimizerLike
from onnxgrad.sessions import Evaluation
from onnxgrad.trainer.trainer import Trainer

__all__ = ["CrossValidation", "cross_validate", "fold_rows"]


class CrossValidation(NamedTuple):
    """The results of a cross-validation.

    Attributes
    ----------
    evaluations : list of Evaluation
        Loss, accuracy and metrics of each fold, on its own rows.
    histories : list of History
        History of each training.
    rows : list of numpy.ndarray
        Numbers of the rows of each fold.
    """

    evaluations: list[Evaluation]
    histories: list[History]
    rows: list[np.ndarray[Any, Any]]

    @property
    def scores(self) -> dict[str, np.ndarray[Any, Any]]:
        """Results by name, ``loss``, ``accuracy`` and metrics: an array with one for each fold."""
        several = [_numbers(one) for one in self.evaluations]
        return {name: np.array([one[name] for one in several]) for name in several[0]}

    @property
    def mean(self) -> dict[str, float]:
        """Means of the `scores`."""
        return {name: float(values.mean()) for name, values in self.scores.items()}

    @property
    def std(self) -> dict[str, float]:
        """Standard deviations of the `scores` over the folds."""
        return {name: float(values.std()) for name, values in self.scores.items()}


def _numbers(evaluation: Evaluation) -> dict[str, float]:
    numbers = {"loss": evaluation.loss}
    if evaluation.accuracy is not None:
        numbers["accuracy"] = evaluation.accuracy
    return {**numbers, **evaluation.metrics}


def fold_rows(
    num_rows: int, folds: int, labels: np.ndarray[Any, Any] | None = None, seed: int = 0
) -> list[np.ndarray[Any, Any]]:
    """Return the numbers of the rows of each fold, in increasing order.

    Sizes differ by at most one; with `labels` [N], so do the numbers of rows of each class.

    Raises
    ------
    DataError
        There are fewer rows than folds.
    """
    if num_rows < folds:
        raise DataError(
            what=f"{num_rows} rows cannot be divided into {folds} folds",
            hint="Give fewer folds, or more rows.",
        )
    order = np.random.default_rng(seed).permutation(num_rows)
    if labels is not None:  # the rows of a class one after another, dealt out in turn
        _, classes = np.unique(labels, return_inverse=True)
        order = order[np.argsort(classes.reshape(-1)[order], kind="stable")]
    return [np.sort(order[fold::folds]) for fold in range(folds)]


def _rows(name: str, given: Any, count: int | None) -> np.ndarray[Any, Any]:
    """Return an array with `count` rows, if that is known."""
    array = as_numpy(given, name)
    if array.ndim == 0:
        raise DataError(
            what=f"{name}: {shown(given)}, expected an array with a row for each sample",
            value=name,
            hint="Give arrays [N, ...].",
        )
    if count is not None and len(array) != count:
        raise DataError(
            what=f"{name} has {len(array)} rows and y {count}",
            value=name,
            hint="Give one target, and one weight, for each row.",
        )
    return array


def _refuse_writers(options: Mapping[str, Any]) -> None:
    """Refuse what would write the files of every fold to one place."""
    writers = [
        type(one).__name__
        for one in listed(options.get("callbacks", ()))
        if isinstance(one, (Checkpoint, CSVLogger, TensorBoard))
    ]
    named = [*writers, *(name for name in ("run_dir", "resume") if options.get(name))]
    if named:
        raise OptionError(
            what=f"{named[0]} in a cross-validation: each fold would write to the same files",
            value="callbacks" if writers else named[0],
            hint="Leave it out; on_fold= is called with the results of each fold.",
        )


def cross_validate(
    model: ModelLike,
    X: ArrayLike | Mapping[str, ArrayLike],
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    folds: int = 5,
    stratified: bool | None = None,
    loss: LossLike = "auto",
    optimizer: OptimizerLike | None = None,
    seed: int = 0,
    trainer: Mapping[str, Any] | None = None,
    on_fold: Callable[[int, Evaluation], Any] | None = None,
    **options: Any,
) -> CrossValidation:
    """Train once for each of several parts of the rows, on the others, and evaluate it there.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        Every training begins with its weights.
    X : array [N, ...] or dict of str to array
    y : array [N] or [N, K]
    sample_weight : array [N], default=None
    folds : int, default=5
    stratified : bool, default=None
        Whether every fold has the same part of each class; None: for classifiers.
    loss, optimizer, seed
        As for `Trainer`.
    trainer : dict, default=None
        Further options of `Trainer`, such as ``{"lr": 1e-3}``.
    on_fold : function, default=None
        Called with the number of each fold, from 0, and its evaluation.
    **options
        Options of `Trainer.fit`. The rows of a fold are its validation rows, for ``metrics=`` and
        ``early_stopping=``.

    Returns
    -------
    CrossValidation

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> X = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    >>> y = X @ np.array([[1.0], [-2.0]], np.float32)
    >>> result = og.cross_validate(linear_model, X, y, folds=3, trainer={"lr": 0.05}, epochs=20)
    >>> len(result.evaluations), result.mean["loss"] < 0.1
    (3, True)
    """
    number = positive_int("folds", folds, 2)
    if y is None or is_table(X) or not (isinstance(X, Mapping) or hasattr(X, "__len__")):
        raise OptionError(
            what="cross_validate needs arrays X and y",
            value="X",
            hint="Give arrays, or a dictionary of arrays by input.",
        )
    if "validation" in options:
        raise OptionError(
            what="validation= is the rows of the fold",
            value="validation",
            hint="Leave it out.",
        )
    _refuse_writers(options)
    function_or_none("on_fold", on_fold)
    further = {} if trainer is None else mapping("trainer", trainer)
    core = to_core_model(model)
    arrays = dict(X) if isinstance(X, Mapping) else {"X": X}
    labels = _rows("y", y, None)
    inputs = {name: _rows(name, one, len(labels)) for name, one in arrays.items()}
    weight = None if sample_weight is None else _rows("sample_weight", sample_weight, len(labels))
    is_stratified = None if stratified is None else flag("stratified", stratified)

    def select(rows: np.ndarray[Any, Any]) -> tuple[Any, ...]:
        chosen = {name: one[rows] for name, one in inputs.items()}
        parts = (chosen if isinstance(X, Mapping) else chosen["X"], labels[rows])
        return parts if weight is None else (*parts, weight[rows])

    result = CrossValidation([], [], [])
    for fold in range(number):
        training = Trainer(core, loss, optimizer, seed=seed, **further)
        if fold == 0:
            if is_stratified is None:
                is_stratified = training.session.is_classifier and labels.size == len(labels)
            classes = labels if is_stratified else None
            result.rows.extend(fold_rows(len(labels), number, classes, seed))
        held_out = select(result.rows[fold])
        others = np.setdiff1d(np.arange(len(labels)), result.rows[fold], assume_unique=True)
        training.fit(*select(others), validation=held_out, **{"verbose": 0, **options})
        found = training.evaluate(*held_out, metrics=options.get("metrics", ()))
        result.evaluations.append(found)
        result.histories.append(training.history)
        if on_fold is not None:
            on_fold(fold, found)
    return result
