"""Tables, in Markdown, from the results that run.py stores."""

from __future__ import annotations

import math
import statistics
import typing

import catalogue
import result_files
import workloads

Results = dict[str, typing.Any]  # results.json
Runs = dict[int, Results]  # one system's answers with at least one run, by thread count
LOSS_TOLERANCE = 1e-3
LOAD_TOLERANCE = 0.15  # of a core


def duration(seconds: float) -> str:
    """Three or four digits with the unit that fits."""
    us = seconds * 1e6
    if us < 10:
        return f"{us:.2f} µs"
    if us < 1000:
        return f"{us:.1f} µs"
    return f"{us / 1e3:.2f} ms" if us < 1e5 else f"{us / 1e3:.0f} ms"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, *rows]]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def thread_counts(results: Results) -> list[int]:
    return sorted(int(count) for count in results["threads"])


def measured_workloads(results: Results) -> list[str]:
    return [name for name in workloads.WORKLOADS if name in results["workloads"]]


def systems(results: Results, workload: str) -> list[str]:
    """Every system that took part in a workload, in the order of the catalogue."""
    names = {name for peers in results["workloads"][workload].values() for name in peers}
    return sorted(names, key=lambda name: (catalogue.position(name), name))


def runs_of(results: Results, workload: str, peer: str) -> Runs:
    found = {}
    for threads in thread_counts(results):
        answer = results["workloads"][workload].get(str(threads), {}).get(peer)
        if answer and answer["runs"]:
            found[threads] = answer
    return found


def best_step(results: Results, workload: str, peer: str, threads: int) -> float | None:
    """The shortest time of a run divided by its steps, in seconds."""
    answer = runs_of(results, workload, peer).get(threads)
    if answer is None:
        return None
    return min(run["s"] for run in answer["runs"]) / workloads.WORKLOADS[workload].steps


def summary(results: Results) -> str:
    """One table, workload by system: shortest step time at each thread count."""
    threads, names = thread_counts(results), measured_workloads(results)
    everyone = {peer for name in names for peer in systems(results, name)}
    peers = sorted(
        (peer for peer in everyone if any(runs_of(results, name, peer) for name in names)),
        key=lambda peer: (catalogue.position(peer), peer),
    )
    rows = []
    for name in names:
        row = [name]
        for peer in peers:
            steps = [best_step(results, name, peer, count) for count in threads]
            cells = ["-" if step is None else duration(step) for step in steps]
            row.append("-" if set(cells) == {"-"} else " / ".join(cells))
        rows.append(row)
    title = "step time, " + " / ".join(f"{count}T" for count in threads)
    return markdown([title, *peers], rows)


def reference_loss(results: Results, workload: str) -> float:
    """Median over the other systems of the loss; NaN where there is none to compare with."""
    losses = []
    for peer in systems(results, workload):
        entry = catalogue.PEERS.get(peer)
        if peer == catalogue.RULER or (entry and (not entry.exact or peer == "onnxgrad")):
            continue
        losses += [a["runs"][0]["loss"] for a in runs_of(results, workload, peer).values()]
    return statistics.median(losses) if losses else math.nan


def loss_deviation(results: Results, workload: str, peer: str) -> float:
    """Largest relative distance of a system's loss from `reference_loss`; NaN without one."""
    reference = reference_loss(results, workload)
    if math.isnan(reference):
        return math.nan
    answers = runs_of(results, workload, peer).values()
    losses = [run["loss"] for answer in answers for run in answer["runs"]]
    return max(abs(loss - reference) for loss in losses) / abs(reference)


def loss_cells(results: Results, workload: str, peer: str, runs: Runs) -> list[str]:
    loss = f"{runs[min(runs)]['runs'][0]['loss']:.6g}"
    if peer in catalogue.PEERS and not catalogue.PEERS[peer].exact:
        return [loss, "other algorithm"]
    deviation = loss_deviation(results, workload, peer)
    if math.isnan(deviation):
        return [loss, "-"]
    return [loss, f"{deviation:.0e}" + (" !" if deviation > LOSS_TOLERANCE else "")]


