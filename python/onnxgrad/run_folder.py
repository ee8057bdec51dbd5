"""A folder that says all about one training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from onnxgrad._checks import path_text
from onnxgrad._run_description import write_description
from onnxgrad.callbacks import Callback, CSVLogger, Logs, Progress
from onnxgrad.errors import CheckpointError

if TYPE_CHECKING:
    from onnxgrad import _core
    from onnxgrad.trainer import Trainer

__all__ = ["RunFolder", "run_folder"]


class RunFolder(Callback):
    """Writes the folder of a run; what ``fit(run_dir=...)`` adds to the callbacks.

    ``config.toml`` has the options of the training, ``environment.txt`` the versions of all parts,
    ``metrics.csv`` a line for each epoch, ``train.log`` the table that a terminal shows,
    ``best.onnx`` the model of the best epoch, ``last.onnx`` that of the end, also after Ctrl-C or
    an exception, and ``curves.svg`` the losses, if matplotlib is there.

    Parameters
    ----------
    path : path
        Wanted folder. If it is there and not empty, the next free of ``path-2``, ``path-3``, ... is
        taken.
    options : dict of str to str, int, float or bool, default={}
        What ``config.toml`` says.

    Attributes
    ----------
    path : pathlib.Path
        The folder that was taken.
    """

    def __init__(
        self, path: str | os.PathLike[str], options: Mapping[str, Any] | None = None
    ) -> None:
        self.path = _free_folder(Path(path_text("run_dir", path)))
        self._options = dict(options or {})
        self._log: TextIO | None = None
        self._parts: list[Callback] = []

    def on_train_begin(self, trainer: Trainer) -> None:
        """Make the folder, and the files that do not change."""
        try:
            write_description(self.path, self._options)
            self._log = (self.path / "train.log").open("w", encoding="utf-8")
        except OSError as error:
            raise CheckpointError(
                what=f"cannot write into '{self.path}': {error.strerror}", file=str(self.path)
            ) from error
        print(trainer.session.loss_line, file=self._log)
        self._parts = [CSVLogger(self.path / "metrics.csv"), Progress(bar=False, stream=self._log)]
        for part in self._parts:
            part.on_train_begin(trainer)

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> None:
        """Write the line of the epoch, and the model if it is the best so far."""
        for part in self._parts:
            part.on_epoch_end(trainer, logs)
        if trainer.is_best:
            trainer.save(self.path / "best.onnx")

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:  # noqa: ARG002
        """Note what ended the training."""
        if self._log is not None:
            print(f"{type(error).__name__}: {error}", file=self._log)

    def on_train_end(self, trainer: Trainer) -> None:
        """Write the model of the end and the curves."""
        if self._log is None:
            return
        for part in self._parts:
            part.on_train_end(trainer)
        self._log.close()
        self._log = None
        trainer.save(self.path / "last.onnx")
        if trainer.history:
            self._draw(trainer)

    def _draw(self, trainer: Trainer) -> None:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return
        figure = Figure()
        trainer.history.plot(figure.subplots())
        figure.savefig(self.path / "curves.svg")


def run_folder(
    trainer: Trainer, path: str | os.PathLike[str], options: _core.FitOptions
) -> RunFolder:
    """Return the callback that writes the folder of a `fit` with these options."""
    names = ("epochs", "batch_size", "shuffle", "drop_last", "seed", "validation_every")
    said = {name: getattr(options, name) for name in (*names, "keep_best", "max_seconds")}
    session = trainer.session
    said |= {"optimizer": repr(session.optimizer), "lr": session.lr, "loss": session.loss_line}
    said["metrics"] = [metric.name for metric in options.metrics]
    folder = RunFolder(path, said)
    trainer.run_dir = folder.path
    return folder


def _free_folder(path: Path) -> Path:
    candidate, number = path, 1
    while candidate.exists() and not (candidate.is_dir() and not any(candidate.iterdir())):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
