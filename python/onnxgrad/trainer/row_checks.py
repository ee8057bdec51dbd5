"""Checks of rows that would be trained on without any effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxgrad import _core
from onnxgrad.data.arrays import NativeArray
from onnxgrad.data.notes import warn
from onnxgrad.errors import DataError, OptionError
from onnxgrad.history import History
from onnxgrad.losses import InfoNCE, as_loss

__all__ = ["check_pairs", "check_some_count", "warn_if_nothing_counted"]


def _ignored(session: _core.TrainingSession) -> int | None:
    found: int | None = getattr(session.loss.function, "ignore_index", None)
    return found


def check_pairs(session: Any, options: _core.FitOptions) -> None:
    """Refuse batches of one row for a loss that compares the rows of a batch."""
    if options.batch_size != 1 or isinstance(session._arguments["loss"], Mapping):
        return
    loss = as_loss(session._arguments["loss"])
    if isinstance(loss, InfoNCE) and max(session._views - 1, len(loss.partners or ())) == 1:
        raise OptionError(
            what="info_nce with batch_size=1: a row without negatives has the loss 0",
            value="batch_size",
            hint="Give a larger batch_size: the other rows of a batch are its negatives.",
        )


def check_some_count(session: _core.TrainingSession, targets: Mapping[str, NativeArray]) -> None:
    """Refuse labels of which all are those that the loss ignores."""
    ignored, target = _ignored(session), targets.get("")
    if ignored is None or not isinstance(target, np.ndarray) or target.dtype.kind not in "iu":
        return
    if not target.size or bool((target != ignored).any()):
        return
    raise DataError(
        what=f"all labels are {ignored}, which the loss ignores: nothing would be learnt",
        value="y",
        hint="Give labels that count, or a loss with another ignore_index.",
    )


def warn_if_nothing_counted(session: _core.TrainingSession, history: History) -> None:
    """Warn about losses that are exactly 0 where labels may be ignored."""
    losses = history.get("train_loss", [])
    if losses and not any(losses) and _ignored(session) is not None:
        warn(
            "the training loss is exactly 0: the loss ignored all labels, and nothing was learnt; "
            "check the labels, and of chats that there are answers"
        )
