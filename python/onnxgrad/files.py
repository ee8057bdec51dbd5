"""Writing files such that none is ever incomplete.

All files that the Python package writes go through this module. Whole files are written by the C++
library, like checkpoints and models; a file that grows line by line is a `LineFile`.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from onnxgrad import _core
from onnxgrad.base.checks import path_text
from onnxgrad.errors import CheckpointError

if TYPE_CHECKING:
    import onnx

__all__ = ["LineFile", "clear_name", "open_own", "save_model", "write_file", "write_own_file"]

_SECONDS_BETWEEN_FLUSHES = 1.0  # to the disk: each takes longer than many short epochs


def write_file(path: str | os.PathLike[str], contents: str | bytes) -> None:
    """Write a file completely or, if there is any error, not at all.

    It is written under a temporary name in the same folder, flushed, and renamed; then the folder
    is flushed. Links are followed; permissions of an existing file are kept. A stream such as
    ``/dev/stdout`` is written to directly.

    Raises
    ------
    CheckpointError
        If it cannot be written; no temporary file is left behind.
    """
    data = contents.encode("utf-8") if isinstance(contents, str) else contents
    _core.write_file(path_text("path", path), data)


def write_own_file(path: str | os.PathLike[str], contents: str | bytes) -> None:
    """Write a file of a folder that onnxgrad keeps, such as that of a run; see `write_file`.

    The folder may come from somebody else: a link, a pipe or a device of that name is replaced by
    the file, neither followed nor opened.

    Raises
    ------
    CheckpointError
        If it cannot be written.
    """
    data = contents.encode("utf-8") if isinstance(contents, str) else contents
    _core.write_own_file(path_text("path", path), data)


def open_own(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file of a folder that onnxgrad keeps, for reading.

    Raises
    ------
    CheckpointError
        If it cannot be opened, or is a link, a pipe, a device, or a file of another user.
    """
    number = _core.open_own_file(path_text("path", path), os.O_RDONLY)
    return open(number, "rb")  # noqa: PTH123 (a descriptor)


def clear_name(path: str | os.PathLike[str]) -> None:
    """Remove a link, a pipe or a device that has the name of a file that is written next.

    A model is saved through links; in a folder that may come from somebody else, none is left.

    Raises
    ------
    CheckpointError
        If it cannot be removed.
    """
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            os.unlink(path)  # noqa: PTH108
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _write_error(os.fsdecode(path), error) from error


def save_model(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model to a file; see `write_file`."""
    write_file(path, model.SerializeToString())


class LineFile:
    """A text file to which complete lines are written immediately.

    Each write is one system call, so that a process that is killed leaves only complete lines. The
    file is flushed to the disk at most once per second, and when it is closed.

    Parameters
    ----------
    path : path
    append : bool, default=False
        Whether to append to an existing file.
    own : bool, default=False
        Whether it is in a folder that onnxgrad keeps: links, pipes and devices are refused.

    Raises
    ------
    CheckpointError
        If it cannot be opened or, later, written.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, append: bool = False, own: bool = False
    ) -> None:
        self._path = path_text("path", path)
        self._rest = ""  # beginning of an unfinished line
        self._flushed = time.monotonic()
        mode: Any = "ab" if append else "wb"
        try:
            target: Any = self._path
            if own:
                flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
                target = _core.open_own_file(self._path, flags)
            self._file: Any = open(target, mode, buffering=0)  # noqa: SIM115, PTH123
        except OSError as error:
            raise _write_error(self._path, error) from error

    def write(self, text: str) -> int:
        """Append text; return the number of characters, like streams."""
        lines, newline, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        if newline:
            self._put(f"{lines}\n")
        return len(text)

    def flush(self) -> None:
        """Do nothing: lines are written immediately."""

    def close(self) -> None:
        """Write the rest, flush to the disk and close."""
        if self._file is None:
            return
        file = self._file
        try:
            if self._rest:
                self._put(self._rest)
            self._sync()
        finally:
            self._file = None
            file.close()

    def _put(self, text: str) -> None:
        try:
            data = text.encode("utf-8")
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise _write_error(self._path, error) from error
        if time.monotonic() - self._flushed >= _SECONDS_BETWEEN_FLUSHES:
            self._sync()

    def _sync(self) -> None:
        self._flushed = time.monotonic()
        if not Path(self._path).is_file():
            return  # streams and devices have nothing to flush
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _write_error(self._path, error) from error


def open_closed_streams() -> None:
    """Open the null device for closed standard streams, so that no other file gets their number.

    Standard input and output are then opened for reading; standard error is discarded.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)


def redirect_to_null(stream: Any) -> None:
    """Discard the buffer of a stream that cannot be written, and everything written later."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)
        stream.flush()


def _write_error(path: str, error: OSError) -> CheckpointError:
    return CheckpointError(
        what=f"cannot write '{path}': {error.strerror}",
        file=path,
        hint="Free space on the disk, or choose another path, in an existing folder.",
    )
