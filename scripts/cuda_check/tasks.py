"""The workloads of benchmarks/peers for the check, without scikit-learn."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TYPES = ("float32", "tf32", "bf16")


def task(name: str, variant: str, root: Path, out: Path) -> Any:
    """Return the Task of a workload; its model and data are written when they are not there."""
    import worker
    import workloads

    folder = out / "work" / "workloads"
    if not (folder / f"{name}.written").exists():  # by a process that may import what it needs
        program = [sys.executable, str(root / "cuda_check/item.py"), "tasks"]
        subprocess.run([*program, name, str(root), str(out)], check=True, stdout=subprocess.DEVNULL)
    return worker.Task(variant, name, 1, folder, *workloads.load_data(folder, name))


def run(name: str, root: Path, out: Path) -> dict[str, Any]:
    """Write the model and the data of a workload."""
    import workloads

    made = workloads.make_data

    def make_data(wanted: str) -> tuple[Any, Any]:
        stored = root / "data" / f"{wanted}.npz"
        if not stored.exists():
            return made(wanted)  # type: ignore[no-any-return]
        with np.load(stored) as data:
            return data["x"], data["y"]

    workloads.make_data = make_data
    folder = out / "work" / "workloads"
    workloads.generate(folder, [name])
    (folder / f"{name}.written").touch()
    return {}


def timed(run: Callable[[int], None], wait: Callable[[], None], slice_s: float) -> float:
    """Return the microseconds of a step; `run(n)` takes n steps, of which `wait` awaits the end.

    The median of five runs that fill a slice of time each.
    """
    run(2)
    wait()
    steps = 4
    while True:
        began = time.perf_counter()
        run(steps)
        wait()
        took = time.perf_counter() - began
        if took > slice_s / 4 or steps > 200_000:
            break
        steps *= 4
    steps = max(2, int(steps * slice_s / took))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        run(steps)
        wait()
        times.append((time.perf_counter() - began) / steps * 1e6)
    return sorted(times)[2]


class Log:
    """Results as lines of a file; what is there is not measured again."""

    def __init__(self, file: Path, ends: float) -> None:
        self._file, self._ends = file, ends
        lines = file.read_text().splitlines() if file.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.goes_on = False

    def add(
        self, key: tuple[str, str, str], needs_s: float, measure: Callable[[], dict[str, Any]]
    ) -> None:
        """Keep what `measure` returns for (workload, variant, type), or its error."""
        workload, variant, kind = key
        if any((row["workload"], row["variant"], row["type"]) == key for row in self.rows):
            return
        if time.time() + needs_s > self._ends:
            self.goes_on = True
            return
        try:
            values = measure()
        except Exception as error:  # any, to go on with the others
            values = {"error": f"{type(error).__name__}: {error}"[:300]}
        row = {"workload": workload, "variant": variant, "type": kind, **values}
        self.rows.append(row)
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
