#!/usr/bin/env python3
"""w3 to w8 beside PyTorch in one table, from the results that peers/run.py stores.

    PEERS=all benchmarks/peers/run.py --workloads all --threads 1,2
    benchmarks/large_models.py --docs docs/benchmarks.md

An earlier build that took part as `--extra "before=..."` gets a column. Of PyTorch the faster
layout of images counts, eager and compiled apart. Further tables, of what took part:
`precision="bf16"` beside PyTorch's autocast (`--peers onnxgrad-bf16,torch-bf16,torch-bf16-cl`), and
large products by MKL (`--peers onnxgrad-mkl`).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))

import environments
import report
import workloads

LARGE = [name for name in workloads.WORKLOADS if name[:2] not in ("w1", "w2")]
# Fractions of PyTorch's eager time, with one thread and with two.
GOALS = {
    "w3_mlp784": (0.65, 0.65),
    "w4_cnn": (0.40, 0.42),
    "w5_resnet18": (0.75, 0.75),
    "w6_bert_tiny": (0.75, 0.70),
    "w6_bert_base_layer": (0.88, 0.85),
}
HEAD = [
    "workload", "before, ms", "now, ms", "PyTorch, ms", "now / PyTorch", "goal", "now / compiled",
    "second thread: ours, PyTorch", "set-up and first step, s: ours, PyTorch",
    "peak, MB: ours, PyTorch",
]  # fmt: skip

HALF_HEAD = [
    "workload", "now, ms", "PyTorch, ms", "now / PyTorch", "float32 / bf16: ours", "PyTorch's",
]  # fmt: skip

MKL_HEAD = [
    "workload", "own kernels, ms", "MKL, ms", "MKL / own", "PyTorch, ms", "own / PyTorch",
    "MKL / PyTorch", "goal",
]  # fmt: skip

Pair = tuple[float | None, float | None]  # with one thread, with two


def pair(show: Callable[[float], str], values: Pair) -> str:
    return " / ".join("-" if value is None else show(value) for value in values)


def three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def two_decimals(value: float) -> str:
    return f"{value:.2f}"


def quotient(a: Pair, b: Pair) -> Pair:
    first, second = (None if x is None or y is None else x / y for x, y in zip(a, b, strict=True))
    return first, second


def milliseconds(results: report.Results, name: str, peers: tuple[str, ...]) -> Pair:
    """The shortest step of the fastest of some systems."""
    best: list[float | None] = []
    for threads in (1, 2):
        steps = [report.best_step(results, name, peer, threads) for peer in peers]
        known = [1e3 * step for step in steps if step is not None]
        best.append(min(known) if known else None)
    return best[0], best[1]


def starts(results: report.Results, name: str, peer: str) -> Pair:
    """Set-up and first step, in seconds."""
    runs = report.runs_of(results, name, peer)
    first, second = (
        runs[threads]["setup"] + runs[threads]["first_step"] if threads in runs else None
        for threads in (1, 2)
    )
    return first, second


def peak(results: report.Results, name: str, peer: str) -> str:
    runs = report.runs_of(results, name, peer)
    return f"{max(run['rss_mb'] for run in runs[1]['runs']):.0f}" if 1 in runs else "-"


def gain(steps: Pair) -> str:
    one, two = steps
    return "-" if one is None or two is None else f"{one / two:.2f}"


def row(results: report.Results, name: str) -> list[str]:
    ours = milliseconds(results, name, ("onnxgrad",))
    eager = milliseconds(results, name, ("torch-eager", "torch-eager-cl"))
    compiled = milliseconds(results, name, ("torch-compile", "torch-compile-cl"))
    goal = GOALS.get(name)
    return [
        name,
        pair(three_digits, milliseconds(results, name, ("before",))),
        pair(three_digits, ours),
        pair(three_digits, eager),
        pair(two_decimals, quotient(ours, eager)),
        pair(two_decimals, goal) if goal else "",
        pair(two_decimals, quotient(ours, compiled)),
        f"{gain(ours)}, {gain(eager)}",
        f"{pair(two_decimals, starts(results, name, 'onnxgrad'))}, "
        f"{pair(two_decimals, starts(results, name, 'torch-eager'))}",
        f"{peak(results, name, 'onnxgrad')}, {peak(results, name, 'torch-eager')}",
    ]


def table(results: report.Results) -> str:
    return report.markdown(
        HEAD, [row(results, name) for name in LARGE if name in results["workloads"]]
    )


def half_row(results: report.Results, name: str) -> list[str]:
    ours = milliseconds(results, name, ("onnxgrad-bf16",))
    autocast = milliseconds(results, name, ("torch-bf16", "torch-bf16-cl"))
    eager = milliseconds(results, name, ("torch-eager", "torch-eager-cl"))
    return [
        name,
        pair(three_digits, ours),
        pair(three_digits, autocast),
        pair(two_decimals, quotient(ours, autocast)),
        pair(two_decimals, quotient(milliseconds(results, name, ("onnxgrad",)), ours)),
        pair(two_decimals, quotient(eager, autocast)),
    ]


def mkl_row(results: report.Results, name: str) -> list[str]:
    own = milliseconds(results, name, ("onnxgrad",))
    by_mkl = milliseconds(results, name, ("onnxgrad-mkl",))
    eager = milliseconds(results, name, ("torch-eager", "torch-eager-cl"))
    return [
        name,
        pair(three_digits, own),
        pair(three_digits, by_mkl),
        pair(two_decimals, quotient(by_mkl, own)),
        pair(three_digits, eager),
        pair(two_decimals, quotient(own, eager)),
        pair(two_decimals, quotient(by_mkl, eager)),
        pair(two_decimals, GOALS[name]) if name in GOALS else "",
    ]


def table_of(
    peer: str, head: list[str], make: Callable[[report.Results, str], list[str]],
    results: report.Results,
) -> str:  # fmt: skip
    """The workloads that a system took part in; empty if there is none."""
    names = [
        name
        for name in LARGE
        if name in results["workloads"] and milliseconds(results, name, (peer,)) != (None, None)
    ]
    return report.markdown(head, [make(results, name) for name in names]) if names else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=pathlib.Path, help="default: results.json of the cache")
    parser.add_argument("--docs", type=pathlib.Path, help="put the tables into this Markdown file")
    parser.add_argument("--mark", default="", help="there, after the tables' names: a machine's")
    options = parser.parse_args()
    path = options.json or environments.DEFAULT_CACHE.expanduser() / "results.json"
    results = json.loads(path.read_text())
    texts = {
        "large models": table(results),
        "bfloat16 beside PyTorch": table_of("onnxgrad-bf16", HALF_HEAD, half_row, results),
        "products by MKL": table_of("onnxgrad-mkl", MKL_HEAD, mkl_row, results),
    }
    for mark, text in texts.items():
        print(text)
        if options.docs and text:
            report.write_marked(options.docs, mark + options.mark, text)


if __name__ == "__main__":
    main()
