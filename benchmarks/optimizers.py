#!/usr/bin/env python3
"""Step time of w2_mlp with each optimizer, on one thread.

    .venv/bin/python benchmarks/optimizers.py                  # prints the table
    .venv/bin/python benchmarks/optimizers.py --only sgd adam  # some rows of it
    .venv/bin/python benchmarks/optimizers.py --check          # exit status 1 if a goal is missed

A timed run is one call of Trainer.fit over `--epochs` epochs of 50 batches in file order, from the
first weights on. The optimizers take turns, and the fastest of `--repeats` runs of each counts:
what else the machine does hits all alike. L-BFGS is not in the table: its step is a search over
all rows.

The goal: Adam and Nesterov at most 25 % over plain SGD.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
import time

import numpy as np

import onnxgrad as og
from onnxgrad import optimizers as opt

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import environments
import result_files
import workloads

WORKLOAD = "w2_mlp"
GOAL = 1.25
AIMED = ("adam", "nesterov")
BASE = "sgd"


@dataclasses.dataclass
class Row:
    """One way to train: the optimizer and what is done around it."""

    optimizer: opt.Optimizer
    options: dict[str, object] = dataclasses.field(default_factory=dict)


ROWS = {
    "sgd": Row(opt.SGD(1e-5)),
    "momentum": Row(opt.SGD(1e-6, momentum=0.9)),
    "nesterov": Row(opt.SGD(1e-6, momentum=0.9, nesterov=True)),
    "adam": Row(opt.Adam(1e-4)),
    "adam, amsgrad": Row(opt.Adam(1e-4, amsgrad=True)),
    "adamw": Row(opt.AdamW(1e-4)),
    "adagrad": Row(opt.Adagrad(1e-3)),
    "rmsprop": Row(opt.RMSProp(1e-5)),
    "rmsprop, centered, momentum": Row(opt.RMSProp(1e-5, momentum=0.9, centered=True)),
    "lion": Row(opt.Lion(1e-5)),
    "lamb": Row(opt.LAMB(1e-4)),
    "sgd, clip_norm": Row(opt.SGD(1e-5), {"clip_norm": 1e3}),
    "adam, clip_norm": Row(opt.Adam(1e-4), {"clip_norm": 1e3}),
    "sgd, accumulate 4": Row(opt.SGD(1e-5), {"accumulate": 4}),
}


class Run:
    """A trainer with its data and its best time."""

    def __init__(self, files: dict[str, pathlib.Path], row: Row) -> None:
        self.x, self.y = np.load(files["x"]), np.load(files["y"])
        self.trainer = og.Trainer(
            str(files["model"]), "squared_error", row.optimizer, threads=1, **row.options
        )
        self.best_s = float("inf")

    def time(self, epochs: int) -> None:
        self.trainer.reset()
        batch = workloads.WORKLOADS[WORKLOAD].batch
        start = time.perf_counter()
        self.trainer.fit(self.x, self.y, epochs=epochs, batch_size=batch, shuffle=False, verbose=0)
        elapsed = time.perf_counter() - start
        steps = epochs * -(-len(self.x) // batch)
        self.best_s = min(self.best_s, elapsed / steps)
        last = self.trainer.history["train_loss"][-1]
        if not np.isfinite(last):
            raise AssertionError(f"the loss became {last}")


def measure(files: dict[str, pathlib.Path], names: list[str], epochs: int, repeats: int) -> dict:
    """The best seconds of a step by name."""
    runs = {name: Run(files, ROWS[name]) for name in names}
    for run in runs.values():
        run.time(2)
        run.best_s = float("inf")
    for _ in range(repeats):
        for run in runs.values():
            run.time(epochs)
    return {name: run.best_s for name, run in runs.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="NAME")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    result_files.add_option(parser)
    parser.add_argument("--work", type=pathlib.Path, default=environments.DEFAULT_CACHE)
    options = parser.parse_args()
    try:
        models = environments.Cache(options.work).models([WORKLOAD])
    except environments.SetUpError as error:
        print(f"optimizers.py: {error}", file=sys.stderr)
        return 1
    files = {
        key: models / f"{WORKLOAD}{end}"
        for key, end in (("model", ".onnx"), ("x", ".x.npy"), ("y", ".y.npy"))
    }
    names = list(dict.fromkeys([BASE, *options.only]))
    best = measure(files, names, options.epochs, options.repeats)
    print("| optimizer | step, 1T | beside sgd |\n|---|---|---|")
    for name, seconds in best.items():
        print(f"| {name} | {seconds * 1e6:.2f} µs | {seconds / best[BASE] - 1:+.0%} |")
    entries = [
        result_files.timed("optimizers", name, "onnxgrad", 1, seconds)
        for name, seconds in best.items()
    ]
    result_files.add(options.results, entries, {"onnxgrad": og.__version__})
    missed = [name for name in AIMED if best.get(name, 0) > GOAL * best[BASE]]
    for name in missed:
        print(f"optimizers.py: {name} is more than 25 % over {BASE}", file=sys.stderr)
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
