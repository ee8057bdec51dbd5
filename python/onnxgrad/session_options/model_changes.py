"""Changes of a model that its training begins with: a new head, integers, an adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from onnxgrad import _core
from onnxgrad.base.heads import with_head
from onnxgrad.base.quantized_weights import base_text, with_base
from onnxgrad.base.values import WeightInfo, weight_infos
from onnxgrad.errors import OptionError

if TYPE_CHECKING:
    from onnxgrad.quantization import Quantization

__all__ = [
    "awaits_rows",
    "changed_model",
    "check_adapter_is_trained",
    "is_adapted",
    "quantization_line",
]


def awaits_rows(given: Mapping[str, Any]) -> bool:
    """Return whether `quantize` needs a calibration that is not given."""
    if given["quantize"] is None or given["calibration"] is not None:
        return False
    return _quantization(given).needs_rows


def is_adapted(given: Mapping[str, Any]) -> bool:
    """Return whether `lora` or `adapter` is given."""
    return given["lora"] is not None or given["adapter"] is not None


def _quantization(given: Mapping[str, Any]) -> Quantization:
    """Return the description.

    Raises
    ------
    OptionError
        Beside an adapter, without a word on activations: that is `base`.
    """
    from onnxgrad.quantization import as_quantization

    described = as_quantization(given["quantize"])
    if described.activations is None and is_adapted(given):
        raise OptionError(
            what="quantize= trains quantized weights, and an adapter freezes them",
            value="quantize",
            hint=f"Give base='{described.weights}', which packs the weights under the adapter; for "
            f"integers of activations too, quantize='{described.weights}:activations=true'.",
        )
    return described


def changed_model(model: _core.Model, given: Mapping[str, Any], seed: int = 0) -> _core.Model:
    """Return the model with what `new_head`, `base` or `quantize`, `lora` and `adapter` ask for.

    A new head is trained beside an adapter; the integers of a quantized model are then frozen.
    """
    if given["new_head"] is not None:
        model = with_head(model, given["new_head"], seed)
    if given["base"] is not None:
        if not is_adapted(given):
            raise OptionError(
                what="base packs the weights under an adapter, and there is none",
                value="base",
                hint="Give lora=8 too, or quantize the file: quantize_weights(model).",
            )
        model = with_base(model, given["base"])
    if given["quantize"] is not None:
        if given["base"] is not None:
            raise OptionError(
                what="base= and quantize= both quantize the weights",
                value="base",
                hint="Give one: base= packs frozen weights under an adapter, quantize= trains "
                "quantized ones.",
            )
        if awaits_rows(given):
            raise OptionError(
                what="quantize= needs rows to calibrate the ranges of activations",
                value="quantize",
                hint="Give calibration= some rows of the training data, or quantize the weights "
                "alone: quantize={'weights': 'int8', 'activations': False}.",
            )
        from onnxgrad.quantization.functions import quantized

        model = quantized(model, _quantization(given), given["calibration"])
    if not is_adapted(given):
        return model
    from onnxgrad.adapters.described import adapted

    full = () if given["new_head"] is None else ("head",)
    return adapted(model, given["lora"], given["adapter"], seed, full)


def quantization_line(model: _core.Model, given: Mapping[str, Any]) -> str:
    """Return what `quantize` or `base` made integers of, in one line; empty without them."""
    if given["quantize"] is None and given["base"] is None:
        return ""
    quantized = [weight for weight in weight_infos(model.weights) if weight.is_quantized]
    if given["quantize"] is None:
        return f"{_count_text(quantized)} as {base_text(given['base']) or 'packed'}, frozen"
    described = _quantization(given)
    own = [weight for weight in quantized if weight.dtype == described.weights]
    others = len(quantized) - len(own)
    stays = f" ({others} more as in the file)" if others else ""
    ranges = f"ranges by {described.calibration}" if described.needs_rows else "float"
    return (
        f"{_count_text(own)} as {described.weights}{stays}, scales by {described.scales}; "
        f"activations: {ranges}"
    )


def _count_text(weights: Sequence[WeightInfo]) -> str:
    names = [weight.name for weight in weights]
    shown = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
    return f"quantized: {len(names)} weight{'s' * (len(names) != 1)} ({shown or 'none'})"


def check_adapter_is_trained(
    model: _core.Model, given: Mapping[str, Any], trainable: Sequence[str]
) -> None:
    """Refuse a new adapter of which `trainable` names no weight.

    Raises
    ------
    OptionError
        It would be added and never trained.
    """
    if not trainable or not is_adapted(given):
        return
    added = _core.adapters(model)[-1]
    names = [*(name for layer in added.layers for name in layer.tensors), *added.full]
    for pattern in trainable:
        is_group = pattern == "head" or pattern.startswith("last:")
        if is_group or any(fnmatchcase(name, pattern) for name in names):
            return
    raise OptionError(
        what="trainable= names no weight of the adapter, which would stay as it is",
        value="trainable",
        hint="Leave it out; the adapter's option full= names weights that are trained beside it.",
    )
