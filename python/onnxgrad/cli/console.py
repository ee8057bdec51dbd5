"""The standard streams of the command line, which may be full or closed."""

from __future__ import annotations

import contextlib
import errno
import io
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from onnxgrad.errors import CheckpointError, printable
from onnxgrad.files import open_closed_streams, redirect_to_null

__all__ = [
    "OutputClosedError",
    "finish_streams",
    "out",
    "prepare_streams",
    "report_written",
    "standard_output",
]


class OutputClosedError(Exception):
    """Standard output was closed early, as by ``| head``; the command exits without a message."""


class _Closed(io.TextIOBase):
    """Replaces standard output in a process that was started without one (``>&-``)."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def prepare_streams() -> None:
    """Let the streams accept names that they cannot encode; replace closed ones."""
    open_closed_streams()
    if sys.stdout is None:
        sys.stdout = _Closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def standard_output() -> Iterator[TextIO]:
    """Yield standard output and flush it at the end.

    Raises
    ------
    OutputClosedError
        It was closed early.
    CheckpointError
        It cannot be written.
    """
    try:
        yield sys.stdout
        sys.stdout.flush()
    except OSError as error:
        redirect_to_null(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise OutputClosedError from None
        raise CheckpointError(
            what=f"cannot write to standard output: {error.strerror}",
            file="standard output",
            hint="Redirect it to a file on a disk with free space, or to another program.",
        ) from None


def out(*lines: str) -> None:
    """Write lines to standard output; raises as `standard_output`.

    Control characters other than line breaks are escaped: names come from files.
    """
    with standard_output() as stream:
        stream.write("".join(f"{printable(line, keeps_lines=True)}\n" for line in lines))


def report_written(line: str) -> None:
    """Write a line about a saved file to standard output, unless that is closed."""
    with contextlib.suppress(OutputClosedError):
        out(printable(line))


def finish_streams(status: Any) -> Any:
    """Flush the streams, discarding what cannot be written; return the exit status.

    Otherwise the interpreter would report the failure itself and exit with another status.
    """
    try:
        with standard_output():
            pass
    except OutputClosedError:
        status = status or 128 + 13  # status of SIGPIPE, like other programs
    except CheckpointError as error:
        with contextlib.suppress(OSError, ValueError):
            print(error, file=sys.stderr)
        status = status or 6
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            redirect_to_null(sys.stderr)
    return status
