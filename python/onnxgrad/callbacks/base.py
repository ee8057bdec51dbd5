"""The interface of callbacks, and the attributes of a trainer that they use."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from onnxgrad.history import History
    from onnxgrad.schedules import Schedule
    from onnxgrad.sessions import TrainingSession

__all__ = ["Callback", "CallbackLike", "Logs", "RunningTrainer"]

Logs: TypeAlias = Mapping[str, float]
"""Argument of callbacks: a dictionary of numbers such as ``train_loss`` and ``val_loss``."""

CallbackLike: TypeAlias = "Callback | Callable[[Any, Logs], bool | None]"
"""A `Callback`, or a function of (trainer, logs) that is called at the end of each epoch."""


class RunningTrainer(Protocol):
    """The attributes of a `Trainer` that the callbacks of this package use."""

    session: TrainingSession
    history: History
    seed: int
    schedule: Schedule | None
    epochs: int
    validation_names: list[str]
    is_best: bool
    stop_reason: str
    run_dir: Path | None

    @property
    def worker_hosts(self) -> list[str]:
        """Hosts of the workers of a job, by rank; empty: there is one worker."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with the current weights."""
        ...


class Callback:
    """Base class of callbacks; by default, every method does nothing.

    A method that returns True ends the training after the current epoch (or step, for
    `on_step_end`), as ``trainer.stop(reason)`` does. `trainer` is the `Trainer`, and `logs` a
    dictionary of numbers with the names of `Trainer.history`.

    Attributes
    ----------
    every_n_steps : int or None
        Number of steps between calls of `on_step_end`; None means no calls.
    first_worker_only : bool
        Of several workers (``Trainer(dist=...)``), whether only the first one calls it: for what
        writes, logs or shows progress. What changes the training is called on all of them.

    Examples
    --------
    >>> import onnxgrad as og
    >>> class StopWhenGood(og.callbacks.Callback):
    ...     def on_epoch_end(self, trainer, logs):
    ...         return logs["train_loss"] < 0.1
    """

    every_n_steps: int | None = None
    first_worker_only = False

    def on_train_begin(self, trainer: Any) -> bool | None:
        """Before the first epoch."""

    def on_epoch_begin(self, trainer: Any) -> bool | None:
        """Before each epoch."""

    def on_step_end(self, trainer: Any, logs: Logs) -> bool | None:
        """After every `every_n_steps` steps; `logs` has ``epoch``, ``step`` and ``train_loss``.

        Epochs and steps of a fit count from 1; the loss is that of the step. ``total_steps`` is
        there too when the number of rows is known.
        """

    def on_validation_end(self, trainer: Any, logs: Logs) -> bool | None:
        """After each validation, at the end of an epoch."""

    def on_epoch_end(self, trainer: Any, logs: Logs) -> bool | None:
        """After each epoch and its validation."""

    def on_checkpoint(self, trainer: Any, path: str) -> bool | None:
        """After a checkpoint was written, or a model by `Trainer.save`."""

    def on_exception(self, trainer: Any, error: BaseException) -> bool | None:
        """When an exception (including Ctrl-C) ends training, before it is raised again."""

    def on_train_end(self, trainer: Any) -> bool | None:
        """After the last epoch, also after an exception."""
