"""Mixed precision: what training steps store and multiply in 16 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import patterns, plain_text, positive_int, real_number, unknown_name
from onnxgrad.base.option_texts import values_of

__all__ = ["Precision", "PrecisionLike", "as_precision", "from_text", "to_text"]

_NAMES = {
    "float32": "float32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
}


@dataclasses.dataclass(frozen=True)
class Precision:
    """Mixed precision of a training step.

    Matrix products and convolutions multiply numbers of 16 bits and add in float32; activations are
    stored in 16 bits. Element-wise work, normalizations, softmax, reductions, the loss, gradients
    of weights and the update are float32; so are the weights themselves and everything in
    evaluation and prediction.

    Parameters
    ----------
    type : {"float32", "bf16", "fp16"}, default="bf16"
        ``"bf16"`` has the range of float32 with 8 bits of precision, ``"fp16"`` 11 bits and a small
        range: gradients are then computed of a scaled loss. ``"bfloat16"`` and ``"float16"`` are
        other names of the two.
    float32_nodes : str or list of str, default=()
        Names of nodes or operators (``"MatMul"``), or glob patterns, that are computed from float32
        values, with their gradients and subgraphs.
    loss_scale : float, default=65536.0
        First scale of the loss with ``"fp16"``, 1 to 2**24. A step whose scaled gradients overflow
        changes nothing but the scale, which is halved.
    growth_interval : int, default=2000
        The scale is doubled after this many steps in a row without overflow.

    Examples
    --------
    >>> import onnxgrad as og
    >>> session = og.TrainingSession(linear_model, "squared_error", precision="bf16")
    >>> scaled = og.Precision("fp16", loss_scale=1024)
    >>> session = og.TrainingSession(linear_model, "squared_error", precision=scaled)
    >>> float(session.state()["loss_scale"])
    1024.0
    """

    type: str = "bf16"
    float32_nodes: str | Iterable[str] = ()
    loss_scale: float = 65536.0
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or self.type not in _NAMES:
            raise unknown_name("precision", self.type, ["float32", "bf16", "fp16"])
        object.__setattr__(self, "type", _NAMES[self.type])
        nodes = tuple(patterns("float32_nodes", self.float32_nodes))
        object.__setattr__(self, "float32_nodes", nodes)
        object.__setattr__(self, "loss_scale", real_number("loss_scale", self.loss_scale, 1.0))
        positive_int("growth_interval", self.growth_interval)

    def _native(self) -> _core.MixedPrecision:
        return _core.MixedPrecision(
            getattr(_core.Precision, self.type),
            list(self.float32_nodes),
            float(self.loss_scale),
            int(self.growth_interval),
        )


PrecisionLike: TypeAlias = "str | Precision"


def as_precision(precision: PrecisionLike) -> Precision:
    """Return a description for a name or a description."""
    return precision if isinstance(precision, Precision) else Precision(precision)


def from_text(text: str) -> Precision:
    """Return the precision that ``NAME`` or ``NAME:option=value,...`` describes."""
    name, colon, options = plain_text("precision", text, "bf16").partition(":")
    values = values_of("precision", options) if colon else {}
    known = ["loss_scale", "growth_interval"]
    for option in values:
        if option not in known:
            raise unknown_name(f"precision {name}", option, known)
    return Precision(name, **values)


def to_text(precision: PrecisionLike) -> str:
    """Return what `from_text` reads; without `float32_nodes`."""
    described = as_precision(precision)
    first = Precision(described.type)
    options = [
        f"{name}={getattr(described, name)!r}"
        for name in ("loss_scale", "growth_interval")
        if getattr(described, name) != getattr(first, name)
    ]
    return described.type + (":" + ",".join(options) if options else "")
