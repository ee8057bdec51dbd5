"""The table of epochs on standard error, with a bar on a terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from onnxgrad.base.checks import shown
from onnxgrad.base.messages import Verbosity
from onnxgrad.callbacks.base import Callback, Logs, RunningTrainer
from onnxgrad.callbacks.displays import (
    NotebookDisplay,
    PlainDisplay,
    RichDisplay,
    column,
    columns_of,
    is_notebook,
    is_terminal,
    straggler,
)
from onnxgrad.errors import OptionError

__all__ = ["Progress", "progress_for"]

_MAX_LINES = 100  # maximum lines of a training, unless epochs take longer than a second


class Progress(Callback):
    """Prints a table row for each epoch, with a progress bar below it on a terminal.

    Parameters
    ----------
    bar : bool or None, default=None
        Whether to draw the bar; None draws it if `stream` is a terminal, or in a notebook.
    stream : text file, default=None
        Where to write; None means standard error.

    Notes
    -----
    The best row so far (lowest validation loss, or training loss without validation) is marked
    with ``*``. Of several workers, the one that others wait for is named if it takes a tenth of the
    epoch longer. For more than 100 epochs only every n-th row is printed, unless epochs take longer
    than a second. The environment variable ``NO_COLOR`` is respected.
    """

    first_worker_only = True

    def __init__(self, bar: bool | None = None, stream: TextIO | None = None) -> None:
        self._in_notebook = stream is None and bar is not False and is_notebook()
        self._stream = stream if stream is not None else sys.stderr
        is_live = self._in_notebook or is_terminal(self._stream)
        self.wants_bar = bar if bar is not None else is_live
        self._display: RichDisplay | PlainDisplay | NotebookDisplay | None = None

    def on_train_begin(self, trainer: RunningTrainer) -> None:
        """Prepare the table."""
        self._best = math.inf
        self._every = max(1, math.ceil(trainer.epochs / _MAX_LINES))
        self._last_row = 0.0
        self._shown = 0
        self._first_step = trainer.session.steps
        self._columns: Sequence[str] = ()
        kind: Any = RichDisplay if self.wants_bar else PlainDisplay
        if self._in_notebook:
            kind = NotebookDisplay
        self._display = kind(self._stream, trainer.epochs)

    def on_epoch_end(self, trainer: RunningTrainer, logs: Logs) -> None:
        """Print the row of the epoch."""
        if self._display is None:
            return
        self._shown = self._print_row(trainer, logs)
        self._display.advance(self._shown, logs, trainer.session.steps - self._first_step)

    def _print_row(self, trainer: RunningTrainer, logs: Logs) -> int:
        assert self._display is not None
        now = time.monotonic()
        epoch = int(logs["epoch"])
        if not self._columns:
            self._columns = columns_of(trainer, logs)
            self._display.line("  ".join(column(name)[0] for name in self._columns))
        loss = logs.get("val_loss", math.inf if trainer.validation_names else logs["train_loss"])
        is_best = loss < self._best
        self._best = min(self._best, loss)
        is_due = epoch % self._every == 0 or epoch in (1, trainer.epochs)
        if is_due or now - self._last_row >= 1.0:
            self._last_row = now
            cells = [
                column(name)[1](logs[name]) if name in logs else " " * len(column(name)[0])
                for name in self._columns
            ]
            who = straggler(trainer, logs)
            row = "  ".join(cells) + (" *" if is_best else "") + (f"  {who}" if who else "")
            self._display.line(row, is_best)
        return epoch

    def on_step_end(self, trainer: RunningTrainer, logs: Logs) -> None:  # noqa: ARG002 (interface)
        """Show the step and its loss next to the bar."""
        if self._display is not None:
            self._display.step(
                int(logs["step"]), int(logs.get("total_steps", 0)), logs["train_loss"]
            )

    def on_train_end(self, trainer: RunningTrainer) -> None:
        """Remove the bar; print why the training stopped early."""
        if self._display is not None:
            last = {name: column[-1] for name, column in trainer.history.items() if column}
            if trainer.stop_reason and last.get("epoch", 0) > self._shown:  # it ended within one
                self._last_row = 0.0
                self._print_row(trainer, last)
            if trainer.stop_reason:
                self._display.line(f"stopped: {trainer.stop_reason}")
            if trainer.history.kept_line:
                self._display.line(trainer.history.kept_line)
            self._display.close()
            self._display = None


def progress_for(verbose: Verbosity, num_trained: int) -> list[Progress]:
    """Return the progress callback for `verbose`, or nothing.

    With many parameters (`num_trained`), a step takes longer, so the bar is updated after fewer.
    """
    if not isinstance(verbose, (str, int)) or verbose not in ("auto", 0, 1, 2):
        raise OptionError(
            what=f"verbose: {shown(verbose)}, expected 'auto', 0, 1 or 2",
            value="verbose",
            hint="Give 0 for no output, 1 for lines, 2 for the weights and the plan too.",
        )
    if verbose == 0:
        return []
    progress = Progress(bar=None if verbose == "auto" else False)
    if progress.wants_bar:
        progress.every_n_steps = max(1, min(1000, 10**7 // max(1, num_trained)))
    return [progress]
