"""Descriptions as text: ``NAME:option=value,...``, as the command line takes them."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from onnxgrad import losses, optimizers, schedules
from onnxgrad.base.checks import real_number, unknown_name
from onnxgrad.base.description import Description
from onnxgrad.errors import OptionError
from onnxgrad.losses import Loss, Penalty
from onnxgrad.optimizers import Optimizer
from onnxgrad.schedules import Chain, Product, Schedule

__all__ = [
    "class_weight_of",
    "loss_of",
    "optimizer_of",
    "penalty_of",
    "schedule_of",
    "text_of",
]

_OF_OUTPUT = re.compile(r",(?=(?:reduction|target|sample_weight)=)")

DescriptionT = TypeVar("DescriptionT", bound=Description)


def optimizer_of(text: str) -> Optimizer:
    """Return the optimizer of a text such as ``"sgd:momentum=0.9,nesterov=true"``.

    Examples
    --------
    >>> optimizer_of("adagrad:lr=0.1").lr
    0.1
    """
    name, _, options = text.partition(":")
    return _with_options("optimizer", name, optimizers.from_name(name), options)


def loss_of(text: str, class_axis: int | None = None) -> Loss:
    """Return the loss of a text such as ``"huber:delta=2"`` or ``"output:loss,reduction=sum"``.

    `class_axis` is that of ``--class-axis``, another way to give the option ``axis``.

    Examples
    --------
    >>> loss_of("nll", class_axis=-1).axis
    -1
    """
    name, _, options = text.partition(":")
    if name == "output":
        output = _OF_OUTPUT.split(options, maxsplit=1)[0]  # which may have commas itself
        options = options[len(output) + 1 :]
        loss: Loss = _with_options("loss", name, losses.Output(output), options)
    else:
        loss = _with_options("loss", name, losses.from_name(name), options)
    if class_axis is None:
        return loss
    if "axis" not in vars(loss):
        raise OptionError(
            what=f"--class-axis: {name} has no class axis",
            value="--class-axis",
            hint="Leave it out, or take a cross-entropy over classes.",
        )
    return loss.replace(axis=class_axis)


def schedule_of(text: str) -> Schedule:
    """Return the schedule of a text such as ``"step:length=10,factor=0.5"``."""
    name, _, options = text.partition(":")
    return _with_options("schedule", name, schedules.from_name(name), options)


def penalty_of(text: str) -> Penalty:
    """Return the penalty of ``"l1=X,l2=Y"`` or ``"PATTERN:l1=X,l2=Y"``.

    Examples
    --------
    >>> penalty_of("dense*:l1=0.1")
    Penalty(l1=0.1, l2=0.0, weights=('dense*',))
    """
    pattern, _, options = text.rpartition(":")  # names of weights may have colons
    values = _pairs("penalty", options)
    for name in values:
        if name not in ("l1", "l2"):
            raise unknown_name("penalty", name, ["l1", "l2"])
    try:
        return Penalty(**values, weights=pattern or None)
    except OptionError as error:
        raise OptionError(
            what=f"penalty: {error.what}", value="penalty", hint=error.hint
        ) from error


def class_weight_of(text: str, is_text: bool) -> Any:
    """Return ``"balanced"``, or a dictionary from labels to weights of ``LABEL=WEIGHT,...``.

    `is_text` says whether labels are texts; otherwise they are whole numbers.
    """
    if text == "balanced":
        return text
    weights: dict[Any, float] = {}
    for label, weight in _split("class_weight", text):
        number = real_number(f"class_weight of {label}", _value(weight))
        try:
            weights[label if is_text else int(float(label))] = number
        except ValueError:
            raise OptionError(
                what=f"class_weight: the label '{label}' is no number, but those of the data are",
                value="class_weight",
                hint="Give the labels as the target has them.",
            ) from None
    return weights


def text_of(described: Description, module: Any, without: str = "") -> str | None:
    """Return the text that stands for an optimizer, a loss or a schedule, with its options.

    The inverse of `optimizer_of` and so on; None for what has no text: functions, several in one.

    Examples
    --------
    >>> text_of(optimizers.SGD(momentum=0.9, weight_decay=0.1), optimizers)
    'momentum:weight_decay=0.1'
    """
    if isinstance(described, losses.Output):
        return _text_of_output(described)
    best: list[str] | None = None
    for name in module.names():
        known = module.from_name(name)
        if type(known) is not type(described):
            continue
        changed = {
            key: value for key, value in vars(described).items() if value != vars(known)[key]
        }
        changed.pop(without, None)
        if all(isinstance(value, (bool, int, float, str)) for value in changed.values()):
            texts = [f"{key}={_text(value)}" for key, value in changed.items()]
            if best is None or len(texts) < len(best) - 1:
                best = [name, *texts]
    if best is None or (isinstance(described, (Chain, Product)) and len(best) > 1):
        return None
    return best[0] + (":" if len(best) > 1 else "") + ",".join(best[1:])


def _text_of_output(described: losses.Output) -> str | None:
    known = vars(losses.Output(described.output))
    changed = {key: value for key, value in vars(described).items() if value != known[key]}
    if not all(changed.values()):
        return None  # an empty target
    options = "".join(f",{key}={value}" for key, value in changed.items())
    return f"output:{described.output}{options}"


def _text(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def _with_options(option: str, name: str, described: DescriptionT, text: str) -> DescriptionT:
    if not text:
        return described
    values = _pairs(option, text)
    known = [] if isinstance(described, (Chain, Product)) else list(vars(described))
    for key in values:
        if not known:
            raise OptionError(
                what=f"{option}: {name} has no options",
                value=option,
                hint=f"Give {name} alone.",
            )
        if key not in known:
            raise unknown_name(f"{option} {name}", key, known)
    try:
        return described.replace(**values)
    except OptionError as error:
        raise OptionError(
            what=f"{option} {name}: {error.what}", value=option, hint=error.hint
        ) from error


def _pairs(option: str, text: str) -> dict[str, Any]:
    return {name: _value(value) for name, value in _split(option, text)}


def _split(option: str, text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in text.split(","):
        name, equals, value = (one.strip() for one in part.rpartition("="))
        if not equals or not name or not value:
            raise OptionError(
                what=f"{option}: '{part}' in '{text}' is not name=value",
                value=option,
                hint="Give pairs such as momentum=0.9, with commas between them.",
            )
        pairs.append((name, value))
    return pairs


def _value(text: str) -> Any:
    known = {"true": True, "false": False, "none": None}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
