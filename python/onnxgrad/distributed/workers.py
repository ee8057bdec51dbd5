"""The other workers of a job."""

from __future__ import annotations

from onnxgrad import _core
from onnxgrad.base.checks import plain_text, real_number
from onnxgrad.base.libraries import wheel_folders

__all__ = ["Workers", "connect"]


class Workers:
    """The workers of a job: processes that train one model together.

    All of them make the same calls in the same order.

    Attributes
    ----------
    rank : int
        Number of this worker, from 0.
    size : int
        How many there are.
    local_rank, local_size : int
        The same among those on the same host.
    hosts : list of str
        Host of each worker.
    transport : str
        ``"self"`` (one worker), ``"TCP"``, or the MPI library, ``"Open MPI v5.0.11"``.
    threads : int
        Threads for this worker: the processors that it may use, divided among the workers that may
        use the same ones.
    """

    def __init__(self, core: _core.Workers) -> None:
        self._core = core
        self.rank = core.rank
        self.size = core.size
        self.local_rank = core.local_rank
        self.local_size = core.local_size
        self.hosts = core.hosts
        self.transport = core.transport
        self.threads = core.threads

    def __repr__(self) -> str:
        host = self.hosts[self.rank]
        return f"Workers(rank={self.rank}, size={self.size}, host={host!r}, {self.transport})"

    @property
    def traffic(self) -> _core.Traffic:
        """Traffic of this process so far: `bytes_sent` and `seconds_waited`."""
        return self._core.traffic

    def barrier(self) -> None:
        """Wait until all workers have called this."""
        self._core.wait_for_all()

    def broadcast(self, text: str, root: int = 0) -> str:
        """Return the `text` of the worker `root`, on all of them."""
        return self._core.broadcast_text(text, root)

    def gather(self, text: str) -> list[str]:
        """Return the texts of all workers, in order of their ranks, on all of them."""
        return self._core.gather_texts(text)

    def stop(self, exit_code: int, reason: str) -> None:
        """End the job: all processes of it end. Does nothing for a single worker."""
        self._core.stop(exit_code, reason)


def connect(transport: str = "auto", *, timeout: float = 600) -> Workers:
    """Connect this process with the other workers of its job.

    Parameters
    ----------
    transport : {"auto", "mpi", "tcp", "off"}, default="auto"
        ``"auto"``: what the launcher provides, MPI for mpirun and srun, TCP for torchrun.
        ``"off"``: one worker, whatever started this process.
    timeout : float, default=600
        Seconds without any message after which a wait ends with an error naming the missing ranks.

    Returns
    -------
    Workers
        The same ones for each call in a process; one worker if no launcher started more.

    Raises
    ------
    DeviceError
        Several ranks and no transport between them, or ranks that do not come.
    """
    timeout = real_number("timeout", timeout, open_minimum=True)
    kind = plain_text("transport", transport, "auto")
    return Workers(_core.connect_workers(kind, timeout, wheel_folders()))
