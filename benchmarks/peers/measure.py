"""Timed runs of peer processes, interleaved so that load on the machine affects all equally."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile
import time
import typing

import catalogue
import environments
import workloads

Answer = dict[str, typing.Any]  # one message of the worker protocol, see README.md


@dataclasses.dataclass
class Settings:
    """The options of run.py, and what it has prepared for them."""

    cache: environments.Cache
    models: pathlib.Path
    inductor: pathlib.Path
    peers: list[str]
    extra: dict[str, list[str]]  # name: command of a system that is not in the catalogue
    repeats: int = 0  # 0: as the workload says
    starts: int = 3
    patience: float = 300.0  # seconds that may still be spent on waiting for a quiet machine


def busy_seconds() -> float:
    """Processor seconds used by the whole machine so far."""
    line = pathlib.Path("/proc/stat").read_text().splitlines()[0]
    values = [int(value) for value in line.split()[1:9]]
    return (sum(values) - values[3] - values[4]) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(limit: float) -> None:
    """Waits, at most `limit` seconds, for a moment at which nobody else uses the processor."""
    end = time.time() + limit
    while True:
        busy, start = busy_seconds(), time.time()
        time.sleep(0.3)
        if (busy_seconds() - busy) / (time.time() - start) < 0.15 or time.time() > end:
            return


def cores(threads: int) -> list[int] | None:
    """The last `threads` cores of the machine, or None if that is all of them."""
    available = sorted(os.sched_getaffinity(0))
    return available[-threads:] if threads < len(available) else None


class Worker:
    """A peer process. `info` is its first answer, each `run` another."""

    def __init__(self, command: list[str], request: Answer, inductor: pathlib.Path) -> None:
        count = str(request["threads"])
        environment = dict(
            os.environ, OMP_NUM_THREADS=count, OPENBLAS_NUM_THREADS=count, MKL_NUM_THREADS=count,
            JAX_PLATFORMS="cpu", TORCHINDUCTOR_CACHE_DIR=str(inductor),
        )  # fmt: skip
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        request = dict(request, t0=time.time())
        self.process = subprocess.Popen(
            [*command, json.dumps(request)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors, text=True, env=environment, cwd=environments.HERE,
        )  # fmt: skip
        self.info = self.read()

    def read(self) -> Answer:
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        tail = self.errors.read().decode(errors="replace").strip()[-300:]
        return {"ok": False, "error": "died: " + tail}

    def run(self) -> Answer:
        with contextlib.suppress(BrokenPipeError):  # read() reports how it ended
            self.process.stdin.write("run\n")
            self.process.stdin.flush()
        return self.read()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Ruler:
    """The hand-written loop of floor.cpp, with the interface of a Worker; step time only."""

    def __init__(self, program: str, threads: int) -> None:
        self.command, self.cores = [program], cores(threads)
        self.info: Answer = {"ok": True, "version": "", "ruler": True}

    def run(self) -> Answer:
        pin = (lambda: os.sched_setaffinity(0, self.cores)) if self.cores else None
        done = subprocess.run(self.command, capture_output=True, text=True, preexec_fn=pin)
        if done.returncode != 0:
            return {"ok": False, "error": f"exit status {done.returncode}: {done.stderr[-200:]}"}
        steps = workloads.WORKLOADS[catalogue.RULER_WORKLOAD].steps
        step_us = json.loads(done.stdout)
        seconds = step_us["libxsmm"] * 1e-6 * steps
        return {"ok": True, "s": seconds, "cpu": None, "step_us": step_us}

    def close(self) -> None:
        pass


def start(settings: Settings, peer: str, workload: str, threads: int) -> Worker | Ruler:
    """Starts a system; of several starts the last one stays, with the shortest start-up time."""
    if peer == catalogue.RULER:
        if threads != 1:
            raise environments.SetUpError("one thread only")
        return Ruler(settings.cache.floor(), threads)
    starts = settings.starts
    if peer in settings.extra:
        command = settings.extra[peer]
    else:
        entry = catalogue.PEERS[peer]
        command = [settings.cache.python(entry.environment), str(environments.HERE / entry.script)]
        starts = 1 if entry.compiles else starts
    request = {
        "variant": peer, "workload": workload, "threads": threads,
        "models": str(settings.models), "pin": cores(threads),
    }  # fmt: skip
    best: Answer = {}
    for index in range(starts):
        worker = Worker(command, request, settings.inductor)
        if not worker.info["ok"]:
            return worker
        elapsed = worker.info["spawn_to_first_step"]
        if not best or elapsed < best["spawn_to_first_step"]:
            best = worker.info
        if index + 1 < starts:
            worker.close()
    worker.info = best
    return worker


def start_all(
    settings: Settings, workload: str, threads: int
) -> tuple[dict[str, Answer], dict[str, Worker | Ruler]]:
    """Results with no runs yet, by system, and those of the systems that are ready to run."""
    results: dict[str, Answer] = {}
    ready: dict[str, Worker | Ruler] = {}
    for peer in settings.peers:
        if not catalogue.trains(peer, workload):
            continue
        try:
            worker = start(settings, peer, workload, threads)
        except environments.SetUpError as error:
            results[peer] = {"ok": False, "error": str(error), "runs": []}
            environments.log(workload, f"{threads}T", peer, str(error)[:160])
            continue
        results[peer] = dict(worker.info, runs=[])
        if worker.info["ok"]:
            ready[peer] = worker
        else:
            worker.close()
        state = "ready" if worker.info["ok"] else worker.info["error"][:160]
        environments.log(workload, f"{threads}T", peer, state)
    return results, ready


def measure(settings: Settings, workload: str, threads: int) -> dict[str, Answer]:
    """Starts every system, then runs them in turn; returns their answers with "runs", by name.

    Every run gets "others": the processor time, in cores, that other processes took meanwhile.
    """
    results, ready = start_all(settings, workload, threads)
    for index in range(settings.repeats or workloads.WORKLOADS[workload].repeats):
        order = list(ready) if index % 2 == 0 else list(reversed(ready))
        for peer in order:
            if settings.patience > 0:
                waiting = time.time()
                wait_until_quiet(min(settings.patience, 4.0))
                settings.patience -= time.time() - waiting - 0.3
            busy, begin = busy_seconds(), time.time()
            answer = ready[peer].run()
            elapsed = time.time() - begin
            if not answer["ok"]:
                results[peer].update(ok=False, error=answer["error"])
                ready.pop(peer).close()
                continue
            own = elapsed if answer["cpu"] is None else answer["cpu"]
            answer["others"] = max(0.0, (busy_seconds() - busy - own) / elapsed)
            results[peer]["runs"].append(answer)
    for worker in ready.values():
        worker.close()
    return results
