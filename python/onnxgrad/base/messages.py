"""Lines on standard error, and messages to the logger ``onnxgrad`` of Python's logging.

Nothing is logged unless the program has imported `logging`, which this module does not.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Literal, TypeAlias

from onnxgrad.errors import printable

if TYPE_CHECKING:
    import logging

__all__ = ["BROKEN", "Verbosity", "log", "logger", "print_stderr"]

Verbosity: TypeAlias = Literal["auto", 0, 1, 2]
"""How much a training writes to standard error; see `Trainer.fit`."""

Level = Literal["debug", "info", "warning"]

# Raised by a stream that is closed, whose reader is gone or whose disk is full. None of these ends
# a training, whose weights would be lost.
BROKEN = (OSError, ValueError)


def print_stderr(*lines: str) -> None:
    """Print lines to standard error; do nothing if it cannot be written to.

    Control characters other than line breaks are escaped: names come from files.
    """
    if sys.stderr is not None:
        with contextlib.suppress(*BROKEN):
            text = printable("\n".join(lines), keeps_lines=True)
            print(text, file=sys.stderr, flush=True)


def logger() -> logging.Logger | None:
    """Return the logger ``onnxgrad``, which has no output by default; None without `logging`."""
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
