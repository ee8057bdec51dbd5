"""New heads for models of the extension, for functions and for the option `new_head`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import (
    any_int,
    choice,
    patterns,
    plain_text,
    positive_int,
    several,
    unknown_name,
)
from onnxgrad.errors import OptionError

__all__ = ["SCHEMES", "HeadLabels", "HeadLike", "core_replace_head", "with_head"]

SCHEMES = (
    "auto",
    "glorot_uniform",
    "glorot_normal",
    "he_uniform",
    "he_normal",
    "lecun_uniform",
    "lecun_normal",
    "uniform",
    "normal",
    "zeros",
)

HeadLabels: TypeAlias = "Sequence[int] | Sequence[str]"
HeadLike: TypeAlias = "int | Mapping[str, Any]"
"""A number of classes, or the arguments of `replace_head` as a dictionary."""


def core_replace_head(
    model: _core.Model,
    classes: int,
    *,
    at: str | Iterable[str] = "auto",
    init: str = "auto",
    labels: HeadLabels | None = None,
    seed: int = 0,
) -> _core.Model:
    """Implement `replace_head` for models of the extension."""
    choice("init", init, SCHEMES)
    classes = positive_int("classes", classes)
    given = [] if labels is None else several("labels", labels, "labels")
    texts = [label for label in given if isinstance(label, str)]
    if (texts and len(texts) != len(given)) or (labels is not None and len(given) != classes):
        raise OptionError(
            what=f"labels= lists {len(given)} labels for {classes} classes",
            value="labels",
            hint="Give one integer or one string for each class.",
        )
    texts = [plain_text("labels", label) for label in texts]
    numbers = [] if texts else [any_int("labels", label) for label in given]
    return _core.replace_head(
        model, classes, patterns("at", at), init, numbers, texts, positive_int("seed", seed, 0)
    )


def with_head(model: _core.Model, new_head: HeadLike, seed: int = 0) -> _core.Model:
    """Return the model with the head of an option `new_head`."""
    if not isinstance(new_head, Mapping):
        return core_replace_head(model, positive_int("new_head", new_head), seed=seed)
    unknown = [name for name in new_head if name not in ("classes", "at", "init", "labels", "seed")]
    if unknown or "classes" not in new_head:
        raise unknown_name(
            "new_head", unknown[0] if unknown else "", ["classes", "at", "init", "labels", "seed"]
        )
    return core_replace_head(model, **{"seed": seed, **new_head})
