"""What a model is made of, and what training it would meet."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from onnxgrad import _core
from onnxgrad._arrays import from_native
from onnxgrad._models import ModelLike, to_core_model
from onnxgrad._report_tables import as_html, changes_as_html, changes_as_text
from onnxgrad._values import NodeArg, WeightInfo, node_args, weight_infos
from onnxgrad.errors import ModelError

__all__ = [
    "MissingGradient",
    "OperatorUse",
    "Report",
    "WeightChange",
    "WeightChanges",
    "report",
    "weight_change",
]


@dataclass(frozen=True)
class OperatorUse:
    """An operator of a model, and how often it is used.

    Attributes
    ----------
    domain, op_type : str
    count : int
    runs : bool
        Whether the engine can run it, or need not: constants, the maps of a ZipMap.
    has_gradient : bool
        Or needs none, as these.
    """

    domain: str
    op_type: str
    count: int
    runs: bool
    has_gradient: bool


@dataclass(frozen=True)
class MissingGradient:
    """A node between trainable weights and the loss through which no gradient passes.

    Attributes
    ----------
    op_type, node : str
    input : int
        Number of the node's input.
    reason : str
    """

    op_type: str
    node: str
    input: int
    reason: str


@dataclass(frozen=True)
class Report:
    """What a model is made of; printing it gives aligned tables, and notebooks show them.

    Attributes
    ----------
    file, producer : str
    opset, ir_version : int
    inputs, outputs : list of NodeArg
    operators : list of OperatorUse
        Sorted by domain and name.
    weights : list of WeightInfo
    weight_flops : list of int
        For each weight the floating-point operations of its layer in a forward pass of one row:
        2 for each product and sum of a matrix product or convolution, else 1 for each element of
        the result. Dimensions that are not known count as 1.
    weight_readers : list of int
        For each weight the number of nodes that read it.
    num_trainable, num_parameters : int
        Elements of the trainable weights, and of all floating weights.
    loss_line : str
        The loss that ``"auto"`` would put on it; empty where none is found.
    loss_problem : str
        Why none is found.
    missing_gradients : list of MissingGradient
        What cannot be differentiated.
    separated : dict of str to list of str
        Weights of several layers that training takes apart, since only equal numbers made them one
        in the file, and the names of their parts; see `TrainingSession`.
    text : str
        What `str` gives: the text of the C++ library.
    """

    file: str
    producer: str
    opset: int
    ir_version: int
    inputs: list[NodeArg]
    outputs: list[NodeArg]
    operators: list[OperatorUse]
    weights: list[WeightInfo]
    weight_flops: list[int]
    weight_readers: list[int]
    num_trainable: int
    num_parameters: int
    loss_line: str
    loss_problem: str
    missing_gradients: list[MissingGradient]
    separated: dict[str, list[str]]
    text: str = field(repr=False)

    @property
    def num_frozen(self) -> int:
        """Elements of the floating weights that are not trained unless that is asked for."""
        return self.num_parameters - self.num_trainable

    @property
    def num_bytes(self) -> int:
        """Bytes of all floating weights."""
        return sum(weight.num_bytes for weight in self.weights if weight.is_floating)

    @property
    def flops(self) -> int:
        """Floating-point operations of all layers with weights in a forward pass of one row."""
        return sum(self.weight_flops)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, texts and numbers, ready for JSON."""
        found = asdict(self)
        del found["text"]
        for name in ("inputs", "outputs"):
            found[name] = [item._asdict() for item in getattr(self, name)]
        found["weights"] = [
            {
                **weight._asdict(),
                "num_parameters": weight.num_parameters,
                "flops": flops,
                "readers": readers,
            }
            for weight, flops, readers in zip(
                self.weights, found.pop("weight_flops"), found.pop("weight_readers"), strict=True
            )
        ]
        totals = {name: getattr(self, name) for name in ("num_frozen", "num_bytes", "flops")}
        return found | totals

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return as_html(self)


