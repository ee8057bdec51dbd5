"""Opening files that a user names, for reading."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

__all__ = ["open_input"]


def open_input(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; links are followed.

    A pipe or a device is refused without blocking: it would be waited for without end, or read
    without end.

    Raises
    ------
    OSError
        It cannot be opened, or is no regular file.
    """
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder, expected a file" if stat.S_ISDIR(mode) else "not a regular file"
            raise OSError(0, f"this is {kind}", os.fspath(path))
        return open(number, "rb")  # noqa: PTH123 (a descriptor)
    except BaseException:
        os.close(number)
        raise
