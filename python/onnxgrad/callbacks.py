"""What can happen between the epochs of a training.

The loop itself runs in C++ and does not stop for Python; a callback is told at the end of an epoch
and, where it asks for that, every `every_n_steps` steps.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

from onnxgrad._checks import path_text, positive_int, real_number
from onnxgrad.errors import OptionError

if TYPE_CHECKING:
    import os

    from onnxgrad.trainer import Trainer

__all__ = [
    "Callback",
    "CallbackLike",
    "Checkpoint",
    "CheckpointWarning",
    "EarlyStopping",
    "Logs",
    "Progress",
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
        """After every `every_n_steps` steps; `logs` has ``step``, ``steps`` and ``train_loss``."""

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
    """Ends training when nothing improves any more: `val_loss`, or `train_loss` without validation.

    Parameters
    ----------
    patience : int, default=10
        Epochs without improvement that are waited for.
    min_delta : float, default=1e-4
        What counts as an improvement.
    restore_best : bool, default=True
        Whether to end with the weights of the best epoch.

    Examples
    --------
    >>> import onnxgrad as og
    >>> stopping = og.callbacks.EarlyStopping(patience=5)
    """

    def __init__(
        self, patience: int = 10, min_delta: float = 1e-4, restore_best: bool = True
    ) -> None:
        # The loop in C++ does the work: it keeps the best weights without a copy to Python.
        self.patience = positive_int("patience", patience)
        self.min_delta = real_number("min_delta", min_delta)
        self.restore_best = bool(restore_best)


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
    ) -> None:
        # The loop in C++ does the work, between two steps and without a copy of the weights.
        self.path = path_text("path", path)
        self.every_steps = 0 if every == "epoch" else positive_int("every", every)
        self.keep = positive_int("keep", keep)
        self.best = bool(best)


class _Function(Callback):
    """A bare function, called at the end of every epoch."""

    def __init__(self, function: Callable[[Trainer, Logs], bool | None]) -> None:
        self._function = function

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> bool | None:
        return self._function(trainer, logs)


class CallbackList(Callback):
    """Several callbacks as one, called in order; used by the Trainer."""

    def __init__(self, callbacks: Iterable[CallbackLike]) -> None:
        self.callbacks = [_as_callback(callback) for callback in callbacks]

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


def _as_callback(callback: CallbackLike) -> Callback:
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type) or not callable(callback):
        raise OptionError(
            what=f"callbacks: {callback!r} is neither a Callback nor a function",
            mend="Give objects of classes derived from onnxgrad.callbacks.Callback, or functions "
            "of (trainer, logs).",
        )
    return _Function(callback)


_MAX_LINES = 100  # of one training, unless epochs take longer than a second
_MIN_UPDATE_S = 0.1  # a terminal is updated at most ten times a second


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
        self._wants_bar = bar if bar is not None else _is_terminal(self._stream)
        self._display: _RichDisplay | _PlainDisplay | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        """Print the head of the table."""
        self._best = math.inf
        self._every = max(1, math.ceil(trainer.epochs / _MAX_LINES))
        self._last_row = 0.0
        self._columns: Sequence[str] = ()
        display = _RichDisplay if self._wants_bar else _PlainDisplay
        self._display = display(self._stream, trainer.epochs)

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> None:
        """Print the row of the epoch."""
        if self._display is None:
            return
        now = time.monotonic()
        epoch = int(logs["epoch"])
        if not self._columns:
            self._columns = [name for name in _COLUMNS if name in logs]
            self._display.line("  ".join(_COLUMNS[name][0] for name in self._columns))
        watched = logs.get("val_loss", logs["train_loss"])
        is_best = watched < self._best
        self._best = min(self._best, watched)
        is_due = epoch % self._every == 0 or epoch in (1, trainer.epochs)
        if is_due or now - self._last_row >= 1.0:
            self._last_row = now
            cells = [_COLUMNS[name][1](logs[name]) for name in self._columns]
            self._display.line("  ".join(cells) + (" *" if is_best else ""), is_best)
        self._display.advance(epoch, logs)

    def on_train_end(self, trainer: Trainer) -> None:
        """Remove the bar; say why the training stopped early."""
        if self._display is not None:
            if trainer.stop_reason:
                self._display.line(f"stopped: {trainer.stop_reason}")
            self._display.close()
            self._display = None


def _number(width: int, digits: int = 6) -> Callable[[float], str]:
    return lambda value: f"{value:{width}.{digits}g}"


# name in the logs -> (title, format), both of the same width
_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "epoch": (" epoch", lambda value: f"{int(value):6d}"),
    "train_loss": ("  train_loss", _number(12)),
    "val_loss": ("    val_loss", _number(12)),
    "val_accuracy": ("val_accuracy", lambda value: f"{value:12.4f}"),
    "lr": ("       lr", _number(9, 3)),
    "rows_per_s": ("   rows/s", lambda value: f"{value:9.0f}"),
    "seconds": ("    time", lambda value: _duration(value)),
}


def _duration(seconds: float) -> str:
    return f"{seconds:7.2f}s" if seconds >= 1 else f"{seconds * 1e3:6.1f}ms"


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


class _PlainDisplay:
    """Lines only: for pipes and files."""

    def __init__(self, stream: TextIO, epochs: int) -> None:
        self._stream = stream
        self._epochs = epochs

    def line(self, text: str, is_best: bool = False) -> None:  # noqa: ARG002 (plain text)
        print(text, file=self._stream, flush=True)

    def advance(self, epoch: int, logs: Logs) -> None:
        pass

    def close(self) -> None:
        pass


class _RichDisplay:
    """Lines with a bar that stays below them."""

    def __init__(self, stream: TextIO, epochs: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._console = Console(file=stream, force_terminal=True, highlight=False)
        self._progress = Progress(
            TextColumn("epoch"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeRemainingColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._progress.add_task("train", total=epochs, loss="")
        self._lines: list[tuple[str, str | None]] = []
        self._state: tuple[int, str] = (0, "")
        self._updated = 0.0
        self._progress.start()

    def line(self, text: str, is_best: bool = False) -> None:
        self._lines.append((text, "bold" if is_best else None))

    def advance(self, epoch: int, logs: Logs) -> None:
        self._state = (epoch, f"loss {logs['train_loss']:.4g}")
        if time.monotonic() - self._updated >= _MIN_UPDATE_S:
            self._update()

    def close(self) -> None:
        self._update()
        self._progress.stop()

    def _update(self) -> None:
        self._progress.update(self._task, completed=self._state[0], loss=self._state[1])
        self._print_lines()
        self._progress.refresh()
        self._updated = time.monotonic()

    def _print_lines(self) -> None:
        from rich.text import Text

        if self._lines:
            rows = Text("\n").join(Text(text, style or "") for text, style in self._lines)
            self._progress.print(rows, soft_wrap=True)
            self._lines = []
