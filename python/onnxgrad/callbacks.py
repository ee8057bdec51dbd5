"""What can happen between the epochs of a training.

The loop itself runs in C++ and does not stop for Python; a callback is told at the end of an epoch
and, where it asks for that, every `every_n_steps` steps.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TextIO, TypeAlias

from onnxgrad import _core
from onnxgrad._checks import path_text, positive_int, real_number, unknown_name
from onnxgrad._displays import PlainDisplay, RichDisplay, column, columns_of, is_terminal
from onnxgrad.errors import OptionError
from onnxgrad.files import LineFile
from onnxgrad.history import cell_text
from onnxgrad.metrics import is_larger_better

if TYPE_CHECKING:
    from onnxgrad.trainer import Trainer

__all__ = [
    "CSVLogger",
    "Callback",
    "CallbackLike",
    "Checkpoint",
    "CheckpointWarning",
    "EarlyStopping",
    "Logs",
    "OptunaPruning",
    "Progress",
    "TensorBoard",
]

Logs: TypeAlias = Mapping[str, float]
"""What callbacks are given: a dictionary of numbers such as ``train_loss`` and ``val_loss``."""

CallbackLike: TypeAlias = "Callback | Callable[[Trainer, Logs], bool | None]"
"""A `Callback`, or a function that is called as its `on_epoch_end`."""


class Callback:
    """Base of callbacks; every method does nothing until it is overridden.

    A method that returns True ends the training after the current epoch (or step, for
    `on_step_end`), as ``trainer.stop(reason)`` does. `logs` is a dictionary of numbers with the
    names of `Trainer.history`.

    Attributes
    ----------
    every_n_steps : int or None
        How often `on_step_end` is called; None is never.

    Examples
    --------
    >>> import onnxgrad as og
    >>> class StopWhenGood(og.callbacks.Callback):
    ...     def on_epoch_end(self, trainer, logs):
    ...         return logs["train_loss"] < 0.1
    """

    every_n_steps: int | None = None

    def on_train_begin(self, trainer: Trainer) -> bool | None:
        """Before the first epoch."""

    def on_epoch_begin(self, trainer: Trainer) -> bool | None:
        """Before an epoch."""

    def on_step_end(self, trainer: Trainer, logs: Logs) -> bool | None:
        """After every `every_n_steps` steps; `logs` has ``epoch``, ``step`` and ``train_loss``.

        Epochs count from 1, steps from 1 at the begin of the fit; the loss is that of the step.
        """

    def on_validation_end(self, trainer: Trainer, logs: Logs) -> bool | None:
        """After the validation at the end of an epoch."""

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> bool | None:
        """After an epoch and its validation."""

    def on_checkpoint(self, trainer: Trainer, path: str) -> bool | None:
        """After a checkpoint was written, or a model by `Trainer.save`."""

    def on_exception(self, trainer: Trainer, error: BaseException) -> bool | None:
        """When training ends by an exception, Ctrl-C included; the exception is raised after it."""

    def on_train_end(self, trainer: Trainer) -> bool | None:
        """After the last epoch, also after an exception."""


class EarlyStopping(Callback):
    """Ends training when nothing improves any more.

    Parameters
    ----------
    monitor : str, default=None
        ``"train_loss"``, ``"val_loss"``, ``"val_accuracy"`` or ``"val_<metric>"``. None is the
        validation loss, or the training loss without validation.
    patience : int, default=10
        Epochs (with a validation, if there is one) without improvement that are waited for.
    min_delta : float, default=1e-4
        What counts as an improvement.
    mode : {"auto", "min", "max"}, default="auto"
        Whether smaller or larger is better; ``"auto"`` knows it of losses and built-in metrics, and
        takes larger for metrics that are functions.
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


