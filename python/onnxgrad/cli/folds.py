"""``onnxgrad train --folds``: cross-validation."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from onnxgrad import errors
from onnxgrad.cli.console import out
from onnxgrad.cli.rows import TrainData
from onnxgrad.sessions import Evaluation
from onnxgrad.trainer import Trainer
from onnxgrad.trainer.cross_validation import fold_rows

__all__ = ["check_folds", "run_folds"]

_WRITTEN = ("output", "history", "run_dir", "resume", "save_adapter")


def check_folds(options: SimpleNamespace) -> None:
    """Refuse options that have no effect on a cross-validation. Raises: OptionError."""
    given = [name for name in (*_WRITTEN, "validation") if getattr(options, name) is not None]
    if given:
        shown = "-o" if given[0] == "output" else "--" + given[0].replace("_", "-")
        raise errors.OptionError(
            what=f"{shown} and --folds: a cross-validation writes no model, and validates on the "
            "rows of each fold",
            value=shown,
            hint="Leave one of them out.",
        )
    if options.lr == "auto" or options.dry_run:
        shown = "--dry-run" if options.dry_run else "--lr auto"
        raise errors.OptionError(
            what=f"{shown} and --folds",
            value="--folds",
            hint="Give --lr a number." if shown == "--lr auto" else "Leave one of them out.",
        )
    if options.folds < 2 or options.workers.size > 1:
        raise errors.OptionError(
            what=f"--folds {options.folds} needs 2 folds or more, and one worker",
            value="--folds",
            hint="Give a number such as 5.",
        )


def run_folds(
    make_trainer: Callable[[], Trainer],
    data: TrainData,
    options: SimpleNamespace,
    fit: dict[str, Any],
) -> None:
    """Train for each fold on the other rows, with the options `fit`; print the results.

    Raises
    ------
    DataError
        The rows are read in chunks.
    """
    if data.is_streamed:
        raise errors.DataError(
            what="--folds needs all rows in memory, and they are read in chunks",
            hint="Add --no-stream, or validate on a file of its own: --validation FILE.",
        )
    X, y, weight = data.rows
    labels = np.asarray(y)
    results: list[Evaluation] = []
    folds: list[Any] = []
    for number in range(options.folds):
        trainer = make_trainer()
        if not folds:
            is_one = trainer.session.is_classifier and labels.size == len(labels)
            folds = fold_rows(len(labels), options.folds, labels if is_one else None, options.seed)
        others = np.setdiff1d(np.arange(len(labels)), folds[number], assume_unique=True)
        held_out = _select(X, labels, weight, folds[number])
        drawn = {} if fit["row_weights"] is None else {"row_weights": fit["row_weights"][others]}
        trainer.fit(
            *_select(X, labels, weight, others),
            **{**fit, **drawn, "validation": held_out, "verbose": 0},
        )
        results.append(trainer.evaluate(*held_out, allow_nan=options.allow_nan))
        out(f"fold {number + 1}: {_numbers(results[-1])}")
    losses = np.array([result.loss for result in results])
    accuracies = [result.accuracy for result in results if result.accuracy is not None]
    line = f"mean of {options.folds} folds: loss {losses.mean():.6g} (std {losses.std():.3g})"
    if accuracies:
        line += f", accuracy {np.mean(accuracies):.4f} (std {np.std(accuracies):.4f})"
    out(line)


def _numbers(result: Evaluation) -> str:
    accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.4f}"
    return f"loss {result.loss:.6g}{accuracy}"


def _select(X: Any, y: Any, weight: Any, rows: Any) -> tuple[Any, ...]:
    chosen = (
        {name: np.asarray(one)[rows] for name, one in X.items()}
        if hasattr(X, "items")
        else (np.asarray(X)[rows])
    )
    return chosen, y[rows], None if weight is None else np.asarray(weight)[rows]