def peer_row(results: Results, workload: str, peer: str, width: int) -> list[str]:
    """The cells of a system's row in a workload's table, or the reason for having none."""
    runs, definition = runs_of(results, workload, peer), workloads.WORKLOADS[workload]
    if not runs:
        answers = [peers.get(peer, {}) for peers in results["workloads"][workload].values()]
        reason = next((a["error"] for a in answers if "error" in a), "not run")
        return [peer, *["-"] * (width - 2), " ".join(reason.replace("|", "/").split())[:120]]
    row = [peer]
    for threads in thread_counts(results):
        if threads not in runs:
            row += ["-", "-"]
            continue
        steps = [run["s"] / definition.steps for run in runs[threads]["runs"]]
        best = min(runs[threads]["runs"], key=lambda run: run["s"])
        disturbed = " ~" if best["others"] > LOAD_TOLERANCE else ""
        row += [duration(min(steps)) + disturbed, duration(statistics.median(steps))]
    first = runs[min(runs)]
    count = "+".join(str(len(answer["runs"])) for answer in runs.values())
    if peer == catalogue.RULER:
        return row + ["-"] * (width - len(row) - 1) + [count]
    last = min(runs[max(runs)]["runs"], key=lambda run: run["s"])
    set_up = first["setup"] + first["first_step"]
    return [
        *row,
        duration(min(run["s"] for run in first["runs"]) / definition.epochs),
        duration(min(run["cpu"] for run in first["runs"]) / definition.steps),
        f"{last['cpu'] / last['s']:.2f}",
        *loss_cells(results, workload, peer, runs),
        f"{first['spawn_to_first_step']:.2f} s",
        f"{set_up:.2f} s",
        f"{max(run['rss_mb'] for run in first['runs']):.0f} MB",
        count,
    ]


def workload_table(results: Results, workload: str) -> str:
    """A heading with the workload's definition, and its table."""
    definition, threads = workloads.WORKLOADS[workload], thread_counts(results)
    head = ["system"]
    for count in threads:
        head += [f"{count}T step min", f"{count}T median"]
    head += [
        f"{threads[0]}T epoch min", f"{threads[0]}T cpu/step min", f"cpu/wall {threads[-1]}T",
        "loss", "rel", "process start to 1st step", "of which set-up + 1st step", "peak RSS",
        "runs",
    ]  # fmt: skip
    peers = systems(results, workload)
    title = (
        f"### {workload}: batch {definition.batch}, {definition.steps} steps = "
        f"{definition.epochs} epochs, {definition.optimizer}"
    )
    rows = [peer_row(results, workload, peer, len(head)) for peer in peers]
    return f"{title}\n\n{markdown(head, rows)}"


def answers(results: Results) -> list[Results]:
    """Every answer with at least one run."""
    return [
        answer
        for name in measured_workloads(results)
        for peer in systems(results, name)
        for answer in runs_of(results, name, peer).values()
    ]


def versions(results: Results) -> dict[str, str]:
    """Version of each system that took part."""
    found = {}
    for name in measured_workloads(results):
        for peer in systems(results, name):
            for answer in runs_of(results, name, peer).values():
                if answer["version"]:
                    found[peer] = answer["version"]
    return dict(sorted(found.items()))


def entries(results: Results) -> list[result_files.Entry]:
    """Shortest steps, set-up with the first step, and peak memory, to be stored."""
    found = []
    for name in measured_workloads(results):
        for peer in systems(results, name):
            for threads, answer in runs_of(results, name, peer).items():
                step = best_step(results, name, peer, threads)
                found.append(result_files.timed("training step", name, peer, threads, step))
                if peer == catalogue.RULER:
                    continue
                set_up = answer["setup"] + answer["first_step"]
                peak = max(run["rss_mb"] for run in answer["runs"])
                found += [
                    result_files.timed("set-up and first step", name, peer, threads, set_up),
                    result_files.Entry("peak memory", name, peer, threads, round(peak), "MB"),
                ]
    return found


def conditions(results: Results) -> str:
    """The machine that the figures were measured on, and the meaning of their marks."""
    others = [run["others"] for answer in answers(results) for run in answer["runs"]]
    used = ", ".join(f"{name} {version}" for name, version in versions(results).items())
    return "\n".join([
        f"- machine: {results['machine']}; {results['system']}; Python {results['python']}",
        f"- date: {results['date']}; threads: "
        + ", ".join(str(count) for count in thread_counts(results)),
        f"- processor time taken by other processes during the runs: median "
        f"{statistics.median(others or [0]):.2f} cores, max {max(others or [0]):.2f}",
        f"- versions: {used}",
        f"- ~ marks a minimum during which others used more than {LOAD_TOLERANCE} of a core "
        "(cpu/step is then the better figure); ! marks a loss that is off by more than "
        f"{LOSS_TOLERANCE:.0e} from the median of the other systems; runs: count per thread number",
    ])  # fmt: skip


def full(results: Results) -> str:
    """The summary, the conditions and every workload's table."""
    tables = [workload_table(results, name) for name in measured_workloads(results)]
    return "\n\n".join([summary(results), conditions(results), *tables]) + "\n"


def marks(name: str) -> tuple[str, str]:
    """What stands before and after the part of a page that a command writes."""
    return f"<!-- begin: {name} -->", f"<!-- end: {name} -->"


def replaced(page: str, name: str, text: str) -> str:
    """Return a page with another text between two marks."""
    begin, end = marks(name)
    if begin not in page or end not in page.split(begin, 1)[1]:
        raise ValueError(f"no '{begin}' followed by '{end}'")
    before, rest = page.split(begin, 1)
    after = rest.split(end, 1)[1]
    return f"{before}{begin}\n\n{text.rstrip()}\n\n{end}{after}"