class CSVLogger(Callback):
    """Writes a line for each epoch to a CSV file, with the names of the history; flushed at once.

    Parameters
    ----------
    path : path
        The file; the folder must be there.
    append : bool, default=False
        Whether to go on with a file that is there; its columns must be the same.

    Examples
    --------
    >>> import onnxgrad as og
    >>> logger = og.callbacks.CSVLogger("metrics.csv")
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False) -> None:
        self._path = path_text("path", path)
        self._append = append
        self._file: LineFile | None = None
        self._names: list[str] = []

    def on_train_begin(self, trainer: Trainer) -> None:  # noqa: ARG002 (interface)
        """Open the file."""
        self._file = LineFile(self._path, append=self._append)
        if self._append:
            with Path(self._path).open(encoding="utf-8") as file:
                self._names = [name for name in file.readline().strip().split(",") if name]

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> None:
        """Write the line of the epoch."""
        if self._file is None:
            return
        if not self._names:
            self._names = list(dict.fromkeys([*logs, *trainer.validation_names]))
            self._file.write(",".join(self._names) + "\n")
        cells = [cell_text(logs[name]) if name in logs else "" for name in self._names]
        self._file.write(",".join(cells) + "\n")

    def on_train_end(self, trainer: Trainer) -> None:  # noqa: ARG002 (interface)
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoard(Callback):
    """Writes an event file that TensorBoard shows; needs tensorboardX.

    Parameters
    ----------
    log_dir : path
        Folder of the event file.
    every_n_steps : int, default=None
        Write the training loss of every n-th step too.

    Notes
    -----
    Tags are ``loss/train``, ``loss/val``, ``lr``, ``rows_per_s`` and ``metric/<name>``, over the
    epochs; ``loss/step`` over the steps. ``pip install onnxgrad[tensorboard]`` brings the writer.
    """

    _TAGS: ClassVar = {"train_loss": "loss/train", "val_loss": "loss/val"}

    def __init__(
        self, log_dir: str | os.PathLike[str], *, every_n_steps: int | None = None
    ) -> None:
        self._log_dir = path_text("log_dir", log_dir)
        if every_n_steps is not None:
            self.every_n_steps = positive_int("every_n_steps", every_n_steps)
        self._writer: Any = None

    def on_train_begin(self, trainer: Trainer) -> None:  # noqa: ARG002 (interface)
        """Open the event file."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise OptionError(
                what="callbacks.TensorBoard needs tensorboardX, which is not installed",
                hint="Install it: pip install 'onnxgrad[tensorboard]'.",
            ) from error
        self._writer = SummaryWriter(self._log_dir)

    def on_step_end(self, trainer: Trainer, logs: Logs) -> None:  # noqa: ARG002 (interface)
        """Write the loss of the step."""
        if self._writer is not None and self.every_n_steps:
            self._writer.add_scalar("loss/step", logs["train_loss"], int(logs["step"]))

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> None:  # noqa: ARG002 (interface)
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

    def on_train_end(self, trainer: Trainer) -> None:  # noqa: ARG002 (interface)
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class OptunaPruning(Callback):
    """Reports each epoch to a trial of Optuna, and ends the trial where Optuna prunes it.

    Parameters
    ----------
    trial : optuna.Trial
    monitor : str, default="val_loss"
        What is reported, by its name in the history; epochs without it are left out.

    Notes
    -----
    `fit` raises ``optuna.TrialPruned`` then, which a study expects. Steps count from 1.
    """

    def __init__(self, trial: Any, monitor: str = "val_loss") -> None:
        self._trial = trial
        self._monitor = monitor

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> None:
        """Report the epoch."""
        if self._monitor not in logs and self._monitor not in trainer.validation_names:
            names = sorted({*logs, *trainer.validation_names})
            raise unknown_name("monitor", self._monitor, names)
        if self._monitor not in logs:
            return
        self._trial.report(logs[self._monitor], int(logs["epoch"]))
        if self._trial.should_prune():
            from optuna import TrialPruned

            raise TrialPruned(f"pruned at epoch {int(logs['epoch'])}")


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written while training goes on, or a damaged one was left out."""


class Checkpoint(Callback):
    """Writes checkpoints, so that a training that was stopped can go on as if it had not been.

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
    `Trainer.fit(..., resume=True)` goes on from the newest one. A file has its name only when it is
    on the disk as a whole, so a process that is killed at any moment leaves whole checkpoints.
    Where one cannot be written, training goes on, and a warning says why. docs/checkpoints.md
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


