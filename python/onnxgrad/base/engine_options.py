"""Options of the engine that several classes share, checked and converted."""

from __future__ import annotations

import os
import warnings

from onnxgrad import _core
from onnxgrad.base.checks import byte_count, device_name, positive_int, thread_count
from onnxgrad.errors import OptionError

__all__ = ["PLAN_CACHE_VARIABLE", "engine_options", "training_mode_of"]

#: Names the folder of sessions whose `plan_cache` is None.
PLAN_CACHE_VARIABLE = "ONNXGRAD_PLAN_CACHE"


def engine_options(
    device: str,
    threads: int | None,
    seed: int = 0,
    memory_limit: int | str | None = None,
    plan_cache: str | os.PathLike[str] | None = None,
) -> _core.EngineOptions:
    """Return checked options of the engine."""
    folder = _plan_folder(plan_cache)
    return _core.EngineOptions(
        device=device_name(device),
        threads=thread_count(threads),
        seed=positive_int("seed", seed, 0),
        memory_limit_bytes=byte_count("memory_limit", memory_limit),
        plan_cache=folder,
        warn=_warn if folder else None,
    )


def _plan_folder(plan_cache: str | os.PathLike[str] | None) -> str:
    if plan_cache is None:
        return os.environ.get(PLAN_CACHE_VARIABLE, "")
    try:
        return os.fsdecode(plan_cache)
    except TypeError:
        raise OptionError(
            what=f"plan_cache: {plan_cache!r}, expected a folder",
            value="plan_cache",
            hint="Pass its path, or leave it out for no folder.",
        ) from None


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def training_mode_of(value: bool | str) -> _core.TrainingMode:
    """Convert the option `training_mode` for the extension."""
    if value == "auto":
        return _core.TrainingMode.auto
    if isinstance(value, bool):
        return _core.TrainingMode.on if value else _core.TrainingMode.off
    raise OptionError(
        what=f"training_mode: {value!r}, expected 'auto', True or False",
        value="training_mode",
        hint="Leave it out: 'auto' enables Dropout and BatchNormalization where appropriate.",
    )
