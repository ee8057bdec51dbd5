"""Plans of a device for a model: operators that it leaves to the CPU, and its segments."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxgrad import _core
from onnxgrad.base.checks import plain_text

__all__ = ["DevicePlan", "DeviceReport", "OperatorOnCpu", "PlanSegment", "device_report"]


@dataclass(frozen=True)
class OperatorOnCpu:
    """An operator that the CPU runs for a device without a kernel for it.

    Attributes
    ----------
    op_type : str
        As it is called in plans, which have fused operators.
    count : int
        Number of nodes.
    """

    op_type: str
    count: int


@dataclass(frozen=True)
class PlanSegment:
    """Consecutive kernels that are run in the same way.

    Attributes
    ----------
    kind : str
        ``"recordable"``, ``"submitted"`` or ``"on the CPU"``.
    kernels : int
    reason : str
        Why it cannot be recorded; empty if it can.
    """

    kind: str
    kernels: int
    reason: str


@dataclass(frozen=True)
class DevicePlan:
    """How a device runs a model.

    Attributes
    ----------
    on_cpu : list of OperatorOnCpu
    copied_bytes : int
        Bytes copied between device and CPU in each run, for these.
    segments : list of PlanSegment
    problem : str
        Why there is no such plan; the rest is empty then.
    """

    on_cpu: list[OperatorOnCpu]
    copied_bytes: int
    segments: list[PlanSegment]
    problem: str


@dataclass(frozen=True)
class DeviceReport:
    """Plans of a device for a model.

    Attributes
    ----------
    device : str
    rows : int
        Rows of the batch; other dimensions that are not known have it too.
    training, inference : DevicePlan
        A step of SGD with the automatic loss; all outputs.
    text : str
        All of it as plain text.
    """

    device: str
    rows: int
    training: DevicePlan
    inference: DevicePlan
    text: str = field(repr=False)


def _plan(found: _core.DevicePlan) -> DevicePlan:
    return DevicePlan(
        on_cpu=[OperatorOnCpu(use.op_type, use.count) for use in found.on_cpu],
        copied_bytes=found.copied_bytes,
        segments=[PlanSegment(one.kind, one.kernels, one.reason) for one in found.segments],
        problem=found.problem,
    )


def device_report(model: _core.Model, device: str) -> DeviceReport:
    """Plan a model for a device, without running it."""
    found = _core.report_device(model, plain_text("device", device))
    return DeviceReport(
        device=found.device,
        rows=found.rows,
        training=_plan(found.training),
        inference=_plan(found.inference),
        text=found.to_text(),
    )
