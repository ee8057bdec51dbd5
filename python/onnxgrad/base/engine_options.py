"""Options of the engine that several classes share, checked and converted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from onnxgrad import _core
from onnxgrad.base.checks import (
    byte_count,
    device_name,
    flag,
    plain_text,
    positive_int,
    shown,
    thread_count,
)
from onnxgrad.errors import OptionError

__all__ = ["batch_opening_of", "engine_options", "engine_options_of", "training_mode_of"]


def engine_options(
    device: str | None,
    threads: int | None,
    seed: int = 0,
    memory_limit: int | str | None = None,
    *,
    math: str = "float32",
    deterministic: bool = True,
) -> _core.EngineOptions:
    """Return checked options of the engine."""
    return _core.EngineOptions(
        device=device_name(device),
        threads=thread_count(threads),
        seed=positive_int("seed", seed, 0),
        memory_limit_bytes=byte_count("memory_limit", memory_limit),
        math=plain_text("math", math),
        deterministic=flag("deterministic", deterministic),
        warn=_warn,
    )


def engine_options_of(given: Mapping[str, Any], threads: int | None) -> _core.EngineOptions:
    """Return those among the options of a session, with checked threads."""
    return engine_options(
        given["device"],
        threads,
        given["seed"],
        given["memory_limit"],
        math=given["math"],
        deterministic=given["deterministic"],
    )


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=3)


def batch_opening_of(value: bool | str) -> _core.BatchOpening:
    """Convert the option `open_batch` for the extension."""
    if isinstance(value, str) and value == "auto":
        return _core.BatchOpening.auto
    if isinstance(value, bool):
        return _core.BatchOpening.on if value else _core.BatchOpening.off
    raise OptionError(
        what=f"open_batch: {shown(value)}, expected 'auto', True or False",
        value="open_batch",
        hint="Leave it out: 'auto' trains on any number of rows and keeps the file's shapes.",
    )


def training_mode_of(value: bool | str) -> _core.TrainingMode:
    """Convert the option `training_mode` for the extension."""
    if isinstance(value, str) and value == "auto":
        return _core.TrainingMode.auto
    if isinstance(value, bool) or (isinstance(value, str) and value in ("on", "off")):
        return _core.TrainingMode.on if value in (True, "on") else _core.TrainingMode.off
    raise OptionError(
        what=f"training_mode: {shown(value)}, expected 'auto', True or False ('on', 'off')",
        value="training_mode",
        hint="Leave it out: 'auto' enables Dropout and BatchNormalization where appropriate.",
    )
