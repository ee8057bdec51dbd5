"""The number of threads of a session: all cores, OMP_NUM_THREADS, or the option."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import onnxgrad as og

# Trains a model whose products are worth several threads, and prints how many threads that took:
# those of the process that came with the first step, and the one that was there.
SCRIPT = """
import os, sys
import numpy as np
import onnxgrad as og
from support import mlp_proto

def count():
    return len(os.listdir("/proc/self/task"))

size = int(sys.argv[1])
threads = int(sys.argv[2]) if len(sys.argv) > 2 else None
session = og.TrainingSession(mlp_proto([size, size, size]), "squared_error", threads=threads)
before = count()
rows = np.ones((size, size), np.float32)
session.step({"X": rows, "label": rows})
print(1 + count() - before)
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="counts threads in /proc"
)


def threads_of_a_step(variable, *arguments, size=512):
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    if variable is not None:
        environment["OMP_NUM_THREADS"] = variable
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(size), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.fixture(scope="module")
def by_itself():
    """Threads of a step by default; the tests are skipped if there is only one."""
    count = threads_of_a_step(None)
    if count < 2:
        pytest.skip("needs two cores")
    return count


@pytest.mark.parametrize("variable", ["1", "1,4"])
def test_openmps_variable_is_respected(variable, by_itself):
    assert threads_of_a_step(variable) == 1


@pytest.mark.parametrize("variable", ["0", "many", "1000000"])
def test_invalid_numbers_change_nothing(variable, by_itself):
    assert threads_of_a_step(variable) == by_itself


def test_the_option_counts_more_than_the_variable(by_itself):
    assert threads_of_a_step("1", "2") == 2


def test_a_small_model_has_one_thread():
    assert threads_of_a_step(None, "16", size=16) == 1


# Wrong counts, and more threads than processors, would show in kernels of all kinds.


def make_proto(nodes, shapes, features):
    rng = np.random.default_rng(5)
    weights = [
        numpy_helper.from_array(
            (0.2 * rng.standard_normal(shape) + (name == "gamma")).astype(np.float32), name
        )
        for name, shape in shapes.items()
    ]
    graph = make_graph(
        nodes,
        "net",
        [make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["N", *features])],
        [make_tensor_value_info("Y", onnx.TensorProto.FLOAT, ["N", 10])],
        weights,
    )
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8)


def convolutions():
    nodes = [
        make_node("Conv", ["X", "w1"], ["c1"], pads=[1] * 4),
        make_node("Relu", ["c1"], ["r1"]),
        make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        make_node("Conv", ["p1", "w2"], ["c2"], pads=[1] * 4, group=16),
        make_node("Conv", ["c2", "w3"], ["c3"]),
        make_node("InstanceNormalization", ["c3", "gamma", "beta"], ["n3"]),
        make_node("Conv", ["n3", "w4"], ["c4"], strides=[2, 2]),
        make_node("GlobalAveragePool", ["c4"], ["g"]),
        make_node("Flatten", ["g"], ["f"]),
        make_node("Gemm", ["f", "w5", "b5"], ["Y"]),
    ]
    shapes = {
        "w1": (16, 3, 3, 3),
        "w2": (16, 1, 3, 3),
        "w3": (64, 16, 1, 1),
        "gamma": (64,),
        "beta": (64,),
        "w4": (64, 64, 3, 3),
        "w5": (64, 10),
        "b5": (10,),
    }
    return make_proto(nodes, shapes, (3, 32, 32)), (32, 3, 32, 32)


def attention():
    nodes = [
        make_node("MatMul", ["X", "wq"], ["q"]),
        make_node("MatMul", ["X", "wk"], ["k"]),
        make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        make_node("MatMul", ["q", "kt"], ["s"]),
        make_node("Softmax", ["s"], ["a"], axis=-1),
        make_node("MatMul", ["a", "X"], ["v"]),
        make_node("Add", ["v", "X"], ["r"]),
        make_node("LayerNormalization", ["r", "gamma", "beta"], ["n"], axis=-1),
        make_node("MatMul", ["n", "w1"], ["h"]),
        make_node("Tanh", ["h"], ["t"]),
        make_node("ReduceMean", ["t"], ["m"], axes=[1], keepdims=0),
        make_node("Gemm", ["m", "w2", "b2"], ["Y"]),
    ]
    shapes = {
        "wq": (128, 64),
        "wk": (128, 64),
        "gamma": (128,),
        "beta": (128,),
        "w1": (128, 256),
        "w2": (256, 10),
        "b2": (10,),
    }
    return make_proto(nodes, shapes, (64, 128)), (32, 64, 128)


