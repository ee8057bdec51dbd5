"""Lines on standard error, and messages to Python's logging under the name ``onnxgrad``.

The module `logging` is not imported for it: nothing is logged unless a program has imported it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import logging

__all__ = ["BROKEN", "Verbosity", "log", "logger", "say"]

Verbosity: TypeAlias = Literal["auto", 0, 1, 2]
"""How much a training writes to standard error; see `Trainer.fit`."""

Level = Literal["debug", "info", "warning"]

# Raised by a stream whose reader has gone, whose disk is full, or that is closed: no reason to
# end a training, whose weights would be lost.
BROKEN = (OSError, ValueError)


def say(*lines: str) -> None:
    """Write lines to standard error, if it can be written to."""
    if sys.stderr is not None:
        with contextlib.suppress(*BROKEN):
            print(*lines, sep="\n", file=sys.stderr, flush=True)


def logger() -> logging.Logger | None:
    """Return the logger ``onnxgrad``, which writes nowhere by itself; None without `logging`."""
    module = sys.modules.get("logging")
    if module is None:
        return None
    found: logging.Logger = module.getLogger("onnxgrad")
    if not found.handlers:
        found.addHandler(module.NullHandler())
    return found


def log(level: Level, text: str) -> None:
    """Log `text`, if `logging` is in use."""
    target = logger()
    if target is not None:
        getattr(target, level)("%s", text)
