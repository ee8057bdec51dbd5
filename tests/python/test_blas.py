"""`use_blas`: large products by OpenBLAS, beside onnxgrad's own kernels and onnxruntime."""

import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxgrad as og
from pairwise import pairwise
from product_network import ROWS, network, rows


@pytest.fixture
def openblas():
    try:
        og.use_blas("openblas")
    except og.OptionError as error:
        pytest.skip(f"OpenBLAS is needed: {error}")
    yield
    og.use_blas(None)


def trained(entry: str, dtype: str, optimizer: object, threads: int, **options: object):
    """The weights after three steps, and the labels of the kernels."""
    x, y = rows(dtype)
    if entry == "trainer":
        trainer = og.Trainer(
            network(dtype), "squared_error", optimizer, threads=threads, seed=0, **options
        )
        trainer.fit(x, y, epochs=3, batch_size=ROWS, shuffle=False, verbose=0)
        session = trainer.session
    else:
        session = og.TrainingSession(
            network(dtype), "squared_error", optimizer, threads=threads, **options
        )
        for _ in range(3):
            session.step({"x": x, session.target_name: y})
    weights = session.trained_model().graph.initializer
    values = {value.name: onnx.numpy_helper.to_array(value) for value in weights}
    return values, session.plan_summary()


CASES = pairwise(
    {
        "entry": ["trainer", "session"],
        "dtype": ["float", "double"],
        "optimizer": ["sgd", "adam", "adamw", "lamb"],
        "threads": [1, 2, 3],
        "options": ["none", "clip", "frozen", "accumulate", "skip"],
    },
    lambda row: (
        (row.get("entry"), row.get("options"))
        not in (("session", "accumulate"), ("trainer", "skip"))
    ),
)
OPTIONS = {
    "none": {},
    "clip": {"clip_norm": 0.1},
    "frozen": {"frozen": ["w0", "b0"]},
    "accumulate": {"accumulate": 2},
    "skip": {"skip_non_finite": True},
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_trains_as_own_kernels_do(openblas, case):
    optimizer = og.optimizers.SGD(lr=0.01, momentum=0.9) if case["optimizer"] == "sgd" else None
    arguments = {
        "entry": case["entry"],
        "dtype": case["dtype"],
        "optimizer": optimizer or case["optimizer"],
        "threads": case["threads"],
        **OPTIONS[case["options"]],
    }
    found, kernels = trained(**arguments)
    assert kernels.count("openblas ") >= 6, kernels
    og.use_blas(None)
    expected, own = trained(**arguments)
    assert "openblas" not in own
    tolerance = 2e-5 if case["dtype"] == "float" else 1e-12
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=tolerance, err_msg=name)


def test_the_same_bits_in_every_run(openblas):
    first, _ = trained("trainer", "float", "adam", 2)
    second, _ = trained("trainer", "float", "adam", 2)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, 20, 150, 700])
def test_inference(openblas, count, threads):
    x, _ = rows(count=count)
    model = network()
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    expected = reference.run(None, {"x": x})[0]
    session = og.InferenceSession(model, threads=threads)
    for _ in range(2):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=2e-5)


def test_gradients_by_forward_backward(openblas):
    x, y = rows("double")
    model = network("double")

    def gradients() -> og.Gradients:
        runner = og.ForwardBackward(model)
        runner.forward({"x": x})
        return runner.backward(y)

    found = gradients()
    og.use_blas(None)
    expected = gradients()
    for name, value in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_precisions(openblas, precision):
    found, _ = trained("trainer", "float", "adam", 2, precision=precision)
    og.use_blas(None)
    expected, _ = trained("trainer", "float", "adam", 2, precision=precision)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=6e-3, err_msg=name)


def test_a_session_keeps_what_it_was_made_with(openblas):
    x, y = rows()
    session = og.TrainingSession(network(), "squared_error", "adam")
    feeds = {"x": x, session.target_name: y}
    before = session.step(feeds)
    og.use_blas(None)
    assert session.step(feeds) < before
    assert "openblas" in session.plan_summary()


def test_memory_is_what_a_limit_allows(openblas):
    x, y = rows()
    trainer = og.Trainer(network(), "squared_error", "adam", threads=2)
    trainer.fit(x, y, epochs=1, batch_size=ROWS, verbose=0)
    memory = trainer.session.memory()
    limit = memory.total
    again = og.Trainer(network(), "squared_error", "adam", threads=2, memory_limit=limit)
    again.fit(x, y, epochs=1, batch_size=ROWS, verbose=0)
    assert again.session.memory().total <= limit


class TestErrors:
    def test_unknown_names(self):
        with pytest.raises(og.OptionError, match="Did you mean 'mkl'"):
            og.use_blas("mlk")
        with pytest.raises(og.OptionError, match="Known are 'mkl' and 'openblas'"):
            og.use_blas("something else")

    def test_files_that_are_none(self, tmp_path):
        with pytest.raises(og.OptionError, match="No such file"):
            og.use_blas(tmp_path / "libblas.so")
        (tmp_path / "libblas.so").write_text("text")
        with pytest.raises(og.OptionError, match="cannot be loaded"):
            og.use_blas(tmp_path / "libblas.so")
        with pytest.raises(og.OptionError, match="exports no cblas_sgemm"):
            og.use_blas(og._core.__file__)

    def test_the_environment_variable_names_none(self, tmp_path):
        model = tmp_path / "model.onnx"
        onnx.save(network(), model)
        x, y = rows()
        np.savez(tmp_path / "rows.npz", x=x, y=y)
        command = [sys.executable, "-m", "onnxgrad", "train", model, "--data"]
        command += [tmp_path / "rows.npz", "--target", "y", "--epochs", "1", "-q"]
        done = run(command, "mlk")
        assert done.returncode == 2
        assert "unknown BLAS library 'mlk'" in done.stderr
        assert "Traceback" not in done.stderr
        # What a bug report needs is still there.
        done = run([sys.executable, "-m", "onnxgrad", "versions"], "mlk")
        assert done.returncode == 0
        assert "unknown BLAS library 'mlk'" in done.stdout


def run(command, library):
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "ONNXGRAD_BLAS": library},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_environment_variable(openblas):
    script = "import onnxgrad as og; og.show_versions()"
    done = run([sys.executable, "-c", script], "openblas")
    assert "libopenblas" in done.stdout
    done = run([sys.executable, "-c", script], "")
    assert "own kernels" in done.stdout
