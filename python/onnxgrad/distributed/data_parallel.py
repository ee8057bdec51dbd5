"""Options for several workers that train one model."""

from __future__ import annotations

from typing import Literal

from onnxgrad import _core
from onnxgrad.base.checks import (
    flag,
    plain_text,
    positive_int,
    real_number,
    shown,
    unknown_name,
)
from onnxgrad.distributed.workers import Workers, connect
from onnxgrad.errors import OptionError

__all__ = ["DataParallel", "DataParallelLike", "as_data_parallel"]


# In the order of DeviceExchange.
_EXCHANGES = ["direct", "ordered", "host"]


class DataParallel:
    """Each worker computes its rows' part of every batch; together they do what one would do.

    Parameters
    ----------
    workers : "auto" or Workers, default="auto"
        ``"auto"``: `connect()`, the workers that the launcher of this process started.
    bfloat16 : bool, default=False
        Whether gradients of float32 travel as bfloat16: half the traffic. They are added up in
        float32.
    sync_batch_norm : bool, default=False
        Whether BatchNormalization takes its statistics over the rows of all workers. False: over
        each worker's rows; the running statistics are averaged at the end of each epoch.
    zero : {0, 1}, default=0
        1: each worker keeps the optimizer state of a slice of the weights, and updates that; it
        sends it to the others. The results are the same, with 1/n of the state in each process.
    sync_every : int, default=1
        More than 1: each worker updates its own weights, from its rows alone. After so many steps
        the mean of what they have changed is the gradient of an outer optimizer, gradient descent
        with Nesterov's momentum: for slow networks.
    outer_lr, outer_momentum : float, default=0.7, 0.9
        Of that optimizer.
    exchange : {"direct", "ordered", "host"}, default="direct"
        How cards exchange gradients: by NCCL, which adds up in an order of its own; by NCCL, but
        added up in the order of the workers, with the bits of the other transports; through the
        memory of the host, as the CPU does.

    References
    ----------
    A. Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023.

    Examples
    --------
    >>> import onnxgrad as og
    >>> trainer = og.Trainer(linear_model, dist=og.distributed.DataParallel(bfloat16=True))
    """

    def __init__(
        self,
        workers: Literal["auto"] | Workers = "auto",
        *,
        bfloat16: bool = False,
        sync_batch_norm: bool = False,
        zero: int = 0,
        sync_every: int = 1,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        exchange: Literal["direct", "ordered", "host"] = "direct",
    ) -> None:
        if isinstance(workers, str) and workers != "auto":
            raise OptionError(
                what=f"workers: {workers!r}, expected 'auto' or what distributed.connect() returns",
                value="workers",
                hint="Leave it out: 'auto' connects with what the launcher started.",
            )
        if not isinstance(workers, (str, Workers)):
            raise OptionError(
                what=f"dist: {shown(workers)} describes no workers",
                value="dist",
                hint="Give 'auto', None, distributed.connect() or a distributed.DataParallel.",
            )
        self.workers = connect() if isinstance(workers, str) else workers
        self.bfloat16 = flag("bfloat16", bfloat16)
        self.sync_batch_norm = flag("sync_batch_norm", sync_batch_norm)
        self.zero = positive_int("zero", zero, 0)
        if self.zero > 1:
            raise OptionError(
                what=f"zero is {zero}, expected 0 or 1",
                value="zero",
                hint="1 divides the state of the optimizer among the workers.",
            )
        self.sync_every = positive_int("sync_every", sync_every)
        self.outer_lr = real_number("outer_lr", outer_lr, open_minimum=True)
        self.outer_momentum = real_number("outer_momentum", outer_momentum)
        self.exchange = plain_text("exchange", exchange, "direct")
        if self.exchange not in _EXCHANGES:
            raise unknown_name("exchange", self.exchange, _EXCHANGES)

    def __repr__(self) -> str:
        return (
            f"DataParallel({self.workers!r}, bfloat16={self.bfloat16}, "
            f"sync_batch_norm={self.sync_batch_norm}, zero={self.zero}, "
            f"sync_every={self.sync_every})"
        )

    @property
    def is_first(self) -> bool:
        """Whether this is the worker that writes, logs and shows progress."""
        return self.workers.rank == 0

    def _native(self) -> _core.WorkerOptions:
        return _core.WorkerOptions(
            self.workers._core,
            self.bfloat16,
            self.sync_batch_norm,
            self.zero,
            self.sync_every,
            self.outer_lr,
            self.outer_momentum,
            _EXCHANGES.index(self.exchange),
        )


DataParallelLike = Literal["auto"] | Workers | DataParallel


def as_data_parallel(dist: DataParallelLike | None) -> DataParallel | None:
    """Return the option ``dist=``; None for one worker."""
    if dist is None:
        return None
    found = dist if isinstance(dist, DataParallel) else DataParallel(dist)
    return found if found.workers.size > 1 else None
