"""The results of the check as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Aims in microseconds of a step on an H100: docs/cuda.md.
AIMS = {
    "w1_linreg2": {"float32": 0.3},
    "w2_mlp": {"float32": 6},
    "w3_mlp784": {"float32": 60, "bf16": 45},
    "w5_resnet18": {"float32": 4700, "tf32": 1650, "bf16": 1050},
    "w6_bert_base_layer": {"float32": 1250, "tf32": 450, "bf16": 260},
    "w6_bert_tiny": {"float32": 300, "tf32": 300, "bf16": 300},
    "w7_causal_lm": {"float32": 1800, "bf16": 1000},
    "w8_mobilenetv2": {"float32": 1500},
}
_MARKS = {True: "passed", False: "FAILED", None: "waits"}


def line(result: dict[str, Any]) -> str:
    """Return an item in one line."""
    said = str(result["values"]).strip().splitlines() or [""]
    shown = said[-1] if result["passed"] is False else said[0]
    return (
        f"{result['item']:20} {_MARKS[result['passed']]} {result.get('seconds', 0):6} s  "
        f"{shown[:120]}"
    )


def _rows(out: Path) -> list[dict[str, Any]]:
    files = sorted((out / "speed").glob("*.jsonl"))
    return [json.loads(text) for file in files for text in file.read_text().splitlines()]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _speed(out: Path) -> list[str]:
    rows = _rows(out)
    own = ("cold", "warm")
    others = ["eager", "graph", "graph-epoch", "jax-jit", "jax-scan"]
    head = ["us a step", "type", "onnxgrad", "aim", *others, "kernels", "MB", "first s", "cached s"]
    lines = ["".join(f"{cell:>12}" if i > 1 else f"{cell:19}" for i, cell in enumerate(head))]
    for name in dict.fromkeys(row["workload"] for row in rows):
        for kind in ("float32", "tf32", "bf16"):
            here = [row for row in rows if (row["workload"], row["type"]) == (name, kind)]
            if not any("us" in row for row in here):
                continue
            found = {row["variant"]: row for row in here if row["variant"] in own}
            cold, warm = found.get("cold", {}), found.get("warm", {})
            best = {
                other: min(
                    (
                        row["us"]
                        for row in here
                        if row["variant"].removesuffix("-cl") == other and "us" in row
                    ),
                    default=None,
                )
                for other in others
            }
            numbers = [cold.get("us"), AIMS.get(name, {}).get(kind), *best.values()]
            numbers += [cold.get("kernels"), cold.get("memory_mb")]
            numbers += [cold.get("first_s"), warm.get("first_s")]
            cells = "".join(f"{_number(number):>12}" for number in numbers)
            lines.append(f"{name:19}{kind:19}{cells}")
    return lines


def text(results: dict[str, list[dict[str, Any]]], out: Path) -> str:
    """Return the table of all parts."""
    lines = []
    for part, items in results.items():
        marks = [item["passed"] for item in items]
        waits = f", {marks.count(None)} wait for the next call" if None in marks else ""
        lines.append(f"{part}: {marks.count(True)} passed, {marks.count(False)} failed{waits}")
    if "speed" in results:
        lines += _speed(out)
    return "\n".join(lines)
