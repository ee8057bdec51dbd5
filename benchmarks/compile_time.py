#!/usr/bin/env python3
"""How long a plan takes: from a model's file to its first result, and for a new length.

    .venv/bin/python benchmarks/compile_time.py

A first result is that of a process of its own, the file in memory, from
`TrainingSession(path, ...)` to the loss of the first step with SGD; in brackets less a later step;
the shortest of some starts. A plan for a new length is the first step of a length less the second
one, a BERT with 12 layers of 48 columns, the shortest of 16 lengths in some rounds. Goals: 0.3 s,
0.4 s (two threads) and 30 ms.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

import known_models  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import report  # noqa: E402
import result_files  # noqa: E402

import onnxgrad as og  # noqa: E402

TOKENS = 16
THREADS = (1, 2)
LENGTHS = range(TOKENS, 2 * TOKENS)
NARROW = 48  # columns of the BERT whose lengths change
OPTIMIZERS = {
    "SGD": lambda: og.optimizers.SGD(1e-4),
    "AdamW": lambda: og.optimizers.AdamW(1e-4),
}
Feeds = dict[str, np.ndarray]


def bert_feeds(tokens: int, width: int, target: str) -> Feeds:
    ids = np.arange(tokens, dtype=np.int64)[None]
    return {"ids": ids, "positions": ids, target: np.zeros((1, tokens, width), np.float32)}


def first_result(path: str, kind: str, threads: int) -> tuple[float, float]:
    """Seconds to the first loss, and those of a later step."""
    start = time.perf_counter()
    session = og.TrainingSession(
        path, og.losses.SquaredError(), og.optimizers.SGD(1e-6), threads=threads
    )
    if kind == "bert":
        feeds = bert_feeds(TOKENS, 768, session.target_name)
    else:
        feeds = {
            session.get_inputs()[0].name: np.ones((1, 3, 224, 224), np.float32),
            session.target_name: np.zeros((1, 1000), np.float32),
        }
    times = []
    for _ in range(3):
        session.step(feeds)
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
    return times[0], min(times[1:])


def first_results(path: pathlib.Path, kind: str, threads: int, starts: int) -> tuple[float, float]:
    best = (float("inf"), 0.0)
    for _ in range(starts):
        command = [sys.executable, __file__, "--first", str(path), kind, str(threads)]
        first, later = map(float, subprocess.check_output(command, text=True).split())
        best = min(best, (first, later))
    return best


def new_length(path: pathlib.Path, optimizer: str, threads: int, rounds: int) -> float:
    """The shortest time that a plan takes."""
    best = float("inf")
    for _ in range(rounds):
        session = og.TrainingSession(
            str(path), og.losses.SquaredError(), OPTIMIZERS[optimizer](), threads=threads
        )
        for tokens in LENGTHS:
            feeds = bert_feeds(tokens, NARROW, session.target_name)
            times = []
            for _ in range(3):
                start = time.perf_counter()
                session.step(feeds)
                times.append(time.perf_counter() - start)
            best = min(best, times[0] - min(times[1:]))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", nargs=3, metavar=("FILE", "KIND", "THREADS"))
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    result_files.add_option(parser)
    options = parser.parse_args()
    if options.first:
        path, kind, threads = options.first
        print(*first_result(path, kind, int(threads)))
        return
    rows, entries = [], []

    def add(title: str, seconds: list[float], cells: list[str]) -> None:
        rows.append([title, *cells])
        entries.extend(
            result_files.timed("compile time", title, "onnxgrad", threads, value)
            for threads, value in zip(THREADS, seconds, strict=True)
        )

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        for title, kind, model in (
            ("BERT, 12 layers, first result", "bert", known_models.bert),
            ("ResNet-50, first result", "resnet50", known_models.resnet50),
        ):
            onnx.save(model(), path)
            found = [first_results(path, kind, threads, options.starts) for threads in THREADS]
            cells = [f"{first:.2f} s ({first - later:.2f})" for first, later in found]
            add(title, [first for first, _ in found], cells)
        onnx.save(known_models.bert(width=NARROW), path)
        for optimizer in OPTIMIZERS:
            times = [new_length(path, optimizer, threads, options.rounds) for threads in THREADS]
            cells = [f"{1e3 * seconds:.1f} ms" for seconds in times]
            add(f"plan for a new length, {optimizer}", times, cells)
    print(report.markdown(["", "1 thread", "2 threads"], rows))
    result_files.add(options.results, entries, {"onnxgrad": og.__version__})


if __name__ == "__main__":
    main()
