"""What the command line writes: checked before the work starts, rescued where writing fails."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from onnxgrad import _core
from onnxgrad.callbacks import Callback, CheckpointWarning, Logs
from onnxgrad.errors import CheckpointError, OptionError
from onnxgrad.run_folder.epoch_table import EpochTable
from onnxgrad.trainer import Trainer

__all__ = ["HistoryFile", "check_output", "check_outputs", "save_output", "save_unfinished"]


def check_output(
    path: str, option: str, read: Mapping[str, str | None], replaced: str | None = None
) -> None:
    """Refuse an output that cannot be written, or that is a file which is read.

    Parameters
    ----------
    path : str
    option : str
        That named it, for messages.
    read : dict of str to str
        Files that the command reads, by the options that named them.
    replaced : str, default=None
        A file that it may be with ``--overwrite``; it takes as much room as that.
    """
    for name, other in read.items():
        if other is not None and _is_same(path, other):
            how = ", or replace it with --overwrite" if other == replaced else ""
            raise OptionError(
                what=f"{option} '{path}' is {name}, which is read and would be lost",
                value=option,
                hint=f"Choose another place with {option}{how}.",
            )
    size = 0
    with contextlib.suppress(OSError):  # of a model that cannot be read: an error of its own
        size = 0 if replaced is None else Path(replaced).stat().st_size
    _check_writable(path, option, size)


def _check_writable(path: str, option: str, size: int) -> None:
    try:
        _core.check_writable(path, size)
    except CheckpointError as error:
        raise CheckpointError(
            what=f"cannot write '{path}': {error.what}",
            file=path,
            hint=f"Choose another place with {option}.",
        ) from None


def _is_same(path: str, other: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return Path(path).samefile(other)
    return False


def check_outputs(options: SimpleNamespace) -> None:
    """Do `check_output` for all that a training writes."""
    read = {"--data": options.data, "--validation": options.validation, "--config": options.config}
    read |= {"--target": options.target, "--sample-weight": options.sample_weight}
    if not options.overwrite:
        read["MODEL"] = options.model
    if options.output is not None:
        check_output(options.output, "-o", read, replaced=options.model)
    if options.history is not None:
        check_output(options.history, "--history", {**read, "MODEL": options.model})
        if options.output is not None and _resolved(options.output) == _resolved(options.history):
            raise OptionError(
                what=f"-o and --history are one file, '{options.history}'",
                value="--history",
                hint="Choose another place for one of them.",
            )
    folder = options.resume or options.run_dir
    if folder is not None:
        places = (Path(folder).absolute(), *Path(folder).absolute().parents)
        there = next(place for place in places if place.exists())
        option = "--run-dir" if options.resume is None else "--resume"
        _check_writable(str(there / "config.toml"), option, 0)


def _resolved(path: str) -> str:
    return os.path.realpath(path)


# ------------------------------------------------------------------------------------ the model


def save_output(trainer: Trainer, path: str) -> None:
    """Write the trained model; where that fails, to a place that the message names.

    Raises
    ------
    CheckpointError
        It could not be written to `path`.
    """
    try:
        trainer.save(path)
    except CheckpointError as error:
        place = _rescue(trainer, Path(path))
        if place is None:
            raise
        raise CheckpointError(
            what=f"cannot write '{path}': {error.what}",
            file=path,
            detail=f"The trained model is in '{place}'.",
            hint=f"Make room, then move it: mv '{place}' '{path}'",
        ) from None


def save_unfinished(trainer: Trainer, output: str) -> str | None:
    """Write the model of a training that an error ended, next to `output` if that is possible.

    Returns where it is; None if there is no room anywhere.
    """
    wanted = Path(output)
    place = _free_name(wanted.parent, wanted, "unfinished")
    with contextlib.suppress(CheckpointError):
        trainer.save(place)
        return str(place)
    return _rescue(trainer, wanted)


def _rescue(trainer: Trainer, wanted: Path) -> str | None:
    """Write the model to a folder that may be on another disk; return the place."""
    folders = ["/tmp", "~", ".", "/var/tmp", "/dev/shm"]
    with contextlib.suppress(OSError):  # there is none with room
        folders.insert(0, tempfile.gettempdir())
    for folder in folders:
        place = _free_name(Path(os.path.expanduser(folder)), wanted, "rescued")  # noqa: PTH111
        with contextlib.suppress(CheckpointError):
            trainer.save(place)
            return str(place)
    return None


def _free_name(folder: Path, wanted: Path, how: str) -> Path:
    """Return a name in `folder` that no file has."""
    for number in itertools.count():
        place = folder / f"{wanted.stem}.{how}{number or ''}{wanted.suffix}"
        if not os.path.lexists(place):
            break
    return place


# ---------------------------------------------------------------------------------- the history


class HistoryFile(Callback):
    """Writes ``--history``: a line for each epoch as soon as it is over.

    Attributes
    ----------
    problem : str
        Why the file is not whole; empty if it is.
    """

    def __init__(self, path: str, goes_on: bool) -> None:
        self._path = path
        self._table = EpochTable(Path(path), goes_on)
        self.problem = ""

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> None:
        """Write the line of the epoch."""
        with self._noted():
            self._table.add(trainer.history, logs)

    def on_train_end(self, trainer: Trainer) -> None:
        """Close the file."""
        with self._noted():
            self._table.close(trainer.history)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:  # no reason to end a training
            if not self.problem:
                warnings.warn(f"'{self._path}': {error}", CheckpointWarning, stacklevel=4)
            self.problem = error.what
        else:
            self.problem = ""


def fault_of_history(history: HistoryFile | None, options: Any) -> CheckpointError | None:
    """Return the error for a history that is not whole."""
    if history is None or not history.problem:
        return None
    return CheckpointError(
        what=f"cannot write '{options.history}': {history.problem}",
        file=options.history,
        hint="Make room; the trained model itself is written.",
    )
