"""Runs the C++ test tool that imports, upgrades and converts models (src/onnx/testing)."""

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import onnxruntime as ort

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/data/models"

ort.set_default_logger_severity(4)


def tool_path() -> Path:
    build = Path(os.environ.get("ONNXGRAD_BUILD_DIR", ROOT / "build/release"))
    return build / "src/onnx/onnxgrad_onnx_tool"


def run_tool(jobs: list[tuple[str, Path, Path]]) -> list[str]:
    """Run (what, in, out) jobs; one "ok" or error text per job."""
    lines = "".join(f"{what} {source} {target}\n" for what, source, target in jobs)
    done = subprocess.run(
        [tool_path()], input=lines, capture_output=True, text=True, check=True, timeout=600
    )
    results = done.stdout.splitlines()
    assert len(results) == len(jobs), done.stderr
    return results


def convert(what: str, model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    source, target = folder / "source.onnx", folder / "target.onnx"
    source.write_bytes(model.SerializeToString())
    (result,) = run_tool([(what, source, target)])
    if result != "ok":
        raise ValueError(result)
    return onnx.load(target)


def run_ort(model: onnx.ModelProto | Path, feeds: dict[str, np.ndarray]) -> list:
    """Outputs of stock onnxruntime without graph optimisation."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def run_reference(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list:
    """Outputs of ONNX's reference evaluator."""
    return onnx.reference.ReferenceEvaluator(model).run(None, feeds)


def assert_same(got: list, want: list, tolerance: float = 1e-6) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        if isinstance(b, list):  # sequences of dictionaries
            assert [sorted(row) for row in a] == [sorted(row) for row in b]
            a = np.array([[row[k] for k in sorted(row)] for row in a])
            b = np.array([[row[k] for k in sorted(row)] for row in b])
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)


def npz_feeds(name: str, *, with_label: bool = False) -> dict[str, np.ndarray]:
    """First batch of the reference values of a model of tests/data/models."""
    with np.load(MODELS / f"{name}.npz", allow_pickle=False) as data:
        return {
            key[3:]: data[key]
            for key in data.files
            if key.startswith("in/") and (with_label or key != "in/label")
        }
