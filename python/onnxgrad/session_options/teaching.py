"""Teachers: the options `teacher` and `distill`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from onnxgrad import _core
from onnxgrad.base.checks import (
    choice,
    listed,
    plain_text,
    positive_int,
    real_number,
    several,
    unknown_name,
)
from onnxgrad.base.models import to_core_model
from onnxgrad.base.option_texts import values_of
from onnxgrad.errors import OptionError
from onnxgrad.losses import DistillLike, TeacherLike

__all__ = ["distill_text", "taught_loss", "teacher_model", "teacher_text"]

_DEFAULTS: dict[str, Any] = {
    "temperature": 2.0,
    "alpha": 0.5,
    "outputs": "auto",
    "teacher_output": "",
    "values": (),
    "attention": 0.0,
    "inputs": (),
    "seed": None,
}


def teacher_model(teacher: TeacherLike | None, student: _core.Model) -> _core.Model | None:
    """Return the model of an option `teacher`; `student` is the one before its changes."""
    if teacher is None:
        return None
    return student if isinstance(teacher, str) and teacher == "self" else to_core_model(teacher)


def taught_loss(
    loss: _core.Loss,
    student: _core.Model,
    teacher: _core.Model | None,
    distill: DistillLike | None,
    seed: int = 0,
) -> _core.Loss:
    """Return the loss of a student with what it learns from a teacher, if there is one."""
    if teacher is None:
        if distill is None:
            return loss
        raise OptionError(
            what="distill= is given without a teacher",
            value="distill",
            hint="Give teacher=, a model or 'self'.",
        )
    asked = _options_of(distill)
    given = {**_DEFAULTS, **asked}
    if "temperature" in asked:  # of the divergence, the only one that has it
        if given["outputs"] not in ("auto", "kl"):
            raise OptionError(
                what=f"distill: temperature= has no effect with outputs={given['outputs']!r}",
                value="distill",
                hint="Leave it out, or compare outputs='kl'.",
            )
        given["outputs"] = "kl"
    attention, maps = _attention_of(given["attention"])
    own_seed = given["seed"]
    taught: _core.Loss = _core.distill(
        student,
        teacher,
        loss,
        outputs=choice("outputs", _or_none(given["outputs"]), ("auto", "kl", "mse", "none")),
        temperature=real_number("temperature", given["temperature"], 1e-3, 1e4),
        alpha=real_number("alpha", given["alpha"], 0.0),
        teacher_output=plain_text("teacher_output", given["teacher_output"] or ""),
        values=_values_of(given["values"]),
        attention=attention,
        attention_maps=maps,
        inputs=_pairs_of("inputs", given["inputs"]),
        seed=seed if own_seed is None else positive_int("seed", own_seed, 0),
    )
    return taught


def _or_none(outputs: Any) -> Any:
    """Return "none" for what stands for it: None, False and an empty text."""
    is_none = outputs is None or outputs is False or (isinstance(outputs, str) and not outputs)
    return "none" if is_none else outputs


def _options_of(distill: DistillLike | None) -> dict[str, Any]:
    if distill is None:
        return {}
    if not isinstance(distill, (str, Mapping)):
        raise OptionError(
            what=f"distill: {distill!r} is no dictionary of options",
            value="distill",
            hint="For example distill={'temperature': 2, 'alpha': 0.5}.",
        )
    given = values_of("distill", distill) if isinstance(distill, str) else dict(distill)
    for name in given:
        if name not in _DEFAULTS:
            raise unknown_name("option of distill", name, list(_DEFAULTS))
    return given


def _parts(given: Any) -> list[Any]:
    """Return the entries of a text ``a;b``, of a dictionary as pairs, or of a sequence."""
    if isinstance(given, str):
        return [part for part in given.split(";") if part]
    if isinstance(given, Mapping):
        return list(given.items())
    return several("distill", given, "pairs")


def _pairs_of(option: str, given: Any) -> list[tuple[str, str]]:
    pairs = []
    for part in _parts(given):
        pair = part.split("|") if isinstance(part, str) else listed(part)
        if len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise OptionError(
                what=f"distill: {option} has {part!r}, expected two names",
                value="distill",
                hint=f"Give a dictionary of names, or as text {option}=NAME|NAME;NAME|NAME.",
            )
        pairs.append((plain_text(option, pair[0]), plain_text(option, pair[1])))
    return pairs


def _attention_of(given: Any) -> tuple[float, list[tuple[str, str]]]:
    """Return the factor, and pairs of names if these are given."""
    if isinstance(given, bool):
        return float(given), []
    if isinstance(given, (int, float)):
        return real_number("attention", given, 0.0), []
    return 1.0, _pairs_of("attention", given)


def _values_of(given: Any) -> list[tuple[str, str, str, float]]:
    """Return (student, teacher, loss, factor) of each pair of values."""
    entries = []
    for part in _parts(given):
        entry: list[Any] = part.split("|") if isinstance(part, str) else listed(part)
        if len(entry) == 2 and not isinstance(entry[1], str) and isinstance(entry[1], Iterable):
            entry = [entry[0], *entry[1]]  # of a dictionary: {student: (teacher, loss, factor)}
        if not 1 <= len(entry) <= 4:
            raise OptionError(
                what=f"distill: values has {part!r}, expected names of two values",
                value="distill",
                hint="Give {'student': 'teacher'}, or {'student': ('teacher', 'cosine', 0.5)}, or "
                "as text values=STUDENT|TEACHER|cosine|0.5;...",
            )
        defaults = [entry[0], entry[0], "squared_error", 1.0]
        own, other, loss, factor = entry + defaults[len(entry) :]
        try:
            number = float(factor)
        except (TypeError, ValueError):
            raise OptionError(
                what=f"distill: the factor of value '{own}' is {factor!r}, expected a number",
                value="distill",
                hint="Give a number of at least 0.",
            ) from None
        names = [plain_text("values", one) for one in (own, other, loss)]
        entries.append((names[0], names[1], names[2], number))
    return entries


def distill_text(distill: DistillLike | None) -> str | None:
    """Return the options as text, as on the command line; None if there are none."""
    given = _options_of(distill)
    if isinstance(distill, str) or not given:
        return distill if isinstance(distill, str) else None
    texts = []
    for name, value in given.items():
        shown = value
        if name == "values":
            shown = ";".join("|".join(map(str, entry)) for entry in _values_of(value))
        elif name == "inputs" or not isinstance(value, (bool, int, float, str)):
            shown = ";".join(map("|".join, _pairs_of(name, value)))
        if shown is not None and shown != "":
            texts.append(f"{name}={str(shown).lower() if isinstance(shown, bool) else shown}")
    return ",".join(texts)


def teacher_text(teacher: TeacherLike | None) -> str | None:
    """Return the path of a teacher, or "self"; None if it is neither."""
    if isinstance(teacher, str) and teacher == "self":
        return teacher
    if not isinstance(teacher, (str, os.PathLike)):
        return None
    return os.path.abspath(teacher)  # noqa: PTH100 (not resolved: a link may change)