def transformer():
    """Linear layers after which GELU, or a residual and LayerNormalization, follow."""
    nodes = [
        make_node("MatMul", ["X", "w1"], ["p"]),
        make_node("Add", ["p", "b1"], ["h"]),
        make_node("Mul", ["h", "root"], ["z"]),
        make_node("Erf", ["z"], ["e"]),
        make_node("Add", ["e", "one"], ["phi"]),
        make_node("Mul", ["h", "phi"], ["g2"]),
        make_node("Mul", ["g2", "half"], ["g"]),
        make_node("MatMul", ["g", "w2"], ["o"]),
        make_node("Add", ["o", "X"], ["r"]),
        make_node("LayerNormalization", ["r", "gamma", "beta"], ["n"], axis=-1),
        make_node("MatMul", ["n", "w3"], ["d"]),
        make_node("Tanh", ["d"], ["t"]),
        make_node("ReduceMean", ["t"], ["m"], axes=[1], keepdims=0),
        make_node("Gemm", ["m", "w4", "b4"], ["Y"]),
    ]
    shapes = {
        "w1": (128, 512),
        "b1": (512,),
        "w2": (512, 128),
        "gamma": (128,),
        "beta": (128,),
        "w3": (128, 256),
        "w4": (256, 10),
        "b4": (10,),
    }
    proto = make_proto(nodes, shapes, (16, 128))
    for name, value in (("root", 0.5**0.5), ("one", 1), ("half", 0.5)):
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(value), name))
    return proto, (32, 16, 128)


def recurrent():
    nodes = [
        make_node("Transpose", ["X"], ["x"], perm=[1, 0, 2]),
        make_node("LSTM", ["x", "w", "r", "b"], ["y", "last"], hidden_size=64),
        make_node("Squeeze", ["last", "axis"], ["h"]),
        make_node("Gemm", ["h", "w2", "b2"], ["Y"]),
    ]
    shapes = {"w": (1, 256, 32), "r": (1, 256, 64), "b": (1, 512), "w2": (64, 10), "b2": (10,)}
    proto = make_proto(nodes, shapes, (20, 32))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0]), "axis"))
    return proto, (48, 20, 32)


def make_session(proto, threads):
    optimizer = og.optimizers.Adam(0.001)
    return og.TrainingSession(proto, "softmax_cross_entropy", optimizer, threads=threads)


def make_feeds(shape):
    rng = np.random.default_rng(1)
    features = rng.standard_normal(shape).astype(np.float32)
    return {"X": features, "label": rng.integers(0, 10, shape[0])}


def trained(proto, shape, threads):
    """Weights after three steps, and the threads that kernels took."""
    session = make_session(proto, threads)
    with session.profiling() as profile:
        for _ in range(3):
            session.step(make_feeds(shape))
    return session.state(), max(kernel.threads for kernel in profile.kernels)


@pytest.mark.host_only("profiles of a device do not tell threads of the CPU")
@pytest.mark.parametrize("make", [convolutions, attention, transformer, recurrent])
def test_any_number_of_threads(make):
    proto, shape = make()
    alone, used = trained(proto, shape, 1)
    assert used == 1
    for threads in (2, 8, 16, 64):
        first, used = trained(proto, shape, threads)
        again, _ = trained(proto, shape, threads)
        assert 1 < used <= threads
        for name, value in alone.items():
            assert np.array_equal(first[name], again[name]), (threads, name)
            np.testing.assert_allclose(first[name], value, rtol=1e-3, atol=3e-4, err_msg=name)


@pytest.mark.host_only("kernels that run together are those of the CPU")
@pytest.mark.parametrize("threads", [2, 5, 16])
def test_kernels_that_run_together_have_the_bits_of_kernels_apart(threads):
    proto, shape = transformer()
    feeds = {"X": make_feeds(shape)["X"]}
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    given = og.InferenceSession(proto, threads=threads).run(None, feeds)
    np.testing.assert_allclose(given[0], expected[0], rtol=1e-4, atol=1e-5)
    apart, _ = trained(proto, shape, threads)  # kernels that are timed run one after the other
    session = make_session(proto, threads)
    for _ in range(3):
        session.step(make_feeds(shape))
    assert "(with " in session.plan_summary()
    for name, value in session.state().items():
        assert np.array_equal(value, apart[name]), name
