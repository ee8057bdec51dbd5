"""The standard streams of the command line, which may be full or closed."""

from __future__ import annotations

import contextlib
import errno
import io
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from onnxgrad.errors import CheckpointError
from onnxgrad.files import occupy_standard_streams, redirect_to_nowhere

__all__ = [
    "OutputClosedError",
    "finish_streams",
    "out",
    "prepare_streams",
    "report_written",
    "standard_output",
]


class OutputClosedError(Exception):
    """Standard output was closed early, as by ``| head``: the command ends without a message."""


class _Closed(io.TextIOBase):
    """What standard output is where the process began without one (``>&-``)."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def prepare_streams() -> None:
    """Let the streams accept names that they cannot encode; replace a closed one."""
    occupy_standard_streams()
    if sys.stdout is None:
        sys.stdout = _Closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def standard_output() -> Iterator[TextIO]:
    """Return standard output as a context; it is flushed at the end.

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
        redirect_to_nowhere(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise OutputClosedError from None
        raise CheckpointError(
            what=f"cannot write to standard output: {error.strerror}",
            file="standard output",
            hint="Send it elsewhere: to a file on a disk with room, or to another program.",
        ) from None


def out(*lines: str) -> None:
    """Write lines to standard output; raises as `standard_output`."""
    with standard_output() as stream:
        stream.write("".join(f"{line}\n" for line in lines))


def report_written(line: str) -> None:
    """Report a file that was written, unless standard output is closed."""
    with contextlib.suppress(OutputClosedError):
        out(line)


def finish_streams(status: Any) -> Any:
    """Flush the streams or give up on them; return the exit status.

    Otherwise the interpreter reports what it cannot flush, and ends with another status.
    """
    try:
        with standard_output():
            pass
    except OutputClosedError:
        status = status or 128 + 13  # as if by SIGPIPE, like other programs
    except CheckpointError as error:
        with contextlib.suppress(OSError, ValueError):
            print(error, file=sys.stderr)
        status = status or 6
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            redirect_to_nowhere(sys.stderr)
    return status
