"""The main program of a peer process: one process = one peer, one workload, one thread count.

The driver starts it and then asks for timed runs one at a time over stdin, so that several peers
can be interleaved (protocol: README.md, "Adding a system"). A run trains from the initial weights
over all epochs; set-up (imports, building, compiling, the reset of the weights) is outside the
timed part and reported apart. This module imports nothing heavy: what a peer does not ask of its
`Task` is never read.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import resource
import sys
import time
import traceback
import typing
from collections.abc import Callable, Sequence

import workloads

if typing.TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass
class Task:
    """A training that a peer is asked for."""

    variant: str  # the peer's name, for scripts that serve several
    name: str  # the workload's name
    threads: int
    folder: pathlib.Path  # the files that workloads.generate() wrote
    inputs: np.ndarray
    targets: np.ndarray

    @property
    def workload(self) -> workloads.Workload:
        return workloads.WORKLOADS[self.name]

    @property
    def model_path(self) -> pathlib.Path:
        return self.folder / f"{self.name}.onnx"

    @functools.cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """Every initializer by name; do not write to the arrays."""
        return workloads.load_weights(self.folder, self.name)

    @functools.cached_property
    def trainable(self) -> list[str]:
        return workloads.load_trainable(self.folder, self.name)

    def batches(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Views of inputs and targets, in the order of an epoch."""
        size = self.workload.batch
        starts = range(0, len(self.inputs), size)
        return [(self.inputs[i : i + size], self.targets[i : i + size]) for i in starts]


class Peer(typing.Protocol):
    """A training system, set up for one task."""

    version: str

    def first(self) -> None:
        """Takes one step; `reset` undoes its effects."""

    def reset(self) -> None:
        """Back to the initial weights and a fresh optimizer."""

    def run(self) -> Sequence[float]:
        """Trains all epochs; the losses by step or by epoch, or the last one alone."""


def last_epoch_loss(losses: Sequence[float], epochs: int) -> float:
    """Mean of the last epoch's losses; `losses` is per step, per epoch, or one value."""
    count = max(1, len(losses) // epochs)
    return sum(float(value) for value in losses[-count:]) / count


def failure(error: Exception) -> dict[str, object]:
    traceback.print_exc()
    return {"ok": False, "error": f"{type(error).__name__}: {error}"[:400]}


def set_up(make: Callable[[Task], Peer], request: dict, imported_at: float) -> tuple[Peer, dict]:
    """Makes the peer and takes its first step; returns it with the answer for the driver."""
    folder = pathlib.Path(request["models"])
    inputs, targets = workloads.load_data(folder, request["workload"])
    read_at = time.time()
    peer = make(
        Task(request["variant"], request["workload"], request["threads"], folder, inputs, targets)
    )
    made_at = time.time()
    peer.first()
    stepped_at = time.time()
    return peer, {
        "ok": True,
        "version": peer.version,
        "spawn_to_import": imported_at - request["t0"],
        "setup": made_at - read_at,
        "first_step": stepped_at - made_at,
        "spawn_to_first_step": stepped_at - request["t0"],
    }


def timed_run(peer: Peer, epochs: int) -> dict[str, object]:
    peer.reset()
    cpu_start, start = time.process_time(), time.perf_counter()
    losses = peer.run()
    end, cpu_end = time.perf_counter(), time.process_time()
    return {
        "ok": True,
        "s": end - start,
        "cpu": cpu_end - cpu_start,
        "loss": last_epoch_loss(losses, epochs),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main(make: Callable[[Task], Peer]) -> None:
    """Serves the driver until its end of the pipe closes; `make` builds the peer for a task."""
    imported_at = time.time()
    request = json.loads(sys.argv[1])
    if request["pin"] is not None:
        os.sched_setaffinity(0, request["pin"])
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print: stdout is kept for the protocol

    def answer(message: dict[str, object]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    try:
        peer, message = set_up(make, request, imported_at)
    except Exception as error:  # the driver's table has the reason
        answer(failure(error))
        return
    answer(message)
    epochs = workloads.WORKLOADS[request["workload"]].epochs
    for line in sys.stdin:
        if line.strip() != "run":
            break
        try:
            answer(timed_run(peer, epochs))
        except Exception as error:
            answer(failure(error))
