"""`use_amx_for_float32`: training and inference with products in parts of bfloat16, and without."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import onnxgrad as og
from pairwise import pairwise
from product_network import network, rows


def has_amx():
    return og._core.amx_computes_float32()


needs_amx = pytest.mark.skipif(not has_amx(), reason="this processor has no AMX")


@pytest.fixture(autouse=True)
def as_before():
    was_on = has_amx()
    yield
    og.use_amx_for_float32(was_on)


def kernels(session, feeds):
    with session.profiling() as profile:
        session.step(feeds) if hasattr(session, "step") else session.run(None, feeds)
    return [kernel.kernel for kernel in profile.kernels]


OPTIONS = {"none": {}, "accumulate": {"accumulate": 2}, "clip": {"clip_norm": 1.0}}
CASES = pairwise(
    {
        "optimizer": ["sgd", "adam", "adamw", "lamb"],
        "precision": ["float32", "fp16"],
        "threads": [1, 2, 3],
        "batch": [64, 150, 300],
        "options": list(OPTIONS),
    },
    lambda row: True,
)


@needs_amx
@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_is_that_of_multiply_adds(case):
    x, y = rows(count=300)
    losses = {}
    for on in (True, False):
        og.use_amx_for_float32(on)
        trainer = og.Trainer(
            network(), loss="mse", optimizer=case["optimizer"], lr=0.003,
            precision=case["precision"], threads=case["threads"], seed=0,
            **OPTIONS[case["options"]],
        )  # fmt: skip
        trainer.fit(x, y, epochs=3, batch_size=case["batch"], verbose=0)
        losses[on] = trainer.history["train_loss"]
    assert losses[True][-1] != losses[True][0]
    tolerance = 1e-4 if case["precision"] == "float32" else 0.02
    np.testing.assert_allclose(losses[True], losses[False], rtol=tolerance)


@needs_amx
@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_kernels_follow_the_choice(precision):
    x, y = rows(count=300)
    for on in (True, False):
        og.use_amx_for_float32(on)
        session = og.TrainingSession(network(), "mse", "adam", precision=precision)
        found = kernels(session, {"x": x, session.target_name: y})
        assert any("split" in name for name in found) == on


@needs_amx
def test_an_inference_session_agrees_with_onnxruntime():
    x, _ = rows(count=300)
    expected = onnxruntime.InferenceSession(network().SerializeToString()).run(None, {"x": x})[0]
    for count in (1, 100, 300):
        session = og.InferenceSession(network())
        found = kernels(session, {"x": x[:count]})
        assert any("split" in name for name in found) == (count == 300)
        given = session.run(None, {"x": x[:count]})[0]
        np.testing.assert_allclose(given, expected[:count], rtol=1e-4, atol=1e-5)


def run(script, value):
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "ONNXGRAD_AMX_FLOAT32": value},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_environment_variable():
    script = "import onnxgrad as og; og.show_versions()"
    assert "multiply-adds" in run(script, "0").stdout
    processor = Path("/proc/cpuinfo")
    is_there = processor.exists() and "amx_bf16" in processor.read_text()
    expected = "AMX" if is_there else "multiply-adds"
    for value in ("", "1"):
        done = run(script, value)
        assert expected in done.stdout
        assert done.stderr == ""
    done = run(script, "off")
    assert expected in done.stdout
    assert "ONNXGRAD_AMX_FLOAT32 is 'off', not 0 or 1" in done.stderr
