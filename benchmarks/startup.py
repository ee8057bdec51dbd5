#!/usr/bin/env python3
"""Start-up time and memory of training w2_mlp with onnxgrad, from a path.

    .venv/bin/python benchmarks/startup.py            # prints the figures
    .venv/bin/python benchmarks/startup.py --check    # exit status 1 if a goal is missed

Spawns `python -c` ten times and reports, from the best start: the time from the spawn to the end of
the first training step (interpreter, imports, data, model, plan and step), the part of it that had
passed after `import numpy` and after `import onnxgrad`, and the peak memory after that step. One
more process trains all epochs and reports the peak memory of the whole. Neither may import the onnx
package.

The goals: 0.15 s to the first step, 60 MB.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import environments
import workloads

WORKLOAD = "w2_mlp"
GOAL_SECONDS, GOAL_MB = 0.15, 60.0
# Arguments: model, x.npy, y.npy, rows, epochs, batch, learning rate, time of the spawn.
PROGRAM = """
import sys, time
import numpy as np
numpy_s = time.time()
import onnxgrad as og
import_s = time.time()
model, x, y, rows, epochs, batch, rate, spawn = sys.argv[1:]
rows, spawn = int(rows), float(spawn)
trainer = og.Trainer(model, loss="squared_error", optimizer=og.optimizers.SGD(float(rate)),
                     threads=1, seed=0)
trainer.fit(np.load(x)[:rows], np.load(y)[:rows], epochs=int(epochs), batch_size=int(batch),
            shuffle=False, verbose=0)
end_s = time.time()
import json, resource
print(json.dumps({
    "numpy_s": numpy_s - spawn, "import_s": import_s - spawn, "end_s": end_s - spawn,
    "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "onnx": sorted(name for name in sys.modules if name.split(".")[0] == "onnx"),
}))
"""


def train(python: str, models: pathlib.Path, rows: int, epochs: int) -> dict:
    """Runs PROGRAM in a separate process; returns its output."""
    workload = workloads.WORKLOADS[WORKLOAD]
    files = [str(models / f"{WORKLOAD}{end}") for end in (".onnx", ".x.npy", ".y.npy")]
    numbers = [rows, epochs, workload.batch, workload.optimizer.rate]
    command = [python, "-c", PROGRAM, *files, *map(str, numbers), repr(time.time())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def problems(best: dict, whole: dict) -> list[str]:
    """The missed goals, one line each."""
    found = []
    for modules in (best["onnx"], whole["onnx"]):
        if modules:
            found.append(f"imported {modules[0]} and {len(modules) - 1} more modules of onnx")
            break
    if best["end_s"] > GOAL_SECONDS:
        found.append(f"first step after {best['end_s']:.3f} s, the goal is {GOAL_SECONDS} s")
    if whole["rss_mb"] > GOAL_MB:
        found.append(f"peak memory {whole['rss_mb']:.0f} MB, the goal is {GOAL_MB:.0f} MB")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a goal is missed")
    parser.add_argument("--work", type=pathlib.Path, default=environments.DEFAULT_CACHE)
    options = parser.parse_args()
    try:
        cache = environments.Cache(options.work)
        models, python = cache.models([WORKLOAD]), cache.python("project")
    except environments.SetUpError as error:
        print(f"startup.py: {error}", file=sys.stderr)
        return 1
    workload = workloads.WORKLOADS[WORKLOAD]
    try:
        starts = [train(python, models, workload.batch, 1) for _ in range(options.starts)]
        whole = train(python, models, workload.rows, workload.epochs)
    except subprocess.CalledProcessError as error:
        print(f"startup.py: training failed, exit status {error.returncode}", file=sys.stderr)
        return 1
    best = min(starts, key=lambda start: start["end_s"])
    times = sorted(start["end_s"] for start in starts)
    print(f"{WORKLOAD}, {options.starts} starts")
    print(f"  process start to end of first step  {times[0]:.3f} s (median "
          f"{times[len(times) // 2]:.3f} s, goal {GOAL_SECONDS} s)")  # fmt: skip
    print(f"    of which until numpy is imported  {best['numpy_s']:.3f} s")
    print(f"    of which import onnxgrad          {best['import_s'] - best['numpy_s']:.3f} s")
    print(f"    of which model, plan, first step  {best['end_s'] - best['import_s']:.3f} s")
    print(f"  peak memory after the first step    {best['rss_mb']:.1f} MB")
    print(f"  peak memory after all {workload.epochs} epochs    {whole['rss_mb']:.1f} MB "
          f"(goal {GOAL_MB:.0f} MB)")  # fmt: skip
    print(f"  modules of onnx imported            {len(best['onnx'])}")
    found = problems(best, whole)
    for line in found:
        print(f"startup.py: {line}", file=sys.stderr)
    return 1 if found and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
