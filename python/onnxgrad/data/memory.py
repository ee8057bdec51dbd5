"""Memory available to this process."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

__all__ = ["free_bytes"]

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> float:
    """Return the bytes that this process can still allocate.

    The minimum of the machine's free memory, the control group's and the process limit.
    """
    return min(_machine(), _control_group(), _limit())


def _machine() -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return float(text.split("MemAvailable:")[1].split()[0]) * 1024
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _control_group() -> float:
    with contextlib.suppress(OSError, ValueError):
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii")
        used = (_CGROUP / "memory.current").read_text(encoding="ascii")
        return max(0.0, float(limit) - float(used))
    return math.inf


def _limit() -> float:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else float(limit)
