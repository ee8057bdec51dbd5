"""Writing of small files, so that a name never stands for half a file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_file(path: str | os.PathLike[str], contents: str | bytes) -> None:
    """Write a file that is there in full or, after any error, as it was before.

    It is written under a temporary name in the same folder, flushed, and renamed; then the folder
    is flushed. Links are followed; permissions of a file that was there stay. What is no regular
    file, such as ``/dev/stdout``, is written to directly.

    Raises
    ------
    OSError
        If it cannot be written; no temporary file stays.
    """
    data = contents.encode("utf-8") if isinstance(contents, str) else contents
    target = Path(os.path.realpath(path))
    is_there = target.is_file()
    if not is_there and Path(path).exists():
        with Path(path).open("wb") as stream:
            stream.write(data)
        return
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if is_there:
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _flush_folder(target.parent)


def _flush_folder(folder: Path) -> None:
    """Make the new name last; some file systems cannot, and the file itself is whole."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
