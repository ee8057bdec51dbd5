"""Ctrl-C while a model is read, differentiated, compiled or run."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import onnx
import pytest
from onnx import helper

JOB = textwrap.dedent("""
    import sys, time
    import onnxgrad as og
    calls = {
        "load": lambda path: og.InferenceSession(path),
        "gradient": lambda path: og.gradient(path, wrt=["w"], fill_grad=True),
        "session": lambda path: og.TrainingSession(path, loss="squared_error", trainable="w"),
        "passes": lambda path: og.ForwardBackward(path),
        "report": lambda path: og.report(path),
    }
    call = calls[sys.argv[2]]
    call(sys.argv[3])  # what it needs is imported
    print("ready", flush=True)
    start = time.monotonic()
    try:
        while time.monotonic() < start + 60:
            call(sys.argv[1])
        print("not interrupted")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    call(sys.argv[3])  # what was interrupted left nothing behind
    print("works")
""")


def chain(path, length):
    """X -> Mul by w -> ... -> Y, `length` nodes."""
    names = ["X", *(f"h{i}" for i in range(length - 1)), "Y"]
    nodes = [helper.make_node("Mul", [a, "w"], [b]) for a, b in itertools.pairwise(names)]
    value = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [None, 2]) for n in "XY"]
    weight = helper.make_tensor("w", onnx.TensorProto.FLOAT, [2], [1.0, 1.0])
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], [weight])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chains")
    return chain(folder / "long.onnx", 60_000), chain(folder / "short.onnx", 3)


@pytest.mark.parametrize("call", ["load", "gradient", "session", "passes", "report"])
def test_ctrl_c_ends_a_call_that_reads_a_model(models, call):
    with subprocess.Popen(
        [sys.executable, "-c", JOB, models[0], call, models[1]], stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout.readline() == "ready\n"
        time.sleep(0.3)
        start = time.monotonic()
        os.kill(job.pid, signal.SIGINT)
        assert job.stdout.readline() == "interrupted\n"
        waited = time.monotonic() - start
        assert job.stdout.readline() == "works\n"
        assert job.wait(timeout=60) == 0
    assert waited < 2


RUN = textwrap.dedent("""
    import sys
    import numpy as np
    import onnxgrad as og
    X = np.zeros((1024, 1024), np.float32)
    session = og.InferenceSession(sys.argv[1], threads=1)
    call = lambda rows: session.run(None, {"X": rows})[0]
    print("ready", flush=True)
    try:
        call(X)
        print("not interrupted", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert call(X[:1]).shape == (1, 1024)
    print("works")
""")


@pytest.mark.host_only("a device has the kernels of a run all at once")
def test_ctrl_c_ends_a_run_between_kernels(tmp_path):
    path = tmp_path / "deep.onnx"
    names = ["X", *(f"h{i}" for i in range(2999)), "Y"]
    nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in itertools.pairwise(names)]
    value = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 1024]) for n in "XY"]
    weight = onnx.numpy_helper.from_array(np.zeros((1024, 1024), np.float32), "w")
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], [weight])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    with subprocess.Popen(
        [sys.executable, "-c", RUN, path], stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout.readline() == "ready\n"
        time.sleep(1)
        start = time.monotonic()
        os.kill(job.pid, signal.SIGINT)
        assert job.stdout.readline() == "interrupted\n"
        waited = time.monotonic() - start
        assert job.stdout.readline() == "works\n"
        assert job.wait(timeout=60) == 0
    assert waited < 10  # all of it takes a minute
