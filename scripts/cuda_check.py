"""Runs the parts of the check of a card and prints their table; started by cuda_check.sh.

Each part is a process with a limit of time; its result is OUT/<part>.json. A part that has one is
not run again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

_CASES_S = 150
_PART_S = 90
_SPEED_S = 60
_WORKLOADS = (
    *("w1_linreg2", "w2_mlp", "w3_mlp784", "w4_cnn", "w5_resnet18", "w6_bert_base_layer"),
    *("w7_causal_lm", "w8_mobilenetv2"),
)


def _rows() -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    return random.normal(size=(256, 16)).astype(np.float32), random.integers(0, 3, 256)


def _fit(root: Path, device: str) -> tuple[dict[str, Any], list[float]]:
    import onnxgrad as og

    trainer = og.Trainer(
        str(root / "mlp.onnx"), loss="softmax_cross_entropy", optimizer="adam", lr=0.01, seed=5,
        device=device,
    )  # fmt: skip
    trainer.fit(*_rows(), epochs=5, batch_size=16, verbose=0)
    return trainer.session.state(), trainer.history["train_loss"]


def traces(root: Path) -> dict[str, Any]:
    """Compare a training with the CPU's, and with itself: the same bits."""
    _, expected = _fit(root, "cpu")
    state, losses = _fit(root, "cuda")
    again, _ = _fit(root, "cuda")
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for name, value in state.items():
        np.testing.assert_array_equal(value, again[name], err_msg=name)
    return {"losses": list(losses), "losses of the CPU": list(expected)}


def arrays(_root: Path) -> dict[str, Any]:
    """Send arrays to the card and back."""
    from onnxgrad import devices

    X, _ = _rows()
    there = devices.to_device(X, "cuda")
    np.testing.assert_array_equal(np.asarray(there), X)
    return {"devices": [device.name for device in devices.available()]}


def errors(root: Path) -> dict[str, Any]:
    """Ask for a card that is not there; the next session works."""
    import onnxgrad as og

    try:
        og.TrainingSession(str(root / "mlp.onnx"), loss="softmax_cross_entropy", device="cuda:99")
    except og.DeviceError as error:
        said = str(error)
    else:
        raise AssertionError("cuda:99 is there")
    session = og.InferenceSession(str(root / "mlp.onnx"), device="cuda")
    session.run(None, {"X": _rows()[0]})
    return {"message": said}


def cases(root: Path) -> dict[str, Any]:
    """Run the operators' cases, float32 on the card beside float64."""
    processes = [
        subprocess.Popen(
            [root / "onnxgrad_ops_test", "--gtest_brief=1", "--gtest_filter=Cuda/*"],
            env={
                **os.environ,
                "GTEST_TOTAL_SHARDS": str(_shards() * _share()),
                "GTEST_SHARD_INDEX": str(shard * _share()),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for shard in range(_shards())
    ]
    said = [process.communicate()[0] for process in processes]
    passed = sum(int(count) for text in said for count in re.findall(r"PASSED  \] (\d+)", text))
    failed = [name for text in said for name in re.findall(r"FAILED  \] (\S+), where", text)]
    if failed or not passed or any(process.returncode for process in processes):
        raise AssertionError(f"{passed} cases passed, these failed: {failed[:40]}")
    return {"cases": passed}


def _shards() -> int:
    return min(os.cpu_count() or 1, 8)


def _share() -> int:
    """Return the n of 'every nth case': for rehearsals on the stand-ins."""
    return int(os.environ.get("ONNXGRAD_CHECK_SHARE", "1"))


def speed(root: Path, workload: str) -> dict[str, Any]:
    """Time a workload of benchmarks/peers by each library that is here."""
    times: dict[str, Any] = {}
    sys.path.insert(0, str(root / "peers"))
    peer_onnxgrad = importlib.import_module("peer_onnxgrad")
    worker = importlib.import_module("worker")
    workloads = importlib.import_module("workloads")

    folder = Path.cwd()
    program = [sys.executable, str(root / "peers/workloads.py"), str(folder), workload]
    subprocess.run(program, check=True)
    data = workloads.load_data(folder, workload)
    os.environ["ONNXGRAD_DEVICE"] = "cuda"
    for kind in ("onnxgrad", "onnxgrad-bf16"):
        peer = peer_onnxgrad.Peer(worker.Task(kind, workload, 1, folder, *data))
        began = time.perf_counter()
        peer.first()
        times[f"{kind}, first step s"] = time.perf_counter() - began
        peer.run()
        began = time.perf_counter()
        peer.run()
        steps = peer.task.workload.steps
        times[f"{kind}, us a step"] = (time.perf_counter() - began) / steps * 1e6
    return times


def _run(out: Path, root: Path, part: str, limit_s: int) -> dict[str, Any]:
    file = out / f"{part.replace(':', '-')}.json"
    if file.exists():
        return dict(json.loads(file.read_text()))
    folder = out / "work"
    folder.mkdir(exist_ok=True)
    began = time.perf_counter()
    command = [sys.executable, __file__, "--root", str(root), "--out", str(out), "--part", part]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False
        )
        worked = done.returncode == 0
        values = json.loads(done.stdout.splitlines()[-1]) if worked else done.stderr[-2000:]
    except subprocess.TimeoutExpired:
        worked, values = False, f"not finished in {limit_s} s"
    result = {"part": part, "passed": worked, "values": values}
    result["seconds"] = round(time.perf_counter() - began, 1)
    file.write_text(json.dumps(result, indent=1))
    return result


def main() -> int:
    """Run all parts, or the given one; return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="")
    given = parser.parse_args()
    if given.part:
        name, _, workload = given.part.partition(":")
        values = speed(given.root, workload) if workload else globals()[name](given.root)
        print(json.dumps(values))
        return 0
    limits = {"cases": _CASES_S, "traces": _PART_S, "arrays": _PART_S, "errors": _PART_S}
    limits |= {f"speed:{workload}": _SPEED_S for workload in _WORKLOADS}
    results = []
    for part, limit_s in limits.items():
        result = _run(given.out, given.root, part, limit_s)
        results.append(result)
        last = str(result["values"]).strip().splitlines()[-1][:160]
        mark = "passed" if result["passed"] else "FAILED"
        print(f"{part:28} {mark} {result['seconds']:7} s  {last}", flush=True)
    (given.out / "results.json").write_text(json.dumps(results, indent=1))
    return int(not all(result["passed"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