class _Function(Callback):
    """A bare function, called at the end of every epoch."""

    def __init__(self, function: Callable[[Trainer, Logs], bool | None]) -> None:
        self._function = function

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> bool | None:
        return self._function(trainer, logs)


class CallbackList(Callback):
    """Several callbacks as one, called in order; used by the Trainer."""

    def __init__(self, callbacks: Iterable[CallbackLike] | CallbackLike) -> None:
        several: Any = callbacks if hasattr(callbacks, "__iter__") else [callbacks]
        self.callbacks = [_as_callback(callback) for callback in several]
        others = [c.every_n_steps for c in self.callbacks if not isinstance(c, Progress)]
        often = math.gcd(*(steps for steps in others if steps))
        for callback in self.callbacks:
            if often and isinstance(callback, Progress) and callback.every_n_steps:
                # A multiple of it: the loop need not stop more often than others ask for.
                callback.every_n_steps = often * max(1, callback.every_n_steps // often)

    def early_stopping(self) -> _core.EarlyStopping | None:
        """Return the early stopping among them as the extension takes it.

        Raises
        ------
        OptionError
            There are several.
        """
        found = [c for c in self.callbacks if isinstance(c, EarlyStopping)]
        if len(found) > 1:
            raise OptionError(
                what=f"early stopping is given {len(found)} times; there can be one",
                value="early_stopping",
                hint="Give early_stopping or one callbacks.EarlyStopping; stop for other reasons "
                "in a callback that returns True.",
            )
        return found[0].native() if found else None

    def set_checkpoints(
        self, options: _core.FitOptions, resume: bool | str | os.PathLike[str]
    ) -> None:
        """Put the `Checkpoint` among them, and what to resume from, into `options`.

        Raises
        ------
        OptionError
            There are several, that of a run folder included; or nothing to resume from.
        """
        found = [c for c in self.callbacks if isinstance(c, Checkpoint)]
        if len(found) > 1:
            raise OptionError(
                what="checkpoints are wanted in " + " and ".join(repr(c.path) for c in found),
                value="callbacks",
                detail="One training writes to one folder; run_dir has its own.",
                hint="Give one callbacks.Checkpoint without run_dir, or "
                "run_dir=run_folder.RunFolder(path, every=..., keep=...).",
            )
        for callback in found:
            options.checkpoint = _core.CheckpointOptions(
                callback.path,
                callback.every_steps,
                callback.keep,
                callback.best,
                callback.min_seconds,
            )
            if resume is True:
                options.resume, options.resume_if_any = callback.path, True
        if not isinstance(resume, bool):
            options.resume = path_text("resume", resume)
        elif resume and not options.resume:
            raise OptionError(
                what="resume=True, but there is neither callbacks.Checkpoint nor run_dir",
                value="resume",
                hint="Add one, or give the path of a checkpoint.",
            )

    def handlers(self, hook: str) -> list[Callback]:
        """Return those that override the method `hook`."""
        base = getattr(Callback, hook)
        return [c for c in self.callbacks if getattr(type(c), hook, base) is not base]

    def call(self, hook: str, *arguments: Any) -> bool:
        """Call the method `hook` of each; True if one asked to stop."""
        stop = False
        for callback in self.handlers(hook):
            stop = getattr(callback, hook)(*arguments) is True or stop
        return stop


def stopping_of(early_stopping: Any) -> list[CallbackLike]:
    """Return the callback that the option `early_stopping` stands for, or nothing."""
    if early_stopping is False or early_stopping is None:
        return []
    if early_stopping is True:
        return [EarlyStopping()]
    if not isinstance(early_stopping, EarlyStopping):
        raise OptionError(
            what=f"early_stopping: {early_stopping!r}",
            value="early_stopping",
            hint="Give True, False or callbacks.EarlyStopping(patience=5).",
        )
    return [early_stopping]


def _as_callback(callback: CallbackLike) -> Callback:
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type) or not callable(callback):
        raise OptionError(
            what=f"callbacks: {callback!r} is neither a Callback nor a function",
            hint="Give objects of classes derived from onnxgrad.callbacks.Callback, or functions "
            "of (trainer, logs).",
        )
    return _Function(callback)


