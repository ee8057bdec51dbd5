"""Fixtures: the wheel, and environments that hold it, by Python and choice of versions."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from environments import find_wheel, make_environment


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    versions = os.environ.get("ONNXGRAD_PYTHONS", "3.11 3.12 3.13 3.14").split()
    if "environment" in metafunc.fixturenames:
        kinds = os.environ.get("ONNXGRAD_VERSIONS", "oldest newest").split()
    elif "bare_environment" in metafunc.fixturenames:
        kinds = ["bare"]
    else:
        return
    name = "environment" if "environment" in metafunc.fixturenames else "bare_environment"
    cases = [
        pytest.param((v, k), id=f"{v}-{k}", marks=pytest.mark.xdist_group(f"{v}-{k}"))
        for v in versions
        for k in kinds
    ]
    metafunc.parametrize(name, cases, indirect=True, scope="session")


@pytest.fixture(scope="session")
def environment(request):
    return make_environment(*request.param)


@pytest.fixture(scope="session")
def bare_environment(request):
    return make_environment(*request.param)


@pytest.fixture(scope="session")
def wheel():
    return find_wheel()
