"""Callbacks that write the numbers of each epoch: CSV, TensorBoard, Optuna."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from onnxgrad.base.checks import path_text, positive_int, unknown_name
from onnxgrad.base.opening import open_input
from onnxgrad.base.optional import import_optional
from onnxgrad.callbacks.base import Callback, Logs, RunningTrainer
from onnxgrad.files import LineFile
from onnxgrad.history import cell_text

__all__ = ["CSVLogger", "OptunaPruning", "TensorBoard"]

_LONGEST_LINE = 1 << 20  # bytes of the names in a file that is appended to


class CSVLogger(Callback):
    """Writes a line for each epoch to a CSV file, with the names of the history.

    Parameters
    ----------
    path : path
        The file; its folder must exist.
    append : bool, default=False
        Whether to append to an existing file; its columns must be the same.

    Examples
    --------
    >>> import onnxgrad as og
    >>> logger = og.callbacks.CSVLogger("metrics.csv")
    """

    first_worker_only = True

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        self._path = path_text("path", path)
        self._append = append
        self._file: LineFile | None = None
        self._names: list[str] = []

    def on_train_begin(self, trainer: RunningTrainer) -> None:  # noqa: ARG002 (interface)
        """Open the file."""
        self._file = LineFile(self._path, append=self._append)
        if self._append:
            with open_input(self._path) as file:
                line = file.readline(_LONGEST_LINE).decode("utf-8", "replace")
            self._names = [name for name in line.strip().split(",") if name]

    def on_epoch_end(self, trainer: RunningTrainer, logs: Logs) -> None:
        """Write the line of the epoch."""
        if self._file is None:
            return
        if not self._names:
            self._names = list(dict.fromkeys([*logs, *trainer.validation_names]))
            self._file.write(",".join(self._names) + "\n")
        cells = [cell_text(logs[name]) if name in logs else "" for name in self._names]
        self._file.write(",".join(cells) + "\n")

    def on_train_end(self, trainer: RunningTrainer) -> None:  # noqa: ARG002 (interface)
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoard(Callback):
    """Writes an event file for TensorBoard; needs tensorboardX.

    Parameters
    ----------
    log_dir : path
        Folder of the event file.
    every_n_steps : int, default=None
        Write the training loss of every n-th step too.

    Notes
    -----
    Tags are ``loss/train``, ``loss/val``, ``lr``, ``rows_per_s`` and ``metric/<name>``, over the
    epochs; ``loss/step`` over the steps. ``pip install tensorboardX`` installs the writer.
    """

    first_worker_only = True

    _TAGS: ClassVar = {"train_loss": "loss/train", "val_loss": "loss/val"}

    def __init__(
        self, log_dir: str | os.PathLike[str], *, every_n_steps: int | None = None
    ) -> None:
        self._log_dir = path_text("log_dir", log_dir)
        if every_n_steps is not None:
            self.every_n_steps = positive_int("every_n_steps", every_n_steps)
        self._writer: Any = None

    def on_train_begin(self, trainer: RunningTrainer) -> None:  # noqa: ARG002 (interface)
        """Open the event file."""
        library = import_optional("tensorboardX", "callbacks.TensorBoard")
        self._writer = library.SummaryWriter(self._log_dir)

    def on_step_end(self, trainer: RunningTrainer, logs: Logs) -> None:  # noqa: ARG002 (interface)
        """Write the loss of the step."""
        if self._writer is not None and self.every_n_steps:
            self._writer.add_scalar("loss/step", logs["train_loss"], int(logs["step"]))

    def on_epoch_end(self, trainer: RunningTrainer, logs: Logs) -> None:  # noqa: ARG002 (interface)
        """Write the numbers of the epoch."""
        if self._writer is None:
            return
        for name, value in logs.items():
            if name in ("epoch", "seconds"):
                continue
            tag = self._TAGS.get(name, name.replace("train_loss_", "loss/train_"))
            if tag.startswith("val_"):
                tag = f"metric/{name[4:]}"
            self._writer.add_scalar(tag, value, int(logs["epoch"]))
        self._writer.flush()

    def on_train_end(self, trainer: RunningTrainer) -> None:  # noqa: ARG002 (interface)
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class OptunaPruning(Callback):
    """Reports each epoch to a trial of Optuna, and ends the training if Optuna prunes the trial.

    Parameters
    ----------
    trial : optuna.Trial
    monitor : str, default="val_loss"
        Name in the history of the value to report; epochs without it are not reported.

    Notes
    -----
    `fit` of a pruned trial raises ``optuna.TrialPruned``, which a study expects. Steps reported to
    Optuna are epochs, counted from 1.
    """

    def __init__(self, trial: Any, monitor: str = "val_loss") -> None:
        self._trial = trial
        self._monitor = monitor

    def on_epoch_end(self, trainer: RunningTrainer, logs: Logs) -> None:
        """Report the epoch."""
        if self._monitor not in logs and self._monitor not in trainer.validation_names:
            names = sorted({*logs, *trainer.validation_names})
            raise unknown_name("monitor", self._monitor, names)
        if self._monitor not in logs:
            return
        self._trial.report(logs[self._monitor], int(logs["epoch"]))
        if self._trial.should_prune():
            optuna = import_optional("optuna", "callbacks.OptunaPruning")
            raise optuna.TrialPruned(f"pruned at epoch {int(logs['epoch'])}")
