"""Fixtures: the wheel, and environments that hold it, by Python and choice of versions."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from environments import find_wheel, make_environment


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    versions = os.environ.get("ONNXGRAD_PYTHONS", "3.11 3.12 3.13 3.14").split()
    chosen = os.environ.get("ONNXGRAD_VERSIONS", "oldest newest ray").split()
    kinds = {
        "environment": [kind for kind in chosen if kind != "ray"],
        "bare_environment": ["bare"],
        "ray_environment": ["ray"],
    }
    for name in kinds.keys() & set(metafunc.fixturenames):
        marks = []
        if name == "ray_environment":
            versions = versions[:1]
            reason = "ONNXGRAD_VERSIONS does not name ray"
            marks = [pytest.mark.skipif("ray" not in chosen, reason=reason)]
        cases = [
            pytest.param((v, k), id=f"{v}-{k}", marks=[*marks, pytest.mark.xdist_group(f"{v}-{k}")])
            for v in versions
            for k in kinds[name]
        ]
        metafunc.parametrize(name, cases, indirect=True, scope="session")


@pytest.fixture(scope="session")
def environment(request):
    return make_environment(*request.param)


@pytest.fixture(scope="session")
def bare_environment(request):
    return make_environment(*request.param)


@pytest.fixture(scope="session")
def ray_environment(request):
    return make_environment(*request.param)


@pytest.fixture(scope="session")
def wheel():
    return find_wheel()
