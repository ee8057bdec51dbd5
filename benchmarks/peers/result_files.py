"""The stored results of benchmarks: benchmarks/results/<processor>.json.

A file has a processor and runs. A run is one command with its date, the versions of what took part
and its entries: benchmark, workload, system, threads, value and unit. `add` drops what a new run
measures again from the earlier ones. results_page.py writes docs/benchmarks.md from the files.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import sys
import time
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / "results"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One figure. A ratio has a unit such as "x float32"; a system may have a remark, ", ..."."""

    benchmark: str
    workload: str
    system: str
    threads: int
    value: float
    unit: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.benchmark, self.workload, self.system.partition(",")[0], self.threads


@dataclasses.dataclass
class Run:
    command: str
    date: str
    versions: dict[str, str]
    entries: list[Entry]


@dataclasses.dataclass
class ResultFile:
    processor: str
    runs: list[Run]

    def entries(self) -> list[Entry]:
        return [entry for run in self.runs for entry in run.entries]


def rounded(value: float, digits: int = 4) -> float:
    return float(f"{value:.{digits}g}")


def timed(benchmark: str, workload: str, system: str, threads: int, seconds: float) -> Entry:
    """Return an entry in the unit that fits."""
    for unit, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * size:
            return Entry(benchmark, workload, system, threads, rounded(seconds / size), unit)
    return Entry(benchmark, workload, system, threads, rounded(seconds), "s")


def machine() -> str:
    """Return processor, family, model and core count, from /proc/cpuinfo where there is one."""
    found: dict[str, str] = {}
    path = pathlib.Path("/proc/cpuinfo")
    if path.exists():
        pairs = (line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        found = {key.strip(): value.strip() for key, value in pairs}
    name = found.get("model name", platform.processor())
    family, model = found.get("cpu family", "?"), found.get("model", "?")
    return f"{name}, family {family} model {model}, {os.cpu_count()} cores"


def read(path: pathlib.Path) -> ResultFile:
    stored = json.loads(path.read_text(encoding="utf-8"))
    runs = [
        Run(**run | {"entries": [Entry(**entry) for entry in run["entries"]]})
        for run in stored["runs"]
    ]
    return ResultFile(stored["processor"], runs)


def text_of(file: ResultFile) -> str:
    """Return JSON with one line for each entry."""
    runs = []
    for run in file.runs:
        head = {key: getattr(run, key) for key in ("command", "date", "versions")}
        lines = [
            "    " + json.dumps(dataclasses.asdict(entry), ensure_ascii=False)
            for entry in run.entries
        ]
        shown = json.dumps(head, ensure_ascii=False)[:-1]
        runs.append(f'  {shown}, "entries": [\n' + ",\n".join(lines) + "\n  ]}")
    processor = json.dumps(file.processor, ensure_ascii=False)
    return f'{{"processor": {processor}, "runs": [\n' + ",\n".join(runs) + "\n]}\n"


def merge(file: ResultFile, run: Run) -> None:
    """Add a run; drop what it measures again, and runs of which nothing is left."""
    new = {entry.key for entry in run.entries}
    for old in file.runs:
        old.entries = [entry for entry in old.entries if entry.key not in new]
    file.runs = [old for old in file.runs if old.entries] + [run]


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        help="add the figures to this file (benchmarks/results/<processor>.json)",
    )


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of installed packages."""
    return {name: importlib.metadata.version(name) for name in packages}


def _command() -> str:
    """Return the command line without --results and its value."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word == "--results":
            next(words, None)
        elif not word.startswith("--results="):
            kept.append(word)
    script = pathlib.Path(sys.argv[0]).resolve()
    name = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return shlex.join([str(name), *kept])


def add(
    path: pathlib.Path | None, entries: typing.Iterable[Entry], versions: dict[str, str]
) -> None:
    """Add what this command measured to a file; do nothing without one."""
    if path is None:
        return
    file = read(path) if path.exists() else ResultFile(machine(), [])
    merge(file, Run(_command(), time.strftime("%Y-%m-%d"), versions, list(entries)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(file), encoding="utf-8")
