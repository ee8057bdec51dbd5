"""Callbacks whose work the loop in C++ does: early stopping and checkpoints."""

from __future__ import annotations

import os
from typing import Literal

from onnxgrad import _core
from onnxgrad.base.checks import path_text, positive_int, real_number, unknown_name
from onnxgrad.callbacks.base import Callback
from onnxgrad.errors import OptionError
from onnxgrad.metrics import is_larger_better

__all__ = ["Checkpoint", "CheckpointWarning", "EarlyStopping"]


class EarlyStopping(Callback):
    """Ends training when the monitored number no longer improves.

    Parameters
    ----------
    monitor : str, default=None
        ``"train_loss"``, ``"val_loss"``, ``"val_accuracy"`` or ``"val_<metric>"``. None is the
        validation loss, or the training loss without validation.
    patience : int, default=10
        Epochs (with a validation, if there is one) without improvement before training ends.
    min_delta : float, default=1e-4
        What counts as an improvement.
    mode : {"auto", "min", "max"}, default="auto"
        Whether smaller or larger is better; ``"auto"`` knows losses and built-in metrics, and takes
        larger as better for metrics that are functions.
    restore_best : bool, default=True
        Whether to end with the weights of the best epoch.

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
        # The loop in C++ does the work: it keeps the best weights without a copy to Python.
        if monitor is not None and not isinstance(monitor, str):
            raise OptionError(
                what=f"monitor: {monitor!r}, expected a name such as 'val_loss'",
                value="monitor",
                hint="Epochs to wait for are given by name: EarlyStopping(patience=5).",
            )
        if mode not in ("auto", "min", "max"):
            raise unknown_name("mode", mode, ["auto", "min", "max"])
        self.patience = positive_int("patience", patience)
        self.min_delta = real_number("min_delta", min_delta)
        self.restore_best = bool(restore_best)
        self.monitor = monitor
        self.mode = mode

    def __repr__(self) -> str:
        watched = "" if self.monitor is None else f", monitor={self.monitor!r}"
        options = f"min_delta={self.min_delta}, restore_best={self.restore_best}"
        return f"EarlyStopping(patience={self.patience}, {options}{watched})"

    def native(self) -> _core.EarlyStopping:
        """Return it as the extension takes it."""
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
    """Writes checkpoints, so that a training that was stopped can continue as if it had not been.

    Parameters
    ----------
    path : path
        A folder of its own, which is made if need be. The files in it are called
        ``ck-<step>.safetensors``; one process at a time may write there.
    every : "epoch" or int, default="epoch"
        At the end of each epoch, or after so many steps. One is also written where training ends,
        by an exception and by Ctrl-C too.
    keep : int, default=3
        How many of the newest stay.
    best : bool, default=True
        Whether the one of the best epoch stays too; the file ``best`` has its name.
    min_seconds : float, default=0
        At the end of an epoch none is written where the one before is younger than this: with short
        epochs, training would wait for the disk. The best epoch is then the best one that was
        written.

    Notes
    -----
    `Trainer.fit(..., resume=True)` resumes from the newest one. A file has its name only when it is
    on the disk as a whole, so a process that is killed at any moment leaves only whole checkpoints.
    Where one cannot be written, training continues, and a warning says why. docs/checkpoints.md
    describes the format.

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
        # The loop in C++ does the work, between two steps and without a copy of the weights.
        self.path = path_text("path", path)
        self.every_steps = 0 if every == "epoch" else positive_int("every", every)
        self.keep = positive_int("keep", keep)
        self.best = bool(best)
        self.min_seconds = real_number("min_seconds", min_seconds)

    def __repr__(self) -> str:
        every: object = self.every_steps or "epoch"
        return f"Checkpoint({self.path!r}, every={every!r}, keep={self.keep}, best={self.best})"
