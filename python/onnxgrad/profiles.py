"""Profiles of training steps and runs, and the memory that a session uses."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from onnxgrad import _core
from onnxgrad.files import write_file

__all__ = ["KernelTime", "Memory", "Profile"]


class Memory(NamedTuple):
    """Bytes that a session uses, by purpose: in the memory of its device, if not said otherwise.

    Attributes
    ----------
    weights : int
        Trained weights.
    optimizer_state : int
        Slots and counters.
    activations : int
        Values and gradients of the largest step or run so far.
    scratch : int
        Workspace of kernels during a step or run.
    constants : int
        Folded values, and weights that are not trained where these are not read in the file's
        bytes, of all plans.
    dynamic : int
        Plans for data-dependent shapes and branches of If, with their values.
    evaluation : int
        Memory for `evaluate` and `predict`.
    snapshots : int
        Copies of the state during `Trainer.fit`, to go back to; on the host.
    file : int
        The model's file, with the first values of its weights; on the host.
    host : int
        Constants that the host keeps for the plans of another device.
    recomputed_values, recomputed_bytes : int
        Values that a step computes again to fit `memory_limit`, and their size; not in `total`.
    recomputed_flops : float
        Operations of the products and convolutions that run twice for that.
    device : str
        The device of the session, such as ``"cpu"``.
    """

    weights: int
    optimizer_state: int
    activations: int
    scratch: int
    constants: int
    dynamic: int
    evaluation: int
    snapshots: int
    file: int
    host: int
    recomputed_values: int
    recomputed_bytes: int
    recomputed_flops: float
    device: str = "cpu"

    @classmethod
    def _of(cls, report: _core.MemoryReport) -> Memory:
        return cls(*(getattr(report, name) for name in cls._fields))

    @property
    def total(self) -> int:
        """Sum of all purposes."""
        purposes = self._fields[: self._fields.index("recomputed_values")]
        return sum(getattr(self, purpose) for purpose in purposes)

    @property
    def by_device(self) -> dict[str, int]:
        """Bytes in the memory of each device; that of the host is ``"cpu"``."""
        on_host = self.snapshots + self.file + self.host
        if self.device == "cpu":
            return {"cpu": self.total}
        return {"cpu": on_host, self.device: self.total - on_host}


class KernelTime(NamedTuple):
    """Time of a kernel: operator, node, implementation, calls, total seconds, FLOPs per call.

    `threads` is how many it took: chosen by its cost, at most the session's.
    """

    op_type: str
    node: str
    kernel: str
    calls: int
    total_s: float
    flops: float
    threads: int = 1


class Profile:
    """The times of kernels; see `TrainingSession.profiling` and `InferenceSession.profiling`.

    Attributes
    ----------
    kernels : list of KernelTime
        Kernels, slowest first.
    trace_json : str
        Individual calls (the first million) in the Trace Event format, for Perfetto or
        chrome://tracing.
    """

    def __init__(self) -> None:
        self.kernels: list[KernelTime] = []
        self.trace_json = ""
        self._text = ""

    def _fill(self, native: _core.Profile) -> None:
        self.kernels = [
            KernelTime(k.op_type, k.node, k.kernel, k.calls, k.total_s, k.flops, k.threads)
            for k in native.kernels
        ]
        self.trace_json = native.trace_json
        self._text = native.to_text()

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        if not self.kernels:
            return "Profile(nothing timed yet: leave the with block first)"
        total = sum(kernel.total_s for kernel in self.kernels)
        return f"Profile({len(self.kernels)} kernels, {total:.3g} s)"

    def _repr_html_(self) -> str:
        from html import escape  # needed in notebooks only

        return f"<pre>{escape(self._text or repr(self))}</pre>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to a file. Raises: CheckpointError."""
        write_file(path, self.trace_json)


@contextlib.contextmanager
def profiling(session: _core.TrainingSession | _core.InferenceSession) -> Iterator[Profile]:
    """Time the kernels of a session of the extension inside a ``with`` block."""
    profile = Profile()
    session.set_profiling(True)
    try:
        yield profile
    finally:
        session.set_profiling(False)
        profile._fill(session.profile())
