"""The options in the ``config.toml`` of a `Trainer.fit`, by the command line's names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxgrad import losses, optimizers, schedules
from onnxgrad.base.described import row_of
from onnxgrad.callbacks import EarlyStopping
from onnxgrad.callbacks.base import RunningTrainer
from onnxgrad.losses import penalties

__all__ = ["run_options"]

_OF_SESSION = ("clip_norm", "clip_value", "accumulate", "threads", "device", "trainable", "frozen")
_OF_SESSION += ("stop_gradient",)


def run_options(trainer: RunningTrainer, fit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a trainer and of its `fit`, as the command line reads them.

    What has no place there is left out: arrays, functions, losses and schedules made of several.
    """
    session = trainer.session
    arguments = session._arguments
    said: dict[str, Any] = {"model": session._model.path or None, "seed": trainer.seed}
    fields = row_of("fit_option", "FitOptions").fields
    said |= {field.option: fit[field.option] for field in fields if field.topic} | _data(fit)
    said |= {name: arguments[name] or None for name in _OF_SESSION}
    said["optimizer"] = optimizers.to_text(session.optimizer, without="lr")
    said["lr"] = session.lr
    if not isinstance(arguments["loss"], Mapping):
        said["loss"] = losses.to_text(losses.as_loss(arguments["loss"]))
    if trainer.schedule is not None:
        said["schedule"] = schedules.to_text(trainer.schedule)
    texts = map(penalties.to_text, penalties.as_penalties(arguments["penalty"]))
    said["penalty"] = [text for text in texts if text is not None]
    modes = {"auto": "auto", True: "on", False: "off"}
    said["training_mode"] = modes[arguments["training_mode"]]
    said["untie"] = arguments["untie"]
    said |= _validation(fit)
    return {name: value for name, value in said.items() if value is not None and value != []}


def _data(fit: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(fit["X"], (str, os.PathLike)):
        return {}
    data = _absolute(fit["X"])
    said: dict[str, Any] = {"data": data, "stream": True}
    for name, option in (("y", "target"), ("sample_weight", "sample_weight")):
        if fit[name] is not None and not isinstance(fit[name], Mapping):  # has one target
            is_file = data.endswith(".npy")
            said[option] = _absolute(fit[name]) if is_file else str(fit[name])
    return said


def _validation(fit: Mapping[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    validation, weights = fit["validation"], fit["class_weight"]
    if isinstance(validation, (str, os.PathLike)):
        said["validation"] = _absolute(validation)
    elif isinstance(validation, float):
        said["validation"] = validation
    if isinstance(weights, Mapping):
        weights = ",".join(f"{label}={weight!r}" for label, weight in weights.items())
    said["class_weight"] = weights
    metrics: Any = fit["metrics"]
    several = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics)
    said["metrics"] = [name for name in several if isinstance(name, str)]
    stopping = fit["early_stopping"]
    if isinstance(stopping, EarlyStopping):
        said |= {name: getattr(stopping, name) for name in ("patience", "min_delta", "monitor")}
    else:
        said["early_stopping"] = bool(stopping)
    return said


def _absolute(path: str | os.PathLike[str]) -> str:
    return str(Path(path).absolute())
