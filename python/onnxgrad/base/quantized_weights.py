"""Packed weights for models of the extension, for functions and for the option `base`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import choice, flag, mapping, patterns, positive_int, unknown_name
from onnxgrad.base.option_texts import values_of
from onnxgrad.errors import OptionError

__all__ = ["KINDS", "OPERATORS", "BaseLike", "base_text", "core_quantize_weights", "with_base"]

KINDS = ("int4", "int8", "nf4")
OPERATORS = ("MatMulNBits", "DequantizeLinear")

BaseLike: TypeAlias = "str | Mapping[str, Any]"
"""A format (``"int4"``, ``"nf4:block_size=64"``), or the arguments of `quantize_weights`."""


def core_quantize_weights(
    model: _core.Model,
    kind: str = "int4",
    *,
    block_size: int = 32,
    symmetric: bool = True,
    operators: str = "MatMulNBits",
    targets: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
) -> _core.Model:
    """Implement `quantize_weights` for models of the extension."""
    choice("kind", kind, KINDS)
    choice("operators", operators, OPERATORS)
    return _core.quantize_weights(
        model,
        kind,
        positive_int("block_size", block_size),
        flag("symmetric", symmetric),
        operators == "DequantizeLinear",
        [] if targets is None else patterns("targets", targets),
        patterns("exclude", exclude),
    )


def _arguments(base: BaseLike) -> dict[str, Any]:
    if isinstance(base, str):
        name, colon, text = base.partition(":")
        return {"kind": name, **(values_of("base", text) if colon else {})}
    if not isinstance(base, Mapping):
        raise OptionError(
            what=f"base={base!r} is no kind of weights",
            value="base",
            hint="Give 'int4', 'int8' or 'nf4'.",
        )
    return mapping("base", base)


def with_base(model: _core.Model, base: BaseLike) -> _core.Model:
    """Return the model with the weights of an option `base`."""
    arguments = _arguments(base)
    known = ("kind", "block_size", "symmetric", "operators", "targets", "exclude")
    for name in arguments:
        if name not in known:
            raise unknown_name("base", name, known)
    choice("base", arguments.get("kind", "int4"), KINDS)
    return core_quantize_weights(model, **arguments)


def base_text(base: BaseLike | None) -> str | None:
    """Return the option of the command line for `base`; None if it cannot express it."""
    if base is None or isinstance(base, str):
        return base
    given = dict(base)
    name = str(given.pop("kind", "int4"))
    if not all(isinstance(value, (bool, int, str)) for value in given.values()):
        return None
    texts = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in given.items()
    ]
    return name + ":" * bool(texts) + ",".join(texts)