class WeightChange(NamedTuple):
    """How much a weight differs between two files.

    Attributes
    ----------
    name : str
    shape : tuple of int
    norm_before, norm_after : float
        The root of the sum of squares.
    relative : float
        The norm of the difference divided by `norm_before`; infinity for a weight that was 0.
    """

    name: str
    shape: tuple[int, ...]
    norm_before: float
    norm_after: float
    relative: float


class WeightChanges(list[WeightChange]):
    """The changes of all floating weights; printing it gives a table, notebooks show one."""

    def __str__(self) -> str:
        return changes_as_text(self)

    def _repr_html_(self) -> str:
        return changes_as_html(self)


def weight_change(before: ModelLike, after: ModelLike) -> WeightChanges:
    """Return how much each floating weight differs between two versions of a model.

    Parameters
    ----------
    before, after : path, bytes or onnx.ModelProto
        The same model with different weights.

    Returns
    -------
    WeightChanges
        A list of `WeightChange`, in the order of the file.

    Raises
    ------
    ModelError
        The models do not have the same weights; names the first that differs.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> after = og.set_weights(linear_model, {"intercept": np.array([0.25], np.float32)})
    >>> [(change.name, change.relative) for change in og.weight_change(linear_model, after)]
    [('coef', 0.0), ('intercept', 1.0)]
    """
    first, second = to_core_model(before), to_core_model(after)
    others = {weight.name: weight for weight in weight_infos(second.weights)}
    changes = WeightChanges()
    for weight in weight_infos(first.weights):
        if not weight.is_floating:
            continue
        other = others.get(weight.name)
        if other is None or other.shape != weight.shape:
            found = "is not there" if other is None else f"is {list(other.shape)}"
            raise ModelError(
                what=f"weight '{weight.name}' {list(weight.shape)} {found} in the second model",
                value=weight.name,
                hint="Give two versions of one model.",
            )
        old, new = (
            from_native(model.weight(weight.name)).astype(np.float64) for model in (first, second)
        )
        norm, distance = float(np.linalg.norm(old)), float(np.linalg.norm(new - old))
        relative = distance / norm if norm else (math.inf if distance else 0.0)
        norm_after = float(np.linalg.norm(new))
        changes.append(WeightChange(weight.name, weight.shape, norm, norm_after, relative))
    return changes


def report(model: ModelLike) -> Report:
    """Return what a model is made of, and what training it would meet.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto

    Returns
    -------
    Report

    Raises
    ------
    ModelError
        No valid model, or an operator of an unknown operator set.

    Examples
    --------
    >>> import onnxgrad as og
    >>> found = og.report(linear_model)
    >>> found.num_trainable, [use.op_type for use in found.operators]
    (3, ['Add', 'MatMul'])
    >>> [(weight.name, weight.num_parameters) for weight in found.weights]
    [('coef', 2), ('intercept', 1)]
    >>> found.flops
    5
    """
    found = _core.report(to_core_model(model))
    return Report(
        file=found.file,
        producer=found.producer,
        opset=found.opset,
        ir_version=found.ir_version,
        inputs=node_args(found.inputs),
        outputs=node_args(found.outputs),
        operators=[
            OperatorUse(use.domain, use.op_type, use.count, use.runs, use.has_gradient)
            for use in found.operators
        ],
        weights=weight_infos(found.weights),
        weight_flops=[round(flops) for flops in found.weight_flops],
        weight_readers=list(found.weight_readers),
        num_trainable=found.num_trainable,
        num_parameters=found.num_parameters,
        loss_line=found.loss_line,
        loss_problem=found.loss_problem,
        missing_gradients=[
            MissingGradient(gap.op_type, gap.node, gap.input, gap.reason)
            for gap in found.missing_gradients
        ],
        separated={weight.name: weight.parts for weight in found.separated},
        text=found.to_text(),
    )
