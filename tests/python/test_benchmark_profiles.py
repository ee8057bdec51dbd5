"""The tables of benchmarks/profiles.py."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """A function that imports a module of benchmarks, undone after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.fixture
def profiles(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("profiles")


@pytest.mark.parametrize(
    ("op_type", "kernel", "kind"),
    [
        ("Gemm", "tiles AVX3 2048x128x128", "products"),
        ("GemmWeightUpdate", "adam [8, 8] + tiles", "weight gradients of products, with updates"),
        ("Conv", "winograd 3x3, all weights", "convolutions, forward, Winograd"),
        ("ConvChain", "3 images at a time: depthwise rows", "convolutions, forward, in chains"),
        ("ConvTranspose", "depthwise rows", "convolutions, input gradient, depthwise"),
        ("ConvWeightGrad__k3x3", "channels of 32 columns", "convolutions, weight gradient, others"),
        ("ConvDescent", "winograd 3x3, descent", "convolutions, weight gradient, Winograd"),
        ("AttentionGradient", "32 of 128x128x64", "attention, gradient"),
        ("WeightUpdate__momentum_0", "momentum [384]", "updates of weights"),
        ("Expand", "strided copy", "other kernels"),
    ],
)
def test_a_kernel_has_one_row(profiles: ModuleType, op_type: str, kernel: str, kind: str) -> None:
    assert profiles.kind_of(op_type, kernel) == kind


def test_a_table_adds_up(profiles: ModuleType) -> None:
    """Short kinds are one row; shares and rates are those of their own thread count."""
    one = {"products": (2e-3, 2e8), "pooling": (1e-5, 0.0), "embeddings": (5e-6, 0.0)}
    two = {"products": (1e-3, 2e8), "pooling": (5e-6, 0.0), "embeddings": (5e-6, 0.0)}
    text = profiles.table("w9", {1: (one, 2.1e-3), 2: (two, 1.1e-3)})
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n")[4:]]
    assert rows == [
        ["products", "2.00 ms", "99%", "100", "1.00 ms", "99%", "200"],
        ["the rest", "15.0 µs", "1%", "", "10.0 µs", "1%", ""],
        ["all kernels", "2.01 ms", "", "", "1.01 ms", "", ""],
        ["a whole step, not profiled", "2.10 ms", "", "", "1.10 ms", "", ""],
    ]


MEASURE = """
import pathlib, sys
sys.path[:0] = sys.argv[1:3]
import profiles, worker, workloads
inputs, targets = workloads.load_data(pathlib.Path("."), "w1_linreg100")
task = worker.Task("onnxgrad", "w1_linreg100", 1, pathlib.Path("."), inputs[:20], targets[:20])
kinds, whole = profiles.measure(task, 0)
assert whole > 0 and kinds["the step of a linear model"][0] > 0, kinds
"""


def test_a_step_is_measured(load: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """In a process of its own: one that trains from a path may not import onnx."""
    load("workloads").generate(tmp_path, ["w1_linreg100"])
    command = [sys.executable, "-c", MEASURE, str(BENCHMARKS), str(BENCHMARKS / "peers")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
