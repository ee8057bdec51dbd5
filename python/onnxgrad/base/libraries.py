"""Libraries that are loaded at run time."""

from __future__ import annotations

import site
import sys
from pathlib import Path

__all__ = ["wheel_folders"]


def wheel_folders() -> list[str]:
    """Return where wheels put shared libraries, those of MPI for example."""
    prefixes = [sys.prefix, site.getuserbase()]
    return [str(Path(prefix) / "lib") for prefix in dict.fromkeys(prefixes)]
