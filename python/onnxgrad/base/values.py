"""Named tuples that describe inputs, outputs and weights of models, and results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onnxgrad import _core

__all__ = ["Evaluation", "NodeArg", "WeightInfo", "node_args", "weight_infos"]


class NodeArg(NamedTuple):
    """An input or output of a model, as onnxruntime describes it.

    Attributes
    ----------
    name : str
    type : str
        For example ``"tensor(float)"``.
    shape : list of int, str or None
        Numbers, the names of symbolic dimensions, and None for dimensions that have no name.
    """

    name: str
    type: str
    shape: list[int | str | None]


_ORT_TYPES = {"float32": "float", "float64": "double", "undefined": "undefined"}


def node_args(values: Sequence[_core.ValueInfo]) -> list[NodeArg]:
    """Convert value descriptions of the extension to NodeArg."""
    return [
        NodeArg(
            value.name,
            _ort_type(value),
            [] if "map(" in value.type else value.shape or [],
        )
        for value in values
    ]


def _ort_type(value: _core.ValueInfo) -> str:
    if "map(" in value.type:
        keys, elements = value.type.split("map(")[1].rstrip(")").split(", ", 1)
        element = elements.rstrip("[].")
        text = f"map({keys},tensor({_ORT_TYPES.get(element, element)}))"
        return f"seq({text})" if value.type.startswith("sequence(") else text
    if not value.is_tensor:
        return value.type
    return f"tensor({_ORT_TYPES.get(value.dtype, value.dtype)})"


class WeightInfo(NamedTuple):
    """A weight of a model.

    Attributes
    ----------
    name, dtype : str
    shape : tuple of int
    trainable : bool
        Whether it is trained by default.
    op_type, node : str
        The operator that reads it, and the name of that node.
    storage : {"initializer", "constant", "attribute"}
        Where it is stored in the file.
    reason : str
        Why it is not trained by default; empty if it is, unless as a quantized weight.
    aliases : tuple of str
        Names in the program that the file was exported from, where the exporter called it
        otherwise: ``("encoder.fc.weight",)`` of ``val_92``. Everything that takes names or patterns
        of weights takes these too.
    level : int
        Layers between it and the end of the model: 0 in the head (``trainable="head"``), 1 in the
        layer before and the normalization behind that (``"last:1"``).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool
    op_type: str
    node: str
    storage: str
    reason: str = ""
    aliases: tuple[str, ...] = ()
    level: int = -1

    @property
    def num_parameters(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the elements; 0 for types that are not floating."""
        return self.num_parameters * _ITEM_BYTES.get(self.dtype, 0)

    @property
    def is_floating(self) -> bool:
        """Whether elements are of a floating type."""
        return self.dtype in _ITEM_BYTES

    @property
    def is_quantized(self) -> bool:
        """Whether it is a matrix of integers of 8 bits or fewer, which carry no gradient."""
        return self.reason.startswith("quantized")


_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def weight_infos(weights: Sequence[_core.WeightInfo]) -> list[WeightInfo]:
    """Convert weight descriptions of the extension to WeightInfo."""
    return [
        WeightInfo(
            w.name,
            w.dtype,
            tuple(w.shape),
            w.trainable,
            w.op_type,
            w.node,
            w.storage,
            w.reason,
            tuple(w.aliases),
            w.level,
        )
        for w in weights
    ]


class _Evaluation(NamedTuple):
    loss: float
    accuracy: float | None
    rows: int


class Evaluation(_Evaluation):
    """The result of `evaluate`: a tuple of loss, accuracy and rows.

    Attributes
    ----------
    loss : float
    accuracy : float or None
        Fraction of the rows with the right class; None if the model is not a classifier.
    rows : int
    metrics : dict of str to float
        The requested metrics; not an element of the tuple.
    """

    metrics: dict[str, float]

    def __new__(
        cls,
        loss: float,
        accuracy: float | None,
        rows: int,
        metrics: Mapping[str, float] | None = None,
    ) -> Evaluation:
        """Create the tuple."""
        result = super().__new__(cls, loss, accuracy, rows)
        result.metrics = dict(metrics or {})
        return result

    def __repr__(self) -> str:
        return super().__repr__()[:-1] + f", metrics={self.metrics})"
