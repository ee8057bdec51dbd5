#!/usr/bin/env python3
"""Writes the tables of docs/benchmarks.md from benchmarks/results.

benchmarks/results_page.py            # write
benchmarks/results_page.py --check    # exit status 1 if the page is another one
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import statistics
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import report
from result_files import FOLDER, ROOT, Entry, ResultFile, read

PAGE = ROOT / "docs" / "benchmarks.md"
MARK = "results, written by benchmarks/results_page.py"
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
STEP, PEAK, FLOOR = "training step", "peak memory", "floor"

Figures = dict[int, float]  # by number of threads; times in seconds


def figures(entries: list[Entry], benchmark: str, workload: str, system: str) -> Figures:
    """Return the least of the systems whose names begin so, by number of threads."""
    found: Figures = {}
    for entry in entries:
        is_ratio = entry.unit.startswith("x ")
        is_of_workload = (entry.benchmark, entry.workload) == (benchmark, workload)
        if is_of_workload and entry.system.startswith(system) and not is_ratio:
            value = entry.value * UNITS.get(entry.unit, 1.0)
            found[entry.threads] = min(found.get(entry.threads, value), value)
    return found


def exactly(entries: list[Entry], benchmark: str, workload: str, system: str) -> Figures:
    """Return the figures of one system."""
    return figures([e for e in entries if e.system == system], benchmark, workload, system)


def ratios(entries: list[Entry], benchmark: str, workload: str, a: str, b: str) -> Figures:
    """Return the time of `a` relative to that of `b`, computed or as it was stored."""
    stored = {
        entry.threads: entry.value
        for entry in entries
        if (entry.benchmark, entry.workload) == (benchmark, workload)
        and (entry.system, entry.unit) == (a, f"x {b}")
    }
    return (
        quotient(exactly(entries, benchmark, workload, a), figures(entries, benchmark, workload, b))
        | stored
    )


def quotient(a: Figures, b: Figures) -> Figures:
    return {threads: a[threads] / b[threads] for threads in a if threads in b}


def shown(values: Figures, show: Callable[[float], str]) -> str:
    return ", ".join(show(values[threads]) for threads in sorted(values))


def times(values: Figures) -> str:
    """Return them in the unit of the longest, which stands once."""
    if not values:
        return ""
    longest = max(values.values())
    unit = next((unit for unit, size in UNITS.items() if longest < 1000 * size), "s")

    def show(value: float) -> str:
        scaled = value / UNITS[unit]
        return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.3g}"

    return f"{shown(values, show)} {unit}"


def decimals(values: Figures) -> str:
    return shown(values, lambda value: f"{value:.2f}" if value >= 0.1 else f"{value:.1g}")


def fastest_other(entries: list[Entry], workload: str) -> str:
    """Return the fastest system besides onnxgrad, PyTorch and the hand-written loop."""
    apart = ("onnxgrad", "torch", "floor", "sklearn-sgd")
    systems = {
        entry.system
        for entry in entries
        if (entry.benchmark, entry.workload) == (STEP, workload)
        and not entry.system.startswith(apart)
    }
    found = {system: exactly(entries, STEP, workload, system) for system in sorted(systems)}
    if not found:
        return ""
    best = min(found, key=lambda system: min(found[system].values()))
    return f"{best} {times(found[best])}"


def peaks(entries: list[Entry], workload: str) -> str:
    sizes = [exactly(entries, PEAK, workload, system) for system in ("onnxgrad", "torch-eager")]
    return ", ".join(f"{min(size.values()):.0f}" for size in sizes if size)


COLUMNS: dict[str, Callable[[list[Entry], str], str]] = {
    "onnxgrad": lambda e, w: times(exactly(e, STEP, w, "onnxgrad")),
    "PyTorch": lambda e, w: times(figures(e, STEP, w, "torch-eager")),
    "ratio": lambda e, w: decimals(
        quotient(exactly(e, STEP, w, "onnxgrad"), figures(e, STEP, w, "torch-eager"))
    ),
    "fastest other": fastest_other,
    "step / floor": lambda e, w: decimals(
        quotient(exactly(e, STEP, w, "onnxgrad"), exactly(e, FLOOR, w, "fastest library"))
    ),
    "bf16": lambda e, w: decimals(ratios(e, "precision", w, "bf16", "float32")),
    "bf16 / PyTorch": lambda e, w: decimals(
        quotient(exactly(e, STEP, w, "onnxgrad-bf16"), figures(e, STEP, w, "torch-bf16"))
    ),
    "fp16": lambda e, w: decimals(ratios(e, "precision", w, "fp16", "float32")),
    "1 row": lambda e, w: decimals(ratios(e, "inference, 1 row", w, "onnxgrad", "onnxruntime")),
    "32 rows": lambda e, w: decimals(ratios(e, "inference, 32 rows", w, "onnxgrad", "onnxruntime")),
    "peak, MB": peaks,
}


def workload_table(entries: list[Entry]) -> str:
    names = list(dict.fromkeys(entry.workload for entry in entries if entry.benchmark == STEP))
    cells = {title: [show(entries, name) for name in names] for title, show in COLUMNS.items()}
    titles = [title for title, column in cells.items() if any(column)]
    rows = [[name, *(cells[title][i] for title in titles)] for i, name in enumerate(names)]
    return report.markdown(["workload", *titles], rows)


def processor_section(file: ResultFile) -> str:
    dates = sorted({run.date for run in file.runs})
    period = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
    return f"### {file.processor}\n\n{period}\n\n{workload_table(file.entries())}"


def beside(entries: list[Entry], benchmark: str) -> str:
    """Return how many cases there are and their ratios to the other system."""
    names = list(dict.fromkeys(e.workload for e in entries if e.benchmark == benchmark))
    found = [ratios(entries, benchmark, name, "onnxgrad", "torch").get(1) for name in names]
    known = [value for value in found if value is not None]
    if not known:
        return f"{len(names)} cases of onnxgrad alone"
    return (
        f"{len(known)} cases, PyTorch's time times {min(known):.2f} to {max(known):.2f}, "
        f"median {statistics.median(known):.2f}"
    )


def each(entries: list[Entry], benchmark: str) -> str:
    cases: dict[str, Figures] = collections.defaultdict(dict)
    for entry in entries:
        if entry.benchmark == benchmark:
            cases[entry.workload][entry.threads] = entry.value * UNITS[entry.unit]
    return "; ".join(f"{name} {times(values)}" for name, values in cases.items())


def efficiency(entries: list[Entry], benchmark: str) -> str:
    """Return the speed-ups over one thread, divided by the threads."""
    cases: dict[str, Figures] = collections.defaultdict(dict)
    for entry in entries:
        if entry.benchmark == benchmark:
            cases[entry.workload][entry.threads] = entry.value * UNITS[entry.unit]
    shown = []
    for name, steps in cases.items():
        parts = [f"{steps[1] / steps[n] / n:.0%} ({n})" for n in sorted(steps) if n > 1]
        shown.append(f"{name} {', '.join(parts)}")
    return "efficiency (threads): " + "; ".join(shown)


OTHERS: dict[str, Callable[[list[Entry], str], str]] = {
    "operators, forward": beside,
    "operators, with gradients": beside,
    "recurrent": beside,
    "compile time": each,
    "optimizers": each,
    "iterations": each,
    "threads, simulated": efficiency,
}


def other_table(files: dict[str, ResultFile]) -> str:
    rows = []
    for benchmark, show in OTHERS.items():
        for name, file in files.items():
            for run in file.runs:
                if any(entry.benchmark == benchmark for entry in run.entries):
                    rows.append([benchmark, name, show(run.entries, benchmark), f"`{run.command}`"])
    return report.markdown(["benchmark", "file", "one thread, two threads", "command"], rows)


def tables() -> str:
    files = {path.stem: read(path) for path in sorted(FOLDER.glob("*.json"))}
    sections = [processor_section(file) for file in files.values()]
    return "\n\n".join([*sections, f"### Other benchmarks\n\n{other_table(files)}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    text = report.replaced(PAGE.read_text(encoding="utf-8"), MARK, tables())
    if text == PAGE.read_text(encoding="utf-8"):
        return 0
    done = "is not what benchmarks/results_page.py writes" if options.check else "written"
    print(f"{PAGE.relative_to(ROOT)}: {done}")
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    return int(options.check)


if __name__ == "__main__":
    sys.exit(main())
