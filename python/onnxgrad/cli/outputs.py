"""Output files: checked before the work starts, saved elsewhere if writing fails."""

from __future__ import annotations

import contextlib
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
from onnxgrad.files import clear_name
from onnxgrad.run_folder.epoch_table import EpochTable
from onnxgrad.trainer import Trainer

__all__ = ["HistoryFile", "check_output", "check_outputs", "save_output", "save_unfinished"]


def check_output(
    path: str, option: str, read: Mapping[str, str | None], replaced: str | None = None
) -> None:
    """Refuse an output that cannot be written, or that is one of the inputs.

    Parameters
    ----------
    path : str
    option : str
        The option that names it, for messages.
    read : dict of str to str
        Files that the command reads, by the options that name them.
    replaced : str, default=None
        The input file that ``--overwrite`` allows it to replace; it needs as much disk space.
    """
    for name, other in read.items():
        if other is not None and _is_same(path, other):
            how = ", or replace it with --overwrite" if other == replaced else ""
            raise OptionError(
                what=f"{option} '{path}' is the input {name} and would overwrite it",
                value=option,
                hint=f"Choose another path with {option}{how}.",
            )
    size = 0
    with contextlib.suppress(OSError):  # a model that cannot be read is reported later
        size = 0 if replaced is None else Path(replaced).stat().st_size
    _check_writable(path, option, size)


def _check_writable(path: str, option: str, size: int) -> None:
    try:
        _core.check_writable(path, size)
    except CheckpointError as error:
        raise CheckpointError(
            what=f"cannot write '{path}': {error.what}",
            file=path,
            hint=f"Choose another path with {option}.",
        ) from None


def _is_same(path: str, other: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return Path(path).samefile(other)
    return False


def check_outputs(options: SimpleNamespace) -> None:
    """Apply `check_output` to all files that a training writes."""
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
                what=f"-o and --history are the same file, '{options.history}'",
                value="--history",
                hint="Choose another path for one of them.",
            )
    folder = options.resume or options.run_dir
    if folder is not None:
        candidates = (Path(folder).absolute(), *Path(folder).absolute().parents)
        existing = next(path for path in candidates if path.exists())
        option = "--run-dir" if options.resume is None else "--resume"
        _check_writable(str(existing / "config.toml"), option, 0)


def _resolved(path: str) -> str:
    return os.path.realpath(path)


# ------------------------------------------------------------------------------------ the model


def save_output(
    trainer: Trainer,
    path: str,
    *,
    own: bool = False,
    merge: bool = False,
    weights: str = "evaluated",
) -> None:
    """Write the trained model to `path` or, if that fails, to another folder.

    `own` is whether it is in a run folder, where a link of that name is replaced; `merge` whether
    its adapters are merged into its weights, and `weights` which ones are written, as for
    `Trainer.save`.

    Raises
    ------
    CheckpointError
        It could not be written to `path`; the message names the other file.
    """
    try:
        if own:
            clear_name(path)
        if merge:
            trainer.merge(path)
        else:
            trainer.save(path, weights=weights)
    except CheckpointError as error:
        saved = _save_elsewhere(trainer, path)
        if saved is None:
            raise
        raise CheckpointError(
            what=f"cannot write '{path}': {error.what}",
            file=path,
            detail=f"The trained model is in '{saved}'.",
            hint=f"Free space on the disk, then move it: mv '{saved}' '{path}'",
        ) from None


def save_unfinished(trainer: Trainer, output: str) -> str | None:
    """Write the model of a training that failed, next to `output` if possible.

    Returns its path, or None if it could not be written anywhere.
    """
    return _save_under_new_name(trainer, Path(output).parent, output, "unfinished") or (
        _save_elsewhere(trainer, output)
    )


def _save_elsewhere(trainer: Trainer, output: str) -> str | None:
    """Write the model to a folder that may be on another disk; return its path."""
    folders = ["/tmp", "~", ".", "/var/tmp", "/dev/shm"]
    with contextlib.suppress(OSError):  # no temporary folder is writable
        folders.insert(0, tempfile.gettempdir())
    for folder in folders:
        path = os.path.expanduser(folder)  # noqa: PTH111
        if saved := _save_under_new_name(trainer, Path(path), output, "rescued"):
            return saved
    return None


def _save_under_new_name(trainer: Trainer, folder: Path, output: str, label: str) -> str | None:
    """Write the model to a new file in `folder`; return its path, or None if that fails.

    Everybody may write to some folders. The file is created before anything is written, under a
    name that nobody can guess and that nothing has, so that no link can stand there.
    """
    name = Path(output)
    try:
        number, path = tempfile.mkstemp(name.suffix, f"{name.stem}.{label}-", folder)
    except OSError:
        return None
    os.close(number)
    try:
        trainer.save(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        if isinstance(error, CheckpointError):
            return None
        raise
    return path


# ---------------------------------------------------------------------------------- the history


class HistoryFile(Callback):
    """Writes the file of ``--history``: a line at the end of each epoch.

    Attributes
    ----------
    problem : str
        Why the file is incomplete; empty if it is complete.
    """

    def __init__(self, path: str, append: bool) -> None:
        self._path = path
        self._table = EpochTable(Path(path), append)
        self.problem = ""

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> None:
        """Write the line of the epoch."""
        with self._recording_problems():
            self._table.add(trainer.history, logs)

    def on_train_end(self, trainer: Trainer) -> None:
        """Close the file."""
        with self._recording_problems():
            self._table.close(trainer.history)

    @contextlib.contextmanager
    def _recording_problems(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:  # not a reason to stop a training
            if not self.problem:
                warnings.warn(f"'{self._path}': {error}", CheckpointWarning, stacklevel=4)
            self.problem = error.what
        else:
            self.problem = ""


def history_error(history: HistoryFile | None, options: Any) -> CheckpointError | None:
    """Return the error for an incomplete history file, or None."""
    if history is None or not history.problem:
        return None
    return CheckpointError(
        what=f"cannot write '{options.history}': {history.problem}",
        file=options.history,
        hint="Free space on the disk; the trained model itself has been written.",
    )
