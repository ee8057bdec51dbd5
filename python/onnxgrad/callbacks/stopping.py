"""Callbacks that configure the loop in C++: early stopping and checkpoints."""

from __future__ import annotations

import os
from typing import Literal

from onnxgrad import _core
from onnxgrad.base.checks import choice, flag, path_text, positive_int, real_number
from onnxgrad.callbacks.base import Callback
from onnxgrad.errors import OptionError
from onnxgrad.metrics import is_larger_better

__all__ = ["Checkpoint", "CheckpointWarning", "EarlyStopping"]


class EarlyStopping(Callback):
    """Ends training when the monitored metric no longer improves.

    Parameters
    ----------
    monitor : str, default=None
        ``"train_loss"``, ``"val_loss"``, ``"val_accuracy"`` or ``"val_<metric>"``. None means the
        validation loss, or the training loss without validation.
    patience : int, default=10
        Epochs (with a validation, if there is one) without improvement before training ends.
    min_delta : float, default=1e-4
        Smallest change that counts as improvement.
    mode : {"auto", "min", "max"}, default="auto"
        Whether smaller or larger is better; ``"auto"`` decides for losses and built-in metrics, and
        means ``"max"`` for metrics that are functions.
    restore_best : bool, default=True
        Whether to restore the weights of the best epoch.

    Examples
    --------
    >>> import onnxgrad as og
    >>> stopping = og.callbacks.EarlyStopping(patience=5)
    """

    def __init__(
        self,
        monitor: str | None = None,
        patience: int = 10,
        min_delta: float = 1e-4,
        mode: str = "auto",
        restore_best: bool = True,
    ) -> None:
        # The loop in C++ keeps the best weights, without a copy to Python.
        if monitor is not None and not isinstance(monitor, str):
            raise OptionError(
                what=f"monitor: {monitor!r}, expected a name such as 'val_loss'",
                value="monitor",
                hint="Give the number of epochs by name: EarlyStopping(patience=5).",
            )
        choice("mode", mode, ["auto", "min", "max"])
        self.patience = positive_int("patience", patience)
        self.min_delta = real_number("min_delta", min_delta)
        self.restore_best = flag("restore_best", restore_best)
        self.monitor = monitor
        self.mode = mode

    def __repr__(self) -> str:
        monitor = "" if self.monitor is None else f", monitor={self.monitor!r}"
        options = f"min_delta={self.min_delta}, restore_best={self.restore_best}"
        return f"EarlyStopping(patience={self.patience}, {options}{monitor})"

    def native(self) -> _core.EarlyStopping:
        """Return the options for the extension."""
        monitor = self.monitor or ""
        maximize = self.mode == "max"
        if self.mode == "auto" and monitor.startswith("val_") and monitor != "val_loss":
            maximize = is_larger_better(monitor.removeprefix("val_"))
        return _core.EarlyStopping(
            self.patience, self.min_delta, self.restore_best, monitor, maximize
        )


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written while training continues, or a damaged one was skipped."""


class Checkpoint(Callback):
    """Writes checkpoints, from which an interrupted training continues as if it had not stopped.

    Parameters
    ----------
    path : path
        A folder for checkpoints only, created if needed. Its files are called
        ``ck-<step>.safetensors``; only one process at a time may write there.
    every : "epoch" or int, default="epoch"
        ``"epoch"`` writes one at the end of each epoch, a number after that many steps. One is also
        written at the end of the training, even if an exception or Ctrl-C ends it.
    keep : int, default=3
        How many of the newest to keep.
    best : bool, default=True
        Whether to keep that of the best epoch too; the file ``best`` contains its name.
    min_seconds : float, default=0
        Write none at the end of an epoch if the previous one is younger than this: with short
        epochs, training would wait for the disk. The best epoch is then the best of those written.

    Notes
    -----
    `Trainer.fit(..., resume=True)` resumes from the newest one. A checkpoint is renamed to its name
    when it is completely on the disk, so a process killed at any moment leaves only valid ones. If
    one cannot be written, training continues with a warning. docs/checkpoints.md describes the
    format.

    Examples
    --------
    >>> import onnxgrad as og
    >>> keeper = og.callbacks.Checkpoint("run/checkpoints", every=1000, keep=2)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every: Literal["epoch"] | int = "epoch",
        keep: int = 3,
        best: bool = True,
        min_seconds: float = 0.0,
    ) -> None:
        # The loop in C++ writes them between two steps, without a copy of the weights.
        self.path = path_text("path", path)
        self.every_steps = (
            0 if isinstance(every, str) and every == "epoch" else positive_int("every", every)
        )
        self.keep = positive_int("keep", keep)
        self.best = flag("best", best)
        self.min_seconds = real_number("min_seconds", min_seconds)

    def __repr__(self) -> str:
        every: object = self.every_steps or "epoch"
        return f"Checkpoint({self.path!r}, every={every!r}, keep={self.keep}, best={self.best})"
