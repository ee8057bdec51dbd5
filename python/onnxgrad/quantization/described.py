"""The description of a quantization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from onnxgrad.base.checks import (
    choice,
    flag,
    mapping,
    patterns,
    positive_int,
    real_number,
    unknown_name,
)
from onnxgrad.base.description import Description
from onnxgrad.base.option_texts import texts_of, values_of

__all__ = ["Quantization", "QuantizeLike", "as_quantization", "quantization_text"]

_WEIGHTS = ("int8", "int4")
_SCALES = ("channel", "tensor", "block")
_CALIBRATIONS = ("mse", "minmax", "percentile", "entropy")


class Quantization(Description):
    """Integers of weights and activations, and how their ranges are found.

    Parameters
    ----------
    weights : {"int8", "int4"}, default="int8"
        Integers of the weights; zero is 0.
    scales : {"channel", "tensor", "block"}, default="channel"
        The numbers of a weight that share a scale: those of an output channel, all, or
        `block_size` along the inputs of a matrix (of convolutions those of a channel).
    activations : bool, default=None
        Whether the inputs of layers are int8 too, with one scale each; biases are then int32. None:
        unless an adapter is trained beside the integers.
    calibration : {"mse", "minmax", "percentile", "entropy"}, default="mse"
        How the range of an activation is found from the rows of the calibration: the least squared
        error, all values, all but the outermost, or the least divergence of the distributions.
    percentile : float, default=99.99
        Values within the range of ``calibration="percentile"``.
    rows : int, default=512
        Rows of the training data to calibrate with, at most.
    learn_ranges : bool, default=True
        Whether training learns the scales: LSQ, Esser et al., arXiv:1902.08153.
    block_size : int, default=32
    layers, exclude : str or list of str, default=None, ()
        Layers to quantize, and to leave out: names or glob patterns of their weights or nodes. None
        means all Conv, ConvTranspose, Gemm and MatMul with a constant weight.
    skip_first, skip_last : bool, default=False
        Whether to leave out the first and the last layer.
    fold_batch_norms : bool, default=True
        Whether each BatchNormalization becomes part of the layer before it first.

    Examples
    --------
    >>> import onnxgrad as og
    >>> og.quantization.Quantization("int4", scales="block").block_size
    32
    """

    weights: str
    scales: str
    calibration: str
    activations: bool | None
    rows: int

    def __init__(
        self,
        weights: str = "int8",
        *,
        scales: str = "channel",
        activations: bool | None = None,
        calibration: str = "mse",
        percentile: float = 99.99,
        rows: int = 512,
        learn_ranges: bool = True,
        block_size: int = 32,
        layers: str | Iterable[str] | None = None,
        exclude: str | Iterable[str] = (),
        skip_first: bool = False,
        skip_last: bool = False,
        fold_batch_norms: bool = True,
    ) -> None:
        for option, value, known in (
            ("quantize", weights, _WEIGHTS),
            ("scales", scales, _SCALES),
            ("calibration", calibration, _CALIBRATIONS),
        ):
            choice(option, value, known)
        super().__init__(
            weights=weights,
            scales=scales,
            activations=None if activations is None else flag("activations", activations),
            calibration=calibration,
            percentile=real_number("percentile", percentile, 50.0, 100.0, open_minimum=True),
            rows=positive_int("rows", rows),
            learn_ranges=flag("learn_ranges", learn_ranges),
            block_size=positive_int("block_size", block_size, 2),
            layers=None if layers is None else tuple(patterns("layers", layers)),
            exclude=tuple(patterns("exclude", exclude)),
            skip_first=flag("skip_first", skip_first),
            skip_last=flag("skip_last", skip_last),
            fold_batch_norms=flag("fold_batch_norms", fold_batch_norms),
        )

    @property
    def needs_rows(self) -> bool:
        """Whether it has to be calibrated."""
        return self.activations is not False

    def _native(self) -> dict[str, Any]:
        """Return the arguments of the extension."""
        options = {**vars(self), "activations": self.needs_rows}
        del options["rows"]
        return options | {key: list(options[key] or ()) for key in ("layers", "exclude")}


QuantizeLike: TypeAlias = "str | Quantization | Mapping[str, Any]"
"""``"int8"``, ``"int4:scales=block"``, a description, or its options as a dictionary."""


def as_quantization(quantize: QuantizeLike) -> Quantization:
    """Return the description of an option `quantize`.

    Raises
    ------
    OptionError
        An unknown name or option; the message suggests the nearest.
    """
    if isinstance(quantize, Quantization):
        return quantize
    if isinstance(quantize, Mapping):
        return Quantization(**mapping("quantize", quantize))
    name, colon, text = quantize.partition(":") if isinstance(quantize, str) else ("", "", "")
    if name not in _WEIGHTS:
        raise unknown_name("quantize", quantize, list(_WEIGHTS))
    return Quantization(name, **(values_of("quantize", text) if colon else {}))


def quantization_text(quantize: QuantizeLike | None) -> str | None:
    """Return an option `quantize` as the command line takes it; None if that cannot express it."""
    if quantize is None:
        return None
    described = as_quantization(quantize)
    texts = texts_of(described, Quantization(described.weights), without="weights")
    return None if texts is None else described.weights + ":" * bool(texts) + ",".join(texts)