Verbosity: TypeAlias = Literal["auto", 0, 1, 2]

_MAX_LINES = 100  # of one training, unless epochs take longer than a second


class Progress(Callback):
    """One table row per epoch, and a live bar below it on a terminal.

    Parameters
    ----------
    bar : bool or None, default=None
        Whether to draw the bar; None draws it when `stream` is a terminal.
    stream : text file, default=None
        Where to write; None is standard error.

    Notes
    -----
    The best row so far (lowest validation loss, or training loss without validation) is marked
    with ``*``. Of more than 100 epochs only every n-th row is printed, unless epochs take longer
    than a second. The environment variable ``NO_COLOR`` is obeyed.
    """

    def __init__(self, bar: bool | None = None, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self.wants_bar = bar if bar is not None else is_terminal(self._stream)
        self._display: RichDisplay | PlainDisplay | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        """Print the head of the table."""
        self._best = math.inf
        self._every = max(1, math.ceil(trainer.epochs / _MAX_LINES))
        self._last_row = 0.0
        self._first_step = trainer.session.steps
        self._columns: Sequence[str] = ()
        display = RichDisplay if self.wants_bar else PlainDisplay
        self._display = display(self._stream, trainer.epochs)

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> None:
        """Print the row of the epoch."""
        if self._display is None:
            return
        now = time.monotonic()
        epoch = int(logs["epoch"])
        if not self._columns:
            self._columns = columns_of(trainer, logs)
            self._display.line("  ".join(column(name)[0] for name in self._columns))
        watched = logs.get("val_loss", math.inf if trainer.validation_names else logs["train_loss"])
        is_best = watched < self._best
        self._best = min(self._best, watched)
        is_due = epoch % self._every == 0 or epoch in (1, trainer.epochs)
        if is_due or now - self._last_row >= 1.0:
            self._last_row = now
            cells = [
                column(name)[1](logs[name]) if name in logs else " " * len(column(name)[0])
                for name in self._columns
            ]
            self._display.line("  ".join(cells) + (" *" if is_best else ""), is_best)
        self._display.advance(epoch, logs, trainer.session.steps - self._first_step)

    def on_step_end(self, trainer: Trainer, logs: Logs) -> None:  # noqa: ARG002 (interface)
        """Show the step and its loss beside the bar."""
        if self._display is not None:
            self._display.step(int(logs["step"]), logs["train_loss"])

    def on_train_end(self, trainer: Trainer) -> None:
        """Remove the bar; say why the training stopped early."""
        if self._display is not None:
            if trainer.stop_reason:
                self._display.line(f"stopped: {trainer.stop_reason}")
            self._display.close()
            self._display = None


def progress_for(verbose: Verbosity, num_weights: Callable[[], int] = int) -> list[Progress]:
    """Return the table that `verbose` asks for, or nothing.

    `num_weights` says how many numbers are trained: with many, a step takes long, and the bar is
    told more often.
    """
    if verbose not in ("auto", 0, 1, 2):
        raise OptionError(
            what=f"verbose: {verbose!r}, expected 'auto', 0, 1 or 2",
            value="verbose",
            hint="Give 0 for silence, 1 for lines, 2 also for the weights and the plan.",
        )
    if verbose == 0:
        return []
    progress = Progress(bar=None if verbose == "auto" else False)
    if progress.wants_bar:
        progress.every_n_steps = max(1, min(1000, 10**7 // max(1, num_weights())))
    return [progress]
