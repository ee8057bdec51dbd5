"""Times of onnxgrad on a card: steps, the first one without and with caches, memory, kernels."""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tasks import TYPES, Log, task

_SLICE_S = float(os.environ.get("ONNXGRAD_CHECK_SLICE_S", "0.3"))


def run(name: str, root: Path, out: Path) -> dict[str, Any]:
    """Measure a workload in all types, each in processes of their own."""
    workload, *one = name.split(":")
    if one:
        return _measure(workload, one[0], one[1] == "cold", root, out)
    log = Log(out / "speed" / f"{workload}.jsonl", float(os.environ["ONNXGRAD_CHECK_ENDS"]))
    for kind in TYPES:
        images = out / "work" / "images" / f"{workload}-{kind}"
        for caches in ("cold", "warm"):
            if caches == "cold":
                shutil.rmtree(images, ignore_errors=True)
            program = [sys.executable, str(root / "cuda_check/item.py"), "speed"]
            program += [f"{workload}:{kind}:{caches}", str(root), str(out)]

            def measure(program: list[str] = program, images: Path = images) -> dict[str, Any]:
                environment = {**os.environ, "ONNXGRAD_CUDA_CACHE": str(images)}
                done = subprocess.run(
                    program, env=environment, capture_output=True, text=True, check=False
                )
                if done.returncode != 0:
                    raise RuntimeError(done.stderr.strip().splitlines()[-1])
                return dict(json.loads(done.stdout.splitlines()[-1]))

            log.add((workload, caches, kind), 3, measure)
    wrong = [row["error"] for row in log.rows if "error" in row]
    if wrong:
        raise AssertionError("; ".join(sorted(set(wrong))))
    steps = {row["type"]: row.get("us") for row in log.rows if row["variant"] == "cold"}
    return {"us a step": steps, "goes on": log.goes_on}


def _free_bytes() -> int:
    """Return the free bytes of the card that this thread uses."""
    folders = os.environ.get("ONNXGRAD_CUDA_PATH", "").split(":")
    for path in ["libcuda.so.1", *(f"{folder}/libcuda.so.1" for folder in folders if folder)]:
        try:
            driver = ctypes.CDLL(path)
        except OSError:
            continue
        free, all_bytes = ctypes.c_size_t(), ctypes.c_size_t()
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(all_bytes))
        return free.value
    raise RuntimeError("libcuda.so.1 was not found")


def _measure(workload: str, kind: str, is_cold: bool, root: Path, out: Path) -> dict[str, Any]:
    """Train a workload: the time of the first step, then of the following ones."""
    os.environ["ONNXGRAD_DEVICE"] = "cuda"
    import numpy as np
    import peer_onnxgrad

    import onnxgrad as og
    from onnxgrad import devices

    if kind == "tf32" and "math" not in inspect.signature(og.Trainer).parameters:
        return {"absent": "no option math"}
    one = task(workload, "onnxgrad-bf16" if kind == "bf16" else "onnxgrad", root, out)
    devices.to_device(np.zeros(1, np.float32), "cuda")
    before = _free_bytes()
    began = time.perf_counter()
    peer = peer_onnxgrad.Peer(one) if kind != "tf32" else _tf32(peer_onnxgrad, one)
    peer.first()
    values: dict[str, Any] = {"first_s": time.perf_counter() - began}
    if not is_cold:
        return values
    # Epochs that take a slice of time, and three times as many: the difference is free of what a
    # fit takes at its beginning and end.
    rows, epochs = one.workload.rows, 1
    peer.fit(rows, 2)
    while True:
        began = time.perf_counter()
        peer.fit(rows, epochs)
        took = time.perf_counter() - began
        if took > _SLICE_S or epochs > 10_000:
            break
        epochs *= 4
    steps = -(-rows // one.workload.batch)
    times = []
    for _ in range(3):
        spans = []
        for count in (epochs, 3 * epochs):
            began = time.perf_counter()
            peer.fit(rows, count)
            spans.append(time.perf_counter() - began)
        times.append((spans[1] - spans[0]) / (2 * epochs * steps) * 1e6)
    values["us"] = sorted(times)[1]
    values["us_with_fit"] = took / (epochs * steps) * 1e6
    values["memory_mb"] = (before - _free_bytes()) / 1e6
    summary = peer.trainer.session.plan_summary()
    values["kernels"] = len(summary.splitlines())
    return values


def _tf32(peer_onnxgrad: Any, one: Any) -> Any:
    import functools

    import onnxgrad as og

    trainer = og.Trainer
    og.Trainer = functools.partial(trainer, math="tf32")  # type: ignore[misc, assignment]
    try:
        return peer_onnxgrad.Peer(one)
    finally:
        og.Trainer = trainer  # type: ignore[misc]
