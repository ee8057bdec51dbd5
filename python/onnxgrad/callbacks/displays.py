"""Progress displays of a training: the table of epochs, and a bar on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from onnxgrad.base.messages import BROKEN
from onnxgrad.callbacks.base import Logs, RunningTrainer

__all__ = [
    "NotebookDisplay",
    "PlainDisplay",
    "RichDisplay",
    "column",
    "columns_of",
    "is_notebook",
    "is_terminal",
    "straggler",
]

MIN_UPDATE_S = 0.1  # a terminal is updated at most ten times a second
MAX_NOTEBOOK_LINES = 21


def _number(width: int, digits: int = 6) -> Callable[[float], str]:
    return lambda value: f"{value:{width}.{digits}g}"


# name in the logs -> (title, format), both of the same width
_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "epoch": (" epoch", lambda value: f"{int(value):6d}"),
    "train_loss": ("  train_loss", _number(12)),
    "val_loss": ("    val_loss", _number(12)),
    "val_accuracy": ("val_accuracy", lambda value: f"{value:12.4f}"),
    "grad_norm": ("   grad_norm", _number(12)),
    "noise_scale": (" noise_scale", _number(12)),
    "lr": ("       lr", _number(9, 3)),
    "rows_per_s": ("   rows/s", lambda value: f"{value:9.0f}"),
    "network_wait_s": (" waiting", lambda value: _duration(value)),
    "seconds": ("    time", lambda value: _duration(value)),
}


def column(name: str) -> tuple[str, Callable[[float], str]]:
    """Return the title and the format function of a column."""
    width = max(12, len(name))
    return _COLUMNS.get(name, (f"{name:>{width}}", _number(width)))


def columns_of(trainer: RunningTrainer, logs: Logs) -> list[str]:
    """Return the columns of the table, with metrics after the accuracy."""
    known = [name for name in _COLUMNS if name in logs or name in trainer.validation_names]
    metrics = [name for name in trainer.validation_names if name not in known]
    end = next((i for i, name in enumerate(known) if name in ("grad_norm", "lr")), len(known))
    targets = [name for name in logs if name.startswith("train_loss_")]
    return [*known[:2], *targets, *known[2:end], *metrics, *known[end:]]


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:6.0f}us"
    return f"{seconds:7.2f}s" if seconds >= 1 else f"{seconds * 1e3:6.1f}ms"


def straggler(trainer: RunningTrainer, logs: Logs) -> str:
    """Return who the other workers of a job wait for, if that is a tenth of the epoch; else ""."""
    lag = logs.get("slowest_lag_s", 0.0)
    if lag < 0.1 * logs.get("seconds", 0.0) or not lag > 0:
        return ""
    rank = int(logs["slowest_rank"])
    hosts = trainer.worker_hosts
    where = f" on host {hosts[rank]}" if rank < len(hosts) else ""
    return f"rank {rank}{where} is {_duration(lag).strip()} slower than the others"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):
        return False


def is_notebook() -> bool:
    """Return whether the code runs in a cell of a notebook, which can be updated in place."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


class PlainDisplay:
    """Plain lines, for pipes and files."""

    def __init__(self, stream: TextIO | None, epochs: int) -> None:
        self._stream = stream
        self._epochs = epochs

    def line(self, text: str, is_best: bool = False) -> None:  # noqa: ARG002 (plain text)
        """Show a row of the table."""
        if self._stream is not None:
            with contextlib.suppress(*BROKEN):
                print(text, file=self._stream, flush=True)

    def advance(self, epoch: int, logs: Logs, steps: int) -> None:
        """Show the end of an epoch, after `steps` steps in total."""

    def step(self, step: int, total: int, loss: float) -> None:
        """Show the loss of a step; `total` is the number of all steps, or 0 if it is unknown."""

    def close(self) -> None:
        """Remove the bar."""


