"""The options of a `Trainer.fit` as in the command line's ``config.toml``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxgrad import losses, optimizers, precision, schedules
from onnxgrad.adapters.described import adapter_options
from onnxgrad.base.described import row_of
from onnxgrad.base.quantized_weights import base_text
from onnxgrad.callbacks import EarlyStopping
from onnxgrad.callbacks.base import RunningTrainer
from onnxgrad.data.changes import as_augmentations, augmentation_to_text
from onnxgrad.losses import penalties
from onnxgrad.optimizers.averages import as_average, as_sharpness, average_to_text
from onnxgrad.quantization.described import quantization_text
from onnxgrad.session_options.table import SESSION_OPTIONS
from onnxgrad.session_options.teaching import distill_text, teacher_text

__all__ = ["run_options"]


def run_options(trainer: RunningTrainer, fit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a trainer and its `fit` as the command line reads them.

    Values that it cannot express are left out: arrays, functions, composite losses and schedules.
    """
    session = trainer.session
    arguments = session._arguments
    options: dict[str, Any] = {"model": session._model.path or None, "seed": trainer.seed}
    fields = row_of("fit_option", "FitOptions").fields
    options |= {field.option: fit[field.option] for field in fields if field.topic} | _data(fit)
    # Options that are not strings, numbers or lists of strings become text below.
    options |= {one.name: arguments[one.name] for one in SESSION_OPTIONS if one.command is not None}
    if session.optimizer is not None:  # else the model's file describes the training
        options["optimizer"] = optimizers.to_text(session.optimizer, without="lr")
        options["lr"] = session.lr
    if not isinstance(arguments["loss"], Mapping):
        options["loss"] = losses.to_text(losses.as_loss(arguments["loss"]))
    if trainer.schedule is not None:
        options["schedule"] = schedules.to_text(trainer.schedule)
    texts = map(penalties.to_text, penalties.as_penalties(arguments["penalty"]))
    options["penalty"] = [text for text in texts if text is not None]
    modes = {"auto": "auto", True: "on", False: "off"}
    options["training_mode"] = modes[arguments["training_mode"]]
    options["open_batch"] = modes[arguments["open_batch"]]
    described = precision.as_precision(arguments["precision"])
    options["precision"] = precision.to_text(described)
    options["float32_nodes"] = list(described.float32_nodes) or None
    if arguments["average"] is not None:
        options["average"] = average_to_text(as_average(arguments["average"]))
    if arguments["sam"] is not None:  # the command line has a number alone
        rho, is_adaptive = as_sharpness(arguments["sam"])
        options["sam"] = None if is_adaptive else rho
    changes = map(augmentation_to_text, as_augmentations(fit["augment"] or ()))
    options["augment"] = [text for text in changes if text is not None]
    if isinstance(options["new_head"], Mapping):  # the command line has a number of classes alone
        options["new_head"] = None
    options["teacher"] = teacher_text(arguments["teacher"])
    options["distill"] = distill_text(arguments["distill"])
    options["base"] = base_text(arguments["base"])
    options["quantize"] = quantization_text(arguments["quantize"])
    options |= adapter_options(arguments["lora"], arguments["adapter"])
    options |= _validation(fit)
    return {name: value for name, value in options.items() if value is not None and value != []}


def _data(fit: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(fit["X"], (str, os.PathLike)):
        return {}
    data = _absolute(fit["X"])
    options: dict[str, Any] = {"data": data, "stream": True}
    for name, option in (("y", "target"), ("sample_weight", "sample_weight")):
        if fit[name] is not None and not isinstance(fit[name], Mapping):  # a single target
            if data.endswith(".npy"):
                options[option] = _absolute(fit[name])
            elif isinstance(fit[name], (list, tuple)):
                options[option] = ",".join(map(str, fit[name]))
            else:
                options[option] = str(fit[name])
    return options


def _validation(fit: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    validation, weights = fit["validation"], fit["class_weight"]
    if isinstance(validation, (str, os.PathLike)):
        options["validation"] = _absolute(validation)
    elif isinstance(validation, float):
        options["validation"] = validation
    if isinstance(weights, Mapping):
        weights = ",".join(f"{label}={weight!r}" for label, weight in weights.items())
    options["class_weight"] = weights
    metrics: Any = fit["metrics"]
    several = [metrics] if isinstance(metrics, str) or callable(metrics) else list(metrics)
    options["metrics"] = [name for name in several if isinstance(name, str)]
    stopping = fit["early_stopping"]
    if isinstance(stopping, EarlyStopping):
        options |= {name: getattr(stopping, name) for name in ("patience", "min_delta", "monitor")}
    else:
        options["early_stopping"] = bool(stopping)
    return options


def _absolute(path: str | os.PathLike[str]) -> str:
    return str(Path(path).absolute())
