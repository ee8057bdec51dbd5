"""Runs the parts of the check of a card by a clock, and prints their table.

    python main.py correctness|speed|all ROOT OUT

Every item is a process; its result is OUT/<part>/<item>.json, and it is not run again. An item that
the clock of the part leaves no time for is run by the next call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import table

# Rehearsals on stand-ins, whose texts are compiled by a C++ compiler, take longer than a card.
_SLOWER = float(os.environ.get("ONNXGRAD_CHECK_SLOWER", "1"))
BUDGET_S = 240 * _SLOWER  # of a part
# In order of importance.
WORKLOADS = (
    *("w3_mlp784", "w6_bert_base_layer", "w5_resnet18", "w2_mlp", "w1_linreg2", "w6_bert_tiny"),
    *("w7_causal_lm", "w8_mobilenetv2", "w4_cnn"),
)
_WANTED = os.environ.get("ONNXGRAD_CHECK_WORKLOADS", ",".join(WORKLOADS)).split(",")
_CASES_S = 120


@dataclass(frozen=True)
class Item:
    """A process of a part."""

    module: str  # "correctness", "speed" or "anchors"
    name: str
    limit_s: float
    fits_s: float = 5  # is not begun with less time than this
    keeps: bool = False  # what it has done, when its time is up: the next call goes on


def correctness() -> list[Item]:
    """Return the items of the first part."""
    names = ("libraries", "traces", "determinism", "errors", "arrays")
    items = [Item("correctness", name, 60) for name in names]
    return [*items, Item("correctness", "cases", _CASES_S, fits_s=15, keeps=True)]


def speed() -> list[Item]:
    """Return the items of the second part: each workload by onnxgrad, then by the others."""
    items = [Item("correctness", "libraries", 60)]
    items += [Item("speed", workload, 40, fits_s=8, keeps=True) for workload in _WANTED]
    peers = [Item("anchors", name, 90, fits_s=20, keeps=True) for name in ("torch", "jax")]
    return [*items, *peers]


PARTS = {"correctness": correctness, "speed": speed}


class Runner:
    """Runs items until the time of the part is up."""

    def __init__(self, part: str, root: Path, out: Path) -> None:
        self.part, self.root, self.out = part, root, out
        self.end = time.monotonic() + BUDGET_S
        (out / part).mkdir(parents=True, exist_ok=True)
        (out / "work").mkdir(exist_ok=True)

    def left(self) -> float:
        """Return the seconds that are left, without those that ending takes."""
        return self.end - time.monotonic() - 3

    def run(self, item: Item) -> dict[str, Any]:
        """Run an item, unless it has a result or the time is up."""
        file = self.out / self.part / f"{item.name}.json"
        if file.exists():
            return dict(json.loads(file.read_text()))
        waiting = {"item": item.name, "passed": None, "values": "not run yet: no time left"}
        if self.left() < item.fits_s:
            return waiting
        limit_s = min(item.limit_s * _SLOWER, self.left())
        began = time.monotonic()
        environment = {**os.environ, "ONNXGRAD_CHECK_ENDS": str(time.time() + 0.9 * limit_s)}
        program = [sys.executable, str(self.root / "cuda_check" / "item.py")]
        process = subprocess.Popen(
            [*program, item.module, item.name, str(self.root), str(self.out)],
            cwd=self.out / "work",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said, wrong = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            if item.keeps or limit_s < item.limit_s * _SLOWER:
                return waiting
            said, wrong = "", f"not finished in {limit_s:.0f} s"
        if process.returncode == 0:
            values = json.loads(said.splitlines()[-1])
        else:
            values = wrong.strip()[-2000:] or f"ended with status {process.returncode}"
        if process.returncode == 0 and values.pop("goes on", False):
            return {**waiting, "values": values}
        result = {"item": item.name, "passed": process.returncode == 0, "values": values}
        result["seconds"] = round(time.monotonic() - began, 1)
        file.write_text(json.dumps(result, indent=1))
        return result


def main() -> int:
    """Run a part or all; return 1 if something has failed, 2 if something is left to be done."""
    wanted, root, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if wanted not in (*PARTS, "all"):
        print(f"unknown part {wanted}; known: {', '.join(PARTS)}, all", file=sys.stderr)
        return 64
    results: dict[str, list[dict[str, Any]]] = {}
    for part, items in PARTS.items():
        if wanted not in (part, "all"):
            continue
        runner = Runner(part, root, out)
        results[part] = []
        for item in items():
            result = runner.run(item)
            results[part].append(result)
            print(table.line(result), flush=True)
            if item.name == "libraries" and result["passed"] is False:
                break  # nothing else can work
    (out / "results.json").write_text(json.dumps(results, indent=1))
    text = table.text(results, out)
    (out / "table.txt").write_text(text + "\n")
    print(text)
    marks = {result["passed"] for part in results.values() for result in part}
    return 1 if False in marks else 2 if None in marks else 0


if __name__ == "__main__":
    sys.exit(main())