class NotebookDisplay:
    """The last rows of the table and a bar, as one output of a cell that is updated in place."""

    def __init__(self, stream: TextIO | None, epochs: int) -> None:  # noqa: ARG002 (a cell instead)
        self._epochs = epochs
        self._lines: list[tuple[str, bool]] = []
        self._done = 0.0
        self._shown = ""
        self._per_epoch = 0.0
        self._updated = 0.0
        self._handle: Any = None
        self._is_closed = False

    def line(self, text: str, is_best: bool = False) -> None:
        """Show a row of the table; of many, the first line (titles) and the last ones."""
        self._lines.append((text, is_best))
        if len(self._lines) > MAX_NOTEBOOK_LINES:
            del self._lines[1]
        self._update()

    def advance(self, epoch: int, logs: Logs, steps: int) -> None:
        """Show the end of an epoch, after `steps` steps in total."""
        self._per_epoch = steps / epoch
        self._done, self._shown = (
            epoch,
            f"epoch {epoch}/{self._epochs}, loss {logs['train_loss']:.4g}",
        )
        self._update()

    def step(self, step: int, total: int, loss: float) -> None:
        """Show the loss of a step; `total` is the number of all steps, or 0 if it is unknown."""
        per_epoch = total / self._epochs if total else self._per_epoch
        self._done = max(self._done, step / per_epoch if per_epoch else 0.0)
        self._shown = f"step {step}{f'/{total}' if total else ''}, loss {loss:.4g}"
        self._update()

    def close(self) -> None:
        """Remove the bar."""
        self._is_closed = True
        self._updated = 0.0
        self._update()

    def _update(self) -> None:
        if time.monotonic() - self._updated < MIN_UPDATE_S:
            return
        self._updated = time.monotonic()
        import html

        from IPython.display import HTML, display

        rows = "\n".join(
            f"<b>{html.escape(text)}</b>" if is_best else html.escape(text)
            for text, is_best in self._lines
        )
        bar = f"<progress value='{self._done}' max='{self._epochs}'></progress> {self._shown}"
        shown = HTML(f"<pre>{rows}</pre>{'' if self._is_closed else bar}")
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)


class RichDisplay:
    """Lines with a progress bar below them."""

    def __init__(self, stream: TextIO | None, epochs: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        class Lines(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError  # rich would exit the process

        self._console = Lines(file=stream, force_terminal=True, highlight=False)
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
        self._state: tuple[float, str] = (0.0, "")
        self._epochs = epochs
        self._per_epoch = 0.0
        self._updated = 0.0
        self._is_broken = False
        self._unless_broken(self._progress.start)

    def line(self, text: str, is_best: bool = False) -> None:
        """Show a row of the table."""
        self._lines.append((text, "bold" if is_best else None))

    def advance(self, epoch: int, logs: Logs, steps: int) -> None:
        """Show the end of an epoch, after `steps` steps in total."""
        self._per_epoch = steps / epoch
        self._state = (epoch, f"loss {logs['train_loss']:.4g}")
        if time.monotonic() - self._updated >= MIN_UPDATE_S:
            self._update()

    def step(self, step: int, total: int, loss: float) -> None:
        """Show the loss of a step; `total` is the number of all steps, or 0 if it is unknown."""
        if time.monotonic() - self._updated >= MIN_UPDATE_S:
            per_epoch = total / self._epochs if total else self._per_epoch
            done = step / per_epoch if per_epoch else 0.0
            shown = f"step {step}/{total}" if total else f"step {step}"
            self._state = (max(self._state[0], done), f"{shown}, loss {loss:.4g}")
            self._update()

    def close(self) -> None:
        """Remove the bar."""
        self._update()
        self._unless_broken(self._progress.stop)

    def _update(self) -> None:
        self._updated = time.monotonic()
        self._progress.update(self._task, completed=self._state[0], loss=self._state[1])
        self._unless_broken(self._print_lines)
        self._lines = []
        self._unless_broken(self._progress.refresh)

    def _unless_broken(self, draw: Callable[[], None]) -> None:
        if not self._is_broken:
            try:
                draw()
            except BROKEN:
                self._is_broken = True

    def _print_lines(self) -> None:
        from rich.text import Text

        if self._lines:
            rows = Text("\n").join(Text(text, style or "") for text, style in self._lines)
            self._progress.print(rows, no_wrap=True, overflow="ellipsis")
