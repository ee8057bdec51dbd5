"""Training on a Ray cluster: Ray places the workers and starts them again; gradients go past it.

``pip install 'ray[default]'``.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from onnxgrad.base.checks import positive_int
from onnxgrad.base.optional import import_optional
from onnxgrad.distributed import connect
from onnxgrad.errors import DeviceError, OptionError

__all__ = ["fit"]

Result = TypeVar("Result")

_PATIENCE = 10.0
"""Seconds that a cluster gets to make room for more than the least number of workers."""


def fit(
    train: Callable[..., Result],
    *args: Any,
    num_workers: int | tuple[int, int] = 2,
    cpus_per_worker: float = 1,
    restarts: int = 3,
    spread: bool = True,
    timeout: float = 600,
    ray_options: Mapping[str, Any] | None = None,
) -> Result:
    """Run a function in several workers on a Ray cluster; return what the first one returns.

    Parameters
    ----------
    train : function
        Called as ``train(*args)`` in each worker; it makes a `Trainer` (whose ``dist="auto"`` finds
        the others) and fits it. With ``run_dir=`` on storage that all nodes see and ``resume=True``
        it continues after a restart.
    num_workers : int or (int, int)
        Number of workers, or the least and the most: as many as the cluster has room for, of which
        each start makes sure anew. After a restart there may be another number of them.
    cpus_per_worker : float
        Processors for each worker; its number of threads.
    restarts : int
        How often to start again after a worker or its node is lost.
    spread : bool
        Whether workers are placed on different nodes as far as possible.
    timeout : float
        Seconds to wait for workers, and for a message.
    ray_options : dict, optional
        Further options of the actors, such as ``{"runtime_env": ...}``.

    Notes
    -----
    Workers exchange gradients by TCP (docs/distributed.md), not through Ray's object store.

    Raises
    ------
    DeviceError
        Ray is not installed, the cluster has no room for the least number of workers, or workers
        were lost more often than `restarts`.
    """
    least, most = _limits(num_workers)
    positive_int("restarts", restarts, 0)
    ray = _import_ray()
    if not ray.is_initialized():
        ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=True)
    lost: Exception | None = None
    for _ in range(restarts + 1):
        group, count = _place(ray, least, most, cpus_per_worker, spread, timeout)
        try:
            return _run(ray, train, args, group, count, cpus_per_worker, timeout, ray_options)
        except (ray.exceptions.RayActorError, ray.exceptions.RayTaskError) as error:
            cause = getattr(error, "cause", None)
            if isinstance(error, ray.exceptions.RayTaskError) and not _is_loss(cause):
                raise  # the function's own error would come again
            lost = error
    raise DeviceError(
        what=f"workers were lost {restarts + 1} times",
        detail=str(lost).partition("\n")[0],
        hint="Look at the nodes of the cluster and at their logs, then start again.",
    ) from lost


def _limits(num_workers: int | tuple[int, int]) -> tuple[int, int]:
    least, most = (num_workers,) * 2 if isinstance(num_workers, int) else num_workers
    positive_int("num_workers", least)
    if most < least:
        raise OptionError(
            what=f"num_workers: ({least}, {most}), expected the least number and then the most",
            value="num_workers",
            hint=f"Give ({most}, {least}).",
        )
    return least, most


def _import_ray() -> Any:
    return import_optional("ray", "onnxgrad.ray", DeviceError, value="ray")


def _place(
    ray: Any, least: int, most: int, cpus: float, spread: bool, timeout: float
) -> tuple[Any, int]:
    """Reserve processors for as many workers as there is room for; return them and their number.

    Those of a worker that was lost get free after a while, and nodes may come: the cluster gets
    some seconds for the most, and `timeout` for the least.
    """
    deadline = time.monotonic() + timeout
    free_from = time.monotonic() + min(_PATIENCE, timeout)
    while True:
        room = int(_cpus(ray.available_resources()) // cpus)
        in_all = int(_cpus(ray.cluster_resources()) // cpus)
        is_full = room >= min(most, in_all) or time.monotonic() > free_from
        if room >= least and is_full:
            break
        if time.monotonic() > deadline:
            raise _no_room(room, least)
        time.sleep(0.1)
    # Processors that are free together may be on different nodes.
    for count in range(min(most, room), least - 1, -1):
        strategy = "SPREAD" if spread else "PACK"
        group = ray.util.placement_group([{"CPU": cpus}] * count, strategy=strategy)
        left = deadline - time.monotonic() if count == least else _PATIENCE
        if group.wait(timeout_seconds=max(left, 1)):
            return group, count
        ray.util.remove_placement_group(group)
    raise _no_room(least - 1, least)


def _cpus(resources: Mapping[str, float]) -> float:
    return float(resources.get("CPU", 0))


def _no_room(room: int, least: int) -> DeviceError:
    return DeviceError(
        what=f"the Ray cluster has room for {room} workers, {least} were asked for",
        value="num_workers",
        hint="Start more nodes, or ask for fewer workers or cpus_per_worker.",
    )


def _is_loss(cause: Exception | None) -> bool:
    """Return whether an exception of a worker says that another one is lost."""
    return isinstance(cause, DeviceError)


class _Worker:
    """An actor of Ray: one process."""

    def address(self) -> str:
        """Return where the others can reach this one, with a free port."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.socket() as listener:
            listener.bind(("", 0))
            return f"{host}:{listener.getsockname()[1]}"

    def run(
        self,
        variables: Mapping[str, str],
        timeout: float,
        train: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> Any:
        """Train with the environment of a rank; only the first one returns what came out."""
        os.environ.update(variables)
        connect(timeout=timeout)  # once for the process
        result = train(*args)
        return result if variables["RANK"] == "0" else None


def _run(
    ray: Any,
    train: Callable[..., Result],
    args: tuple[Any, ...],
    group: Any,
    count: int,
    cpus: float,
    timeout: float,
    options: Mapping[str, Any] | None,
) -> Result:
    actors: list[Any] = []
    try:
        placed = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
        actor = ray.remote(_Worker).options(
            num_cpus=cpus, scheduling_strategy=placed, **(options or {})
        )
        actors = [actor.remote() for _ in range(count)]
        host, _, port = ray.get(actors[0].address.remote(), timeout=timeout).rpartition(":")
        common = {
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": str(max(1, int(cpus))),
            "ONNXGRAD_JOB_TOKEN": secrets.token_hex(16),
        }
        running = [
            one.run.remote({**common, "RANK": str(rank)}, timeout, train, args)
            for rank, one in enumerate(actors)
        ]
        waiting = list(running)
        while waiting:  # the first that fails is the cause
            done, waiting = ray.wait(waiting)
            ray.get(done)
        result: Result = ray.get(running[0])
        return result
    finally:
        for one in actors:
            ray.kill(one)
        ray.util.remove_placement_group(group)
