#!/usr/bin/env python3
"""Trains the workloads with onnxgrad and the systems people use today; prints one table.

    benchmarks/peers/run.py                          # the default set, peers without torch
    PEERS=all benchmarks/peers/run.py                # with torch (its environment takes 5.6 GB)
    PEERS=onnxgrad,jax-scan benchmarks/peers/run.py  # these two
    benchmarks/peers/run.py --workloads w2_mlp --threads 1,2
    benchmarks/peers/run.py --table ~/.cache/onnxgrad/peers/results.json

Environments, models and results are made in a cache folder on the first call. Method, figures'
meaning and how to add a system: README.md beside this file.

Exit status: 0, also where a peer could not run (its row says why); 1 if onnxgrad was asked for and
failed or its loss is off; 2 for a wrong option or name.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shlex
import sys
import time

import catalogue
import environments
import measure
import report
import result_files


def thread_list(text: str) -> list[int]:
    counts = [int(count) for count in text.split(",")]
    if not counts or min(counts) < 1:
        raise ValueError(text)
    return counts


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", help="list, or all; default: w1_linreg2, w2, w3, w4")
    parser.add_argument(
        "--peers", default=os.environ.get("PEERS"), help="list, or all; default: $PEERS"
    )
    parser.add_argument("--threads", type=thread_list, default=[1], help="list; default 1")
    parser.add_argument("--repeats", type=int, default=0, help="timed runs; default 5 to 7")
    parser.add_argument(
        "--starts", type=int, default=3, help="starts of a process; the best counts"
    )
    parser.add_argument(
        "--patience", type=float, default=300,
        help="seconds that may be spent, in all, on waiting for a quiet machine",
    )  # fmt: skip
    parser.add_argument(
        "--extra", action="append", default=[], metavar="NAME=COMMAND", help="a further system"
    )
    parser.add_argument(
        "--merge", action="store_true",
        help="keep earlier results and add the new runs to them (onnxgrad's are replaced)",
    )  # fmt: skip
    parser.add_argument("--work", type=pathlib.Path, default=environments.DEFAULT_CACHE)
    parser.add_argument("--python", default=sys.executable, help="makes the environments")
    parser.add_argument("--json", type=pathlib.Path, help="results; default WORK/results.json")
    parser.add_argument("--table", type=pathlib.Path, help="print a results file, measure nothing")
    result_files.add_option(parser)
    options = parser.parse_args(arguments)
    try:
        options.workloads = catalogue.choose_workloads(options.workloads)
        options.peers = catalogue.choose_peers(options.peers)
    except catalogue.UsageError as error:
        parser.error(str(error))
    if any("=" not in text for text in options.extra):
        parser.error("--extra takes NAME=COMMAND")
    if options.starts < 1:
        parser.error("--starts takes a number from 1 on")
    return options


def merged(old: measure.Answer | None, new: measure.Answer, peer: str) -> measure.Answer:
    """A system's earlier answer with the new runs; what the project's own code did is replaced."""
    entry = catalogue.PEERS.get(peer)
    if old is None or not old["runs"] or (entry and entry.environment == "project"):
        return new
    if not new["ok"]:
        return old
    runs = old["runs"] + new["runs"]
    faster = new.get("spawn_to_first_step", 0.0) < old.get("spawn_to_first_step", 0.0)
    cold = entry is not None and entry.compiles  # the first start is the one with empty caches
    return dict(new if faster and not cold else old, runs=runs)


def measure_all(options: argparse.Namespace, path: pathlib.Path) -> report.Results:
    """Measures, storing the results after each workload and thread count."""
    cache = environments.Cache(options.work, options.python)
    extra = {name: shlex.split(text) for name, text in (e.split("=", 1) for e in options.extra)}
    settings = measure.Settings(
        cache, cache.models(options.workloads), cache.inductor(keep=options.merge),
        [*options.peers, *extra], extra, options.repeats, options.starts, options.patience,
    )  # fmt: skip
    results: report.Results = {
        "machine": result_files.machine(), "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(), "date": time.strftime("%Y-%m-%d %H:%M"),
        "threads": [str(count) for count in options.threads], "workloads": {},
    }  # fmt: skip
    if options.merge and path.exists():
        old = json.loads(path.read_text())
        results["workloads"] = old["workloads"]
        results["threads"] = sorted({*old["threads"], *results["threads"]})
        results["date"] = f"{old['date'].split(' to ')[0]} to {results['date']}"
    for workload in options.workloads:
        for threads in options.threads:
            by_thread = results["workloads"].setdefault(workload, {})
            known = by_thread.setdefault(str(threads), {})
            for peer, answer in measure.measure(settings, workload, threads).items():
                known[peer] = merged(known.get(peer), answer, peer)
            path.write_text(json.dumps(results, indent=1) + "\n")
    return results


def own_failures(results: report.Results, names: list[str]) -> list[str]:
    """One line for each workload that onnxgrad failed to train, or trained to another loss."""
    lines = []
    for name in names:
        if not report.runs_of(results, name, "onnxgrad"):
            lines.append(f"onnxgrad did not train {name}: the table says why")
        elif report.loss_deviation(results, name, "onnxgrad") > report.LOSS_TOLERANCE:
            lines.append(f"onnxgrad's loss on {name} is not that of the others")
    return lines


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    failures: list[str] = []
    if options.table:
        results = json.loads(options.table.read_text())
    else:
        try:
            path = options.json or environments.Cache(options.work).results
            results = measure_all(options, path)
        except environments.SetUpError as error:
            print(f"run.py: {error}", file=sys.stderr)
            return 1
        if "onnxgrad" in options.peers:
            failures = own_failures(results, options.workloads)
    print(report.full(results))
    result_files.add(options.results, report.entries(results), report.versions(results))
    for line in failures:
        print(f"run.py: {line}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
