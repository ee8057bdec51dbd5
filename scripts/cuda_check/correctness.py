"""Numbers, errors and arrays of a card: the first part of the check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from cases import Cases

_DEVICE = "cuda"
_LIBRARIES = ("libcuda.", "libnvrtc.", "libcublasLt.", "libcudnn.")
# Every nth case: for rehearsals on stand-ins of the libraries.
_SHARE = int(os.environ.get("ONNXGRAD_CHECK_SHARE", "1"))


def run(name: str, root: Path, out: Path) -> dict[str, Any]:
    """Run an item; return what is worth keeping. Raises what is wrong."""
    if name.startswith("cases:"):
        return _shard(int(name.partition(":")[2]), root, out)
    function = globals()[f"_{name}"]
    return dict(function(root, out) if name == "cases" else function(root))


def _rows() -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    return random.normal(size=(256, 16)).astype(np.float32), random.integers(0, 3, 256)


def _libraries(_root: Path) -> dict[str, Any]:
    """Use a card once, and say which libraries serve it."""
    import onnxgrad as og
    from onnxgrad import devices

    there = [device.name for device in devices.available()]
    if "cuda:0" not in there:
        devices.to_device(np.zeros(1, np.float32), _DEVICE)  # says why
    began = time.perf_counter()
    devices.to_device(np.zeros(1, np.float32), _DEVICE)
    opened = time.perf_counter() - began
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split()[-1] for line in lines if "/" in line}
    loaded = sorted(path for path in mapped if any(name in path for name in _LIBRARIES))
    return {"onnxgrad": og.__version__, "devices": there, "open s": opened, "loaded": loaded}


def _fit(root: Path, device: str, optimizer: str = "adam", seed: int = 5) -> Any:
    import onnxgrad as og

    trainer = og.Trainer(
        str(root / "models/mlp.onnx"),
        loss="softmax_cross_entropy",
        optimizer=optimizer,
        lr=0.01,
        seed=seed,
        device=device,
    )
    trainer.fit(*_rows(), epochs=5, batch_size=16, verbose=0)
    return trainer


def _traces(root: Path) -> dict[str, Any]:
    """Compare the losses and weights of trainings with the CPU's."""
    losses = {}
    for optimizer in ("sgd", "adam", "adamw"):
        expected, given = _fit(root, "cpu", optimizer), _fit(root, _DEVICE, optimizer)
        losses[optimizer] = list(given.history["train_loss"])
        np.testing.assert_allclose(losses[optimizer], expected.history["train_loss"], rtol=1e-4)
        weights = given.session.weights
        for name, value in expected.session.weights.items():
            np.testing.assert_allclose(weights[name], value, rtol=2e-3, atol=2e-5, err_msg=name)
    return {"losses": losses}


def _determinism(root: Path) -> dict[str, Any]:
    """Train twice: all states have the same bits."""
    first, second = (_fit(root, _DEVICE).session.state() for _ in range(2))
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    return {"states": len(first)}


def _arrays(root: Path) -> dict[str, Any]:
    """Send arrays to the card and back, and to other libraries without a copy (DLPack)."""
    import onnxgrad as og
    from onnxgrad import devices

    X, _ = _rows()
    there = devices.to_device(X, _DEVICE)
    np.testing.assert_array_equal(np.asarray(there), X)
    if there.__dlpack_device__()[0] != 2:
        raise AssertionError(f"DLPack's device is {there.__dlpack_device__()}, expected (2, ...)")
    session = og.InferenceSession(str(root / "models/mlp.onnx"), device=_DEVICE)
    feeds = {session.get_inputs()[0].name: there}
    kept = session.run(None, feeds, to_host=False)[0]
    host = session.run(None, feeds)[0]
    np.testing.assert_array_equal(np.asarray(kept), host)
    found = ["numpy"]
    try:
        import torch
    except ImportError:
        return {"libraries": found}
    if torch.cuda.is_available():
        borrowed = torch.from_dlpack(kept)
        np.testing.assert_array_equal(borrowed.cpu().numpy(), host)
        given = torch.from_numpy(X).cuda() * 1  # work of its stream, which ours waits for
        feeds = {session.get_inputs()[0].name: given}
        np.testing.assert_array_equal(session.run(None, feeds)[0], host)
        found.append(f"torch {torch.__version__}")
    return {"libraries": found}


def _errors(root: Path) -> dict[str, Any]:
    """Ask for what is not there, and give indices out of range; the next call works."""
    import onnxgrad as og

    path = str(root / "models/mlp.onnx")
    said = {}
    for device, options in (("cuda:99", {}), (_DEVICE, {"memory_limit": 1})):
        try:
            og.TrainingSession(path, loss="softmax_cross_entropy", device=device, **options)
        except (og.DeviceError, og.OptionError, MemoryError) as error:
            said[device] = str(error).splitlines()[0]
        else:
            raise AssertionError(f"no error on {device} with {options}")
    trainer = _fit(root, _DEVICE)
    X, y = _rows()
    try:
        trainer.fit(X, np.where(y == 1, 77, y), epochs=1, batch_size=16, verbose=0)
    except og.Error as error:
        said["label 77"] = str(error).splitlines()[0]
    else:
        raise AssertionError("no error for a label that is out of range")
    trainer.fit(X, y, epochs=1, batch_size=16, verbose=0)
    return {"messages": said}


def _shard(shard: int, root: Path, out: Path) -> dict[str, Any]:
    """Check a share of the cases; each result is a line of a file, and is not computed again."""
    file = out / "correctness" / f"cases-{shard}.jsonl"
    done = _results(out)
    cases = Cases(root / "cases")
    ends = float(os.environ["ONNXGRAD_CHECK_ENDS"])
    with file.open("a") as log:
        for entry in cases.entries[::_SHARE][shard :: _shards()]:
            if entry["name"] in done:
                continue
            if time.time() > ends:
                break
            log.write(json.dumps([entry["name"], cases.check(entry, _DEVICE)]) + "\n")
            log.flush()
    return {}


def _results(out: Path) -> dict[str, str]:
    """Return what is wrong with each case that has been run, "" for nothing."""
    files = sorted((out / "correctness").glob("cases-*.jsonl"))
    return dict(json.loads(line) for file in files for line in file.read_text().splitlines())


def _shards() -> int:
    return min(os.cpu_count() or 1, 8)


def _cases(root: Path, out: Path) -> dict[str, Any]:
    """Run the operators' cases, float32 on the card beside stored float64."""
    program = [sys.executable, str(root / "cuda_check/item.py"), "correctness"]
    processes = [
        subprocess.Popen([*program, f"cases:{shard}", str(root), str(out)])
        for shard in range(_shards())
    ]
    for process in processes:
        if process.wait() != 0:
            raise AssertionError(f"a process of the cases ended with status {process.returncode}")
    found = _results(out)
    wanted = len(Cases(root / "cases").entries[::_SHARE])
    failed = {name: text for name, text in found.items() if text}
    if failed:
        shown = [f"{name}: {text}" for name, text in sorted(failed.items())[:40]]
        raise AssertionError(f"{len(failed)} of {len(found)} cases failed:\n" + "\n".join(shown))
    return {"cases": len(found), "of": wanted, "goes on": len(found) < wanted}
