"""How much memory there is, and how much a data file would take."""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from pathlib import Path

__all__ = ["free_bytes", "size_in_memory"]

_GROUP = Path("/sys/fs/cgroup")


def free_bytes() -> float:
    """Return the bytes that this process may still take: of the machine, its group, its limit."""
    return min(_machine(), _control_group(), _limit())


def _machine() -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return float(text.split("MemAvailable:")[1].split()[0]) * 1024
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _control_group() -> float:
    with contextlib.suppress(OSError, ValueError):
        most = (_GROUP / "memory.max").read_text(encoding="ascii")
        used = (_GROUP / "memory.current").read_text(encoding="ascii")
        return max(0.0, float(most) - float(used))
    return math.inf


def _limit() -> float:
    import resource

    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if most == resource.RLIM_INFINITY else float(most)


def size_in_memory(path: str) -> int:
    """Return about how many bytes the rows of a file take; 0 for what is no readable file."""
    suffix = Path(path).suffix.lower()
    with contextlib.suppress(OSError, ValueError, zipfile.BadZipFile):
        if suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return sum(member.file_size for member in archive.infolist())
        if suffix == ".parquet":
            return _parquet_bytes(path)
        return Path(path).stat().st_size
    return 0


def _parquet_bytes(path: str) -> int:
    from onnxgrad._parquet import import_pyarrow

    metadata = import_pyarrow().read_metadata(path)
    return sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
