"""The peers' workloads, driver and tables; nothing here trains or makes an environment."""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "benchmarks" / "peers"

# Of every initializer, X and y: name or position, dtype, shape and bytes.
DIGESTS = {
    "w1_linreg2": "13e294505543c505",
    "w2_mlp": "7d00aa4ec2692999",
    "w3_mlp784": "7631c84a274e6ea0",
    "w4_cnn": "c8517df4ed23a2a0",
}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that imports a module of benchmarks/peers, undone after the test."""
    monkeypatch.syspath_prepend(str(PEERS))
    before = set(sys.modules)

    def load_module(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(PEERS)):
            del sys.modules[name]


def digest(arrays: dict[str, np.ndarray]) -> str:
    total = hashlib.sha256()
    for name, array in arrays.items():
        total.update(f"{name} {array.dtype.str} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def workload_digest(workloads: ModuleType, folder: Path, name: str) -> str:
    inputs, targets = workloads.load_data(folder, name)
    return digest({**workloads.load_weights(folder, name), "x": inputs, "y": targets})


@pytest.mark.parametrize("name", DIGESTS)
def test_workload_is_what_was_measured(load: Any, tmp_path: Path, name: str) -> None:
    workloads = load("workloads")
    workloads.generate(tmp_path, [name])
    assert workload_digest(workloads, tmp_path, name) == DIGESTS[name]


def test_files_agree(load: Any, tmp_path: Path) -> None:
    """The ONNX file, the weights beside it and the index hold the same."""
    import onnx
    from onnx import numpy_helper

    workloads = load("workloads")
    workloads.generate(tmp_path, ["w2_mlp"])
    model = onnx.load(tmp_path / "w2_mlp.onnx")
    stored = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    weights = workloads.load_weights(tmp_path, "w2_mlp")
    assert list(stored) == list(weights)
    for name, value in weights.items():
        np.testing.assert_array_equal(stored[name], value)
    assert workloads.load_trainable(tmp_path, "w2_mlp") == list(weights)
    properties = {item.key: item.value for item in model.metadata_props}
    assert properties["trainable"] == "W0,B0,W1,B1,W2,B2"
    assert json.loads((tmp_path / "workloads.json").read_text())["w2_mlp"]["steps"] == 5000


def test_last_epoch_loss(load: Any) -> None:
    last = load("worker").last_epoch_loss
    assert last([4.0, 2.0, 3.0, 1.0], 2) == 2.0  # per step
    assert last([4.0, 2.0], 2) == 2.0  # per epoch
    assert last([7.0], 2) == 7.0  # the last one alone


def run(seconds: float, loss: float, others: float = 0.0) -> dict[str, Any]:
    return {
        "ok": True,
        "s": seconds,
        "cpu": seconds,
        "loss": loss,
        "rss_mb": 55.4,
        "others": others,
    }


def canned() -> dict[str, Any]:
    """Results of w2_mlp (5000 steps) as run.py stores them."""
    start = {"ok": True, "setup": 0.01, "first_step": 0.02, "spawn_to_first_step": 0.125}
    ruler = {"ok": True, "s": 0.025, "cpu": None, "others": 0.0}
    peers = {
        "jax-scan": dict(start, version="0.10.2", runs=[run(0.07, 48.06, 0.5), run(0.08, 48.06)]),
        "floor-xsmm": {"ok": True, "version": "", "runs": [ruler]},
        "sklearn": dict(start, version="1.9.1", runs=[run(0.4, 48.06), run(0.5, 48.06)]),
        "onnxgrad": dict(start, version="0.1.0", runs=[run(0.03, 48.2), run(0.04, 48.2)]),
        "ort-api": {"ok": False, "error": "died: no\n module | x", "runs": []},
    }
    return {
        "machine": "a processor", "system": "Linux", "python": "3.11.7", "threads": ["1"],
        "date": "2026-11-21 14:38", "workloads": {"w2_mlp": {"1": peers}},
    }  # fmt: skip


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_summary_from_stored_results(load: Any) -> None:
    lines = load("report").summary(canned()).splitlines()
    assert cells(lines[0]) == ["step time, 1T", "onnxgrad", "sklearn", "jax-scan", "floor-xsmm"]
    assert cells(lines[2]) == ["w2_mlp", "6.00 µs", "80.0 µs", "14.0 µs", "5.00 µs"]


def test_workload_table_from_stored_results(load: Any) -> None:
    report = load("report")
    lines = report.workload_table(canned(), "w2_mlp").splitlines()
    assert lines[0] == "### w2_mlp: batch 15, 5000 steps = 100 epochs, sgd, rate 1e-05"
    assert len({len(cells(line)) for line in lines[2:]}) == 1
    rows = {cells(line)[0]: cells(line)[1:] for line in lines[4:]}
    assert list(rows) == ["onnxgrad", "sklearn", "ort-api", "jax-scan", "floor-xsmm"]
    # The loss of the project's own row is compared with the median of the others.
    assert rows["onnxgrad"] == [
        "6.00 µs", "7.00 µs", "300.0 µs", "6.00 µs", "1.00", "48.2", "3e-03 !", "0.12 s", "0.03 s",
        "55 MB", "2",
    ]  # fmt: skip
    assert rows["jax-scan"][0] == "14.0 µs ~"  # measured while others used the machine
    assert rows["jax-scan"][6] == "0e+00"
    assert rows["ort-api"][-1] == "died: no module / x"
    assert rows["floor-xsmm"] == ["5.00 µs", "5.00 µs", *["-"] * 8, "1"]


def test_durations(load: Any) -> None:
    duration = load("report").duration
    shown = [duration(value) for value in (1.8e-7, 3.12e-5, 1.547e-2, 1.066)]
    assert shown == ["0.18 µs", "31.2 µs", "15.47 ms", "1066 ms"]


def test_text_between_marks_is_replaced(load: Any) -> None:
    report = load("report")
    begin, end = report.marks("table")
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    for _ in range(2):
        page = report.replaced(page, "table", "new\n")
        assert page == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    with pytest.raises(ValueError, match="begin: table"):
        report.replaced("no marks", "table", "new")


def test_stored_entries_of_a_run(load: Any) -> None:
    report, files = load("report"), load("result_files")
    entries = {entry.key: (entry.value, entry.unit) for entry in report.entries(canned())}
    assert entries["training step", "w2_mlp", "onnxgrad", 1] == (6.0, "µs")
    assert entries["set-up and first step", "w2_mlp", "onnxgrad", 1] == (30.0, "ms")
    assert entries["peak memory", "w2_mlp", "onnxgrad", 1] == (55, "MB")
    assert not [key for key in entries if key[2] == "ort-api"]
    assert report.versions(canned())["jax-scan"] == "0.10.2"
    shown = [files.timed("", "", "", 1, seconds) for seconds in (2.7e-8, 1.234567e-4, 0.25, 4)]
    assert [(entry.value, entry.unit) for entry in shown] == [
        (27.0, "ns"), (123.5, "µs"), (250.0, "ms"), (4.0, "s"),
    ]  # fmt: skip


def test_a_new_run_replaces_what_it_measures_again(load: Any, tmp_path: Path) -> None:
    files, path = load("result_files"), tmp_path / "a.json"

    def entry(system: str, value: float) -> Any:
        return files.Entry("training step", "w2_mlp", system, 1, value, "µs")

    files.add(path, [entry("onnxgrad", 3.0), entry("torch-eager, the faster layout", 9.0)], {})
    files.add(path, [entry("torch-eager", 8.0)], {"torch": "2.15"})
    files.add(None, [entry("onnxgrad", 1.0)], {})
    found = files.read(path)
    assert [(e.system, e.value) for e in found.entries()] == [
        ("onnxgrad", 3.0), ("torch-eager", 8.0),
    ]  # fmt: skip
    assert [run.versions for run in found.runs] == [{}, {"torch": "2.15"}]
    files.add(path, [entry("onnxgrad", 2.0)], {})
    assert [e.value for e in files.read(path).entries()] == [8.0, 2.0]
    assert files.text_of(files.read(path)) == path.read_text(encoding="utf-8")


def test_the_page_has_the_stored_results() -> None:
    script = PEERS.parent / "results_page.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_merging_adds_runs_but_replaces_the_projects_own(load: Any) -> None:
    driver = load("run")
    old = {"ok": True, "spawn_to_first_step": 2.0, "runs": [run(1.0, 1.0)]}
    new = {"ok": True, "spawn_to_first_step": 1.0, "runs": [run(2.0, 1.0)]}
    failed = {"ok": False, "error": "died", "runs": []}
    both = driver.merged(old, new, "jax-jit")
    assert [item["s"] for item in both["runs"]] == [1.0, 2.0]
    assert both["spawn_to_first_step"] == 1.0
    assert driver.merged(old, failed, "jax-jit") is old
    assert driver.merged(old, new, "onnxgrad") is new
    assert driver.merged(old, failed, "onnxgrad") is failed
    # The start that counts for a compiler is the one with empty caches.
    assert driver.merged(old, new, "torch-compile")["spawn_to_first_step"] == 2.0


def test_own_failures_are_reported(load: Any) -> None:
    driver, results = load("run"), canned()
    assert driver.own_failures(results, ["w2_mlp"]) == [
        "onnxgrad's loss on w2_mlp is not that of the others"
    ]
    results["workloads"]["w2_mlp"]["1"]["onnxgrad"]["runs"] = [run(0.03, 48.061)]
    assert driver.own_failures(results, ["w2_mlp"]) == []
    results["workloads"]["w2_mlp"]["1"]["onnxgrad"]["runs"] = []
    assert driver.own_failures(results, ["w2_mlp"]) == [
        "onnxgrad did not train w2_mlp: the table says why"
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workloads", "w2_mpl"], "unknown workload 'w2_mpl': did you mean w2_mlp"),
        (["--peers", "jaxscan"], "unknown peer 'jaxscan': did you mean jax-scan"),
        (["--workloads", ","], "no workload named"),
        (["--threads", "0"], "invalid thread_list value"),
        (["--extra", "engine"], "--extra takes NAME=COMMAND"),
    ],
)
def test_wrong_names_end_with_status_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    command = [sys.executable, str(PEERS / "run.py"), "--work", str(tmp_path / "work"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "work").exists()


def test_choice_of_peers(load: Any) -> None:
    catalogue = load("catalogue")
    default = catalogue.choose_peers(None)
    assert default[0] == "onnxgrad"
    assert not [name for name in default if name.startswith("torch")]
    assert catalogue.choose_peers("all") == catalogue.ORDER
    assert catalogue.choose_peers("jax-jit, onnxgrad") == ["jax-jit", "onnxgrad"]
    assert catalogue.trains("sklearn", "w3_mlp784")
    assert not catalogue.trains("sklearn", "w4_cnn")
    assert catalogue.trains("an-extra-one", "w4_cnn")
    assert [name for name in load("workloads").WORKLOADS if catalogue.trains("floor-xsmm", name)] \
        == ["w2_mlp"]  # fmt: skip


def test_worker_reads_only_what_a_peer_asks_for() -> None:
    """The frame of a peer process imports neither NumPy nor onnx."""
    program = (
        f"import sys; sys.path.insert(0, {str(PEERS)!r}); import worker; "
        "print(sorted({'numpy', 'onnx', 'sklearn'} & set(sys.modules)))"
    )
    command = [sys.executable, "-I", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
