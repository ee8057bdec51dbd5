"""Summaries of models: operators, weights, the loss, and what prevents training."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxgrad import _core
from onnxgrad.base.models import ModelLike, to_core_model
from onnxgrad.base.values import NodeArg, WeightInfo, node_args, weight_infos
from onnxgrad.graphs.device_reports import DeviceReport, device_report
from onnxgrad.graphs.tables import (
    Column,
    Table,
    count_text,
    fitted,
    html_lines,
    html_table,
    size_text,
)

__all__ = ["MissingGradient", "OperatorUse", "Report", "report"]


@dataclass(frozen=True)
class OperatorUse:
    """An operator of a model, and how many nodes use it.

    Attributes
    ----------
    domain, op_type : str
    count : int
    runs : bool
        Whether the engine can run it, or does not need to (constants, ZipMap).
    has_gradient : bool
        Whether it has a gradient, or needs none.
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
        Index of the node's input.
    reason : str
    """

    op_type: str
    node: str
    input: int
    reason: str


_TOTALS = ("num_frozen", "num_quantized", "num_bytes", "flops")


@dataclass(frozen=True)
class Report:
    """A summary of a model; prints as aligned tables, which notebooks render.

    Attributes
    ----------
    file, producer : str
    opset, ir_version : int
    inputs, outputs : list of NodeArg
    operators : list of OperatorUse
        Sorted by domain and name.
    weights : list of WeightInfo
    weight_flops : list of int
        For each weight, the floating-point operations of its layer in a forward pass of one row:
        2 per multiply-add of a matrix product or convolution, else 1 per element of the result.
        Unknown dimensions count as 1.
    weight_readers : list of int
        For each weight, the number of nodes that read it.
    num_trainable, num_parameters : int
        Elements of the trainable weights, and of all floating weights.
    loss_line : str
        The loss that ``"auto"`` selects; empty if it finds none.
    loss_problem : str
        Why it finds none.
    missing_gradients : list of MissingGradient
        Nodes that cannot be differentiated.
    separated : dict of str to list of str
        Weights that several layers share in the file only because their values were equal, and the
        names under which training separates them; see `TrainingSession`.
    tied : list of str
        Tensors that the file stores twice, once transposed perhaps, and that are trained as one:
        ``"'logits.weight' is 'table' transposed"``.
    is_trainable : bool
        Whether it can be trained with the automatic loss and no other options.
    verdict : str
        ``"trainable: trains 38 of 40 weights"``, or why not, and what to do.
    text : str
        The report as plain text, the result of `str`.
    device : DeviceReport, optional
        How the device that was asked for runs it.
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
    tied: list[str]
    is_trainable: bool
    verdict: str
    text: str = field(repr=False)
    device: DeviceReport | None = None

    @property
    def num_frozen(self) -> int:
        """Elements of the floating weights that are not trained by default."""
        return self.num_parameters - self.num_trainable

    @property
    def num_quantized(self) -> int:
        """Elements of the weights that are integers of 8 bits or fewer; no parameters."""
        return sum(weight.num_parameters for weight in self.weights if weight.is_quantized)

    @property
    def num_bytes(self) -> int:
        """Bytes of all floating weights."""
        return sum(weight.num_bytes for weight in self.weights if weight.is_floating)

    @property
    def flops(self) -> int:
        """Floating-point operations of all layers with weights in a forward pass of one row."""
        return sum(self.weight_flops)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, strings and numbers, ready for JSON."""
        found = asdict(self)
        del found["text"]
        if self.device is None:
            del found["device"]
        else:
            del found["device"]["text"]
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
        totals = {name: getattr(self, name) for name in _TOTALS}
        return found | totals

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return _as_html(self)


def report(model: ModelLike, *, device: str | None = None) -> Report:
    """Summarize a model: its operators and weights, the loss, and what prevents training.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    device : str, optional
        One of `onnxgrad.devices.available`: the report also names the operators that run on the
        CPU because this device has no kernel for them, with the bytes that each step copies.

    Returns
    -------
    Report

    Raises
    ------
    ModelError
        An invalid model, or an operator of an unknown operator set.
    DeviceError
        There is no such device.

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
    core = to_core_model(model)
    found = _core.report(core)
    planned = None if device is None else device_report(core, device)
    text = found.to_text()
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
        tied=list(found.tied),
        is_trainable=found.is_trainable,
        verdict=found.verdict,
        text=text if planned is None else f"{text.rstrip()}\n\n{planned.text}",
        device=planned,
    )


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _operators(report: Report) -> Table:
    columns = [
        Column("operator", 44),
        Column("count", 8, is_number=True),
        Column("runs", 4),
        Column("gradient", 8),
    ]
    rows = [
        (
            f"{use.domain}.{use.op_type}" if use.domain else use.op_type,
            str(use.count),
            _yes_no(use.runs),
            _yes_no(use.has_gradient),
        )
        for use in report.operators
    ]
    return Table(columns, rows)


