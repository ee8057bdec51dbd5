"""A folder with all files of a training, which can be resumed from it."""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO, cast

from onnxgrad import _core
from onnxgrad.base.checks import path_text
from onnxgrad.callbacks import Callback, Checkpoint, CheckpointWarning, Logs, Progress
from onnxgrad.callbacks.base import RunningTrainer
from onnxgrad.errors import CheckpointError
from onnxgrad.files import LineFile, clear_name, write_own_file
from onnxgrad.run_folder.description import write_description
from onnxgrad.run_folder.epoch_table import EpochTable
from onnxgrad.run_folder.options import run_options

__all__ = ["RunFolder", "as_run_folder"]

_CONFIG = "config.toml"

# Minimum time between two best models, and between two checkpoints at ends of epochs: writing to
# the disk can take longer than many short epochs.
_MIN_SECONDS = 1.0


class RunFolder(Callback):
    """Writes the folder of a run, as ``fit(run_dir=...)`` and the command line do.

    ``config.toml`` has the options of the training, ``environment.txt`` the versions of all
    packages, ``metrics.csv`` a line for each completed epoch, ``train.log`` the table of epochs,
    ``checkpoints`` the checkpoints to resume from, ``best.onnx`` the model of the best epoch,
    ``last.onnx`` the final model (also after Ctrl-C or an exception), and ``curves.svg`` a plot of
    the losses if matplotlib is installed.

    Parameters
    ----------
    path : path
        Preferred folder. If it exists and is not empty, the next unused one of ``path-2``, ... is
        created: no run is overwritten.
    options : dict of str to str, int, float, bool or list, default={}
        Contents of ``config.toml``.
    resume : bool, default=False
        Whether to continue in this folder if it is that of a run.
    every : "epoch" or int, default="epoch"
        See `onnxgrad.callbacks.Checkpoint`.
    keep : int, default=3
        See `onnxgrad.callbacks.Checkpoint`.

    Attributes
    ----------
    path : pathlib.Path
        The folder.
    checkpoint : Checkpoint
        The callback that writes the checkpoints; `fit` adds it separately.
    problem : str
        Why ``last.onnx`` is missing after a training (also a warning); empty if it is there.
    """

    first_worker_only = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: Mapping[str, Any] | None = None,
        *,
        resume: bool = False,
        every: Literal["epoch"] | int = "epoch",
        keep: int = 3,
    ) -> None:
        preferred = Path(path_text("run_dir", path))
        self._resumes = resume and (preferred / _CONFIG).is_file()
        self.path = preferred if self._resumes else _unused_folder(preferred)
        folder = self.path / "checkpoints"
        if self._resumes and folder.is_symlink():
            raise CheckpointError(
                what=f"'{folder}' is a symbolic link, which is not followed",
                file=str(folder),
                hint="Put the folder that it leads to in its place.",
            )
        self.checkpoint = Checkpoint(folder, every, keep, min_seconds=_MIN_SECONDS)
        self.problem = ""
        self._options = dict(options or {})
        self._is_described = False  # of a run that is resumed
        self._log: LineFile | None = None
        self._metrics: EpochTable | None = None
        self._table: Progress | None = None
        self._best: _core.Model | None = None  # not written yet
        self._best_written = -math.inf

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def move_to(self, path: Path) -> None:
        """Write to another folder: that of the first of several workers."""
        self.path = path
        self.checkpoint.path = str(path / "checkpoints")

    def on_train_begin(self, trainer: RunningTrainer) -> None:
        """Create the folder and the files that do not change."""
        try:
            if not self._resumes:
                write_description(self.path, self._options)
            self._log = LineFile(self.path / "train.log", append=self._resumes, own=True)
        except OSError as error:
            raise CheckpointError(
                what=f"cannot write into '{self.path}': {error.strerror}",
                file=str(self.path),
                hint="Free space on the disk, or choose another run_dir.",
            ) from error
        lines = [trainer.session.loss_line, trainer.session.batch_line, f"seed: {trainer.seed}"]
        print(*filter(None, lines), sep="\n", file=self._log)
        self._metrics = EpochTable(self.path / "metrics.csv", self._resumes, own=True)
        self._table = Progress(bar=False, stream=cast("TextIO", self._log))
        self._table.on_train_begin(trainer)

    def _describe_resumed(self) -> None:
        """Store the options once the checkpoint has been accepted with them."""
        if self._resumes and not self._is_described:
            self._is_described = True
            with self._warned():
                write_description(self.path, self._options)

    def on_checkpoint(self, trainer: RunningTrainer, path: str) -> None:  # noqa: ARG002 (interface)
        """Store the options that the checkpoint was written with."""
        self._describe_resumed()

    def on_epoch_end(self, trainer: RunningTrainer, logs: Logs) -> None:
        """Write the line of the epoch, and the model if it is the best so far."""
        self._describe_resumed()
        if self._table is not None:
            with self._warned():
                self._table.on_epoch_end(trainer, logs)
        if self._metrics is not None:
            with self._warned():
                self._metrics.add(trainer.history, logs)
        if trainer.is_best:
            self._best = trainer.session._core.trained_model()
        if time.monotonic() - self._best_written >= _MIN_SECONDS:
            self._write_best()

    def on_exception(self, trainer: RunningTrainer, error: BaseException) -> None:  # noqa: ARG002
        """Log what ended the training; options that were refused are not stored."""
        self._is_described = True
        if self._log is not None:
            with self._warned():
                print(f"{type(error).__name__}: {error}", file=self._log)

    def on_train_end(self, trainer: RunningTrainer) -> None:
        """Write the last model and finish the other files."""
        if self._log is None or self._table is None or self._metrics is None:
            return
        log, table, metrics = self._log, self._table, self._metrics
        self._log = self._table = self._metrics = None
        self.problem = "it could not be written"
        with self._warned():
            self._write_last(trainer)
        self._write_best()
        with self._warned():
            table.on_train_end(trainer)
        with self._warned():
            log.close()
        if trainer.history:
            with self._warned():
                metrics.close(trainer.history)
            with self._warned():
                self._draw(trainer)

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """Turn failures to write a file into warnings: they do not end a training."""
        try:
            yield
        except CheckpointError as error:
            warnings.warn(f"'{self.path}': {error}", CheckpointWarning, stacklevel=4)

    def _write_last(self, trainer: RunningTrainer) -> None:
        try:
            clear_name(self.path / "last.onnx")
            trainer.save(self.path / "last.onnx")
        except CheckpointError as error:
            self.problem = error.what
            raise
        self.problem = ""

    def _write_best(self) -> None:
        if self._best is None:
            return
        with self._warned():
            clear_name(self.path / "best.onnx")
            self._best.save(str(self.path / "best.onnx"))
        self._best, self._best_written = None, time.monotonic()

    def _draw(self, trainer: RunningTrainer) -> None:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return
        figure = Figure(figsize=(7, 4), layout="constrained")
        trainer.history.plot(figure.subplots())
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
        write_own_file(self.path / "curves.svg", picture.getvalue())


def as_run_folder(
    trainer: RunningTrainer, run_dir: str | os.PathLike[str] | RunFolder, fit: Mapping[str, Any]
) -> RunFolder:
    """Return the callback that writes the folder of a `fit` with these arguments."""
    folder = run_dir
    if not isinstance(folder, RunFolder):
        folder = RunFolder(folder, run_options(trainer, fit), resume=fit["resume"] is True)
    trainer.run_dir = folder.path
    return folder


def _unused_folder(path: Path) -> Path:
    candidate, number = path, 1
    while candidate.exists() and not (candidate.is_dir() and not any(candidate.iterdir())):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
