"""Fixtures: the smallest model there is, and data for it."""

import functools
import os
import signal

import numpy as np
import onnx
import onnx.parser
import pytest
import typer.main

from card_scripts import run_script
from support import LINEAR

# A shell that starts the tests in the background lets them, and what they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The command line is built from the app's functions, and its types from their options, once rather
# than by every `CliRunner.invoke` and `cli.main`.
typer.main.get_command = functools.cache(typer.main.get_command)


# Files whose tests are marked device_sample: each kind of session, graph and option once.
DEVICE_SAMPLE = {
    "test_adapters",
    "test_api_cli",
    "test_api_sessions",
    "test_api_trainer",
    "test_averages",
    "test_checkpoints",
    "test_compat_session",
    "test_derivatives",
    "test_forward_backward",
    "test_language_training",
    "test_optimizers",
    "test_precision_training",
    "test_quantized_base",
    "test_recurrent_training",
    "test_schedules",
    "test_sequences",
    "test_sklearn_estimators",
    "test_text_rows",
    "test_train_command",
    "test_training_combinations",
    "test_training_info",
    "test_zoo_combinations",
}


# Files whose tests are marked cuda_sample.
CUDA_SAMPLE = {"test_api_sessions", "test_optimizers", "test_train_command"}


def pytest_collection_modifyitems(items):
    """Mark the sample; with another default device, leave out tests that need the CPU."""
    for item in items:
        if item.path.stem in DEVICE_SAMPLE:
            item.add_marker(pytest.mark.device_sample)
        if item.path.stem in CUDA_SAMPLE:
            item.add_marker(pytest.mark.cuda_sample)
    if os.environ.get("ONNXGRAD_DEVICE", "cpu") == "cpu":
        return
    for item in items:
        if marker := item.get_closest_marker("host_only"):
            item.add_marker(pytest.mark.skip(reason=marker.args[0]))


@pytest.fixture(scope="session")
def linear_proto():
    """Y = X @ coef + intercept. X: float32 [N, 2], Y: [N, 1]."""
    model = onnx.parser.parse_model(LINEAR)
    onnx.checker.check_model(model)
    return model


@pytest.fixture(scope="session")
def linear_model(linear_proto):
    return linear_proto.SerializeToString()


@pytest.fixture(scope="session")
def linear_data():
    """X [200, 2] and y [200, 1] of y = X @ (1, -2) + 0.5, float32."""
    X = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    return X, (X @ np.array([[1.0], [-2.0]]) + 0.5).astype(np.float32)


@pytest.fixture
def linear_file(tmp_path, linear_model):
    path = tmp_path / "model.onnx"
    path.write_bytes(linear_model)
    return path


@pytest.fixture(scope="session")
def iris():
    """X [150, 4] float32 of mean 0 and variance 1, and classes y [150] from 0 to 2, in order."""
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    return ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32), y


@pytest.fixture(scope="session")
def card_images(tmp_path_factory):
    """Where kernels that are compiled for the stand-ins of a card are kept."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture
def run_on_card(card_images):
    """Run a script on the stand-ins of a card (see card_scripts) and return what it printed."""
    return functools.partial(run_script, images=card_images)