def _reader(weight: WeightInfo, readers: int) -> str:
    if readers > 1:
        return f"{weight.op_type} and {readers - 1} more"
    return f"{weight.op_type} {weight.node}".strip()


def _weights(report: Report) -> Table:
    columns = [
        Column("weight", None),
        Column("read by", 20),
        Column("dtype", 8),
        Column("shape", 12),
        Column("parameters", 10, is_number=True),
        Column("FLOPs", 8, is_number=True),
        Column("trained", 7),
    ]
    rows = [
        (
            f"{weight.name} ({', '.join(weight.aliases)})" if weight.aliases else weight.name,
            _reader(weight, readers),
            weight.dtype,
            str(list(weight.shape)),
            str(weight.num_parameters),
            count_text(flops),
            _yes_no(weight.trainable),
        )
        for weight, flops, readers in zip(
            report.weights, report.weight_flops, report.weight_readers, strict=True
        )
        if weight.is_floating
    ]
    return Table(columns, rows)


def _heading(report: Report) -> str:
    producer = f", produced by {report.producer}" if report.producer else ""
    file = report.file or "model"
    return f"{file}, opset {report.opset}, IR version {report.ir_version}{producer}"


def _values(report: Report) -> list[str]:
    named = [("input ", value) for value in report.inputs]
    named += [("output", value) for value in report.outputs]
    return [
        f"{kind} {value.name}: {value.type} [{', '.join(str(d or '?') for d in value.shape)}]"
        for kind, value in named
    ]


def _totals(report: Report) -> str:
    integers = f"; {report.num_quantized} quantized" if report.num_quantized else ""
    return (
        f"{report.num_parameters} parameters ({size_text(report.num_bytes)}): "
        f"{report.num_trainable} trained, {report.num_frozen} frozen{integers}; "
        f"{count_text(report.flops)} FLOPs per row in a forward pass"
    )


def _reasons(report: Report) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for weight in report.weights:
        if not weight.trainable and (weight.is_floating or weight.is_quantized):
            reasons.setdefault(weight.reason, []).append(f"'{weight.name}'")
    lines = []
    if rounded := [one.name for one in report.weights if one.trainable and one.is_quantized]:
        lines.append(f"trained as rounded numbers: {', '.join(map(repr, rounded))}")
    lines += [f"not trained: {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    for name, parts in report.separated.items():
        lines.append(f"trained separately: '{name}' as {', '.join(map(repr, parts))}")
    lines += [f"trained as one: {one}" for one in report.tied]
    return lines


def _training(report: Report) -> list[str]:
    lines = [report.loss_line or f"no loss: {report.loss_problem}"]
    lines += [
        f"no gradient: {gap.op_type} node '{gap.node}', input {gap.input}: {gap.reason}"
        for gap in report.missing_gradients
    ]
    return [*lines, report.verdict]


def _as_html(report: Report) -> str:
    """Return small tables without style or script; long ones are truncated."""
    lines = html_lines(_values(report))
    training = html_lines([*_reasons(report), *_training(report)])
    return (
        f"<b>{html.escape(fitted(_heading(report), 100))}</b>{lines}"
        f"{html_table(_operators(report))}{html_table(_weights(report))}"
        f"<p>{html.escape(_totals(report))}</p>{training}"
    )
