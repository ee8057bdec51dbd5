"""The source distribution of dist/ builds without a network, and what it makes trains.

`make sdist-test` runs it, in build/sdist-test: unpacked sources, an environment, and the wheels of
what building and importing need, which are downloaded before.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/sdist-test"


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a program in FOLDER; return what it printed, errors too."""
    words = [str(word) for word in command]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words, cwd=FOLDER, env=env, text=True, check=False, **streams)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-10_000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def sources():
    """The unpacked source distribution."""
    found = list((ROOT / "dist").glob("onnxgrad-*.tar.gz"))
    if len(found) != 1:
        raise pytest.UsageError(f"dist/ holds {len(found)} source distributions: run make sdist")
    for name in ("sources", "environment", "deps", "made"):
        shutil.rmtree(FOLDER / name, ignore_errors=True)
    with tarfile.open(found[0]) as archive:
        archive.extractall(FOLDER / "sources", filter="data")
    (top,) = (FOLDER / "sources").iterdir()
    return top


@pytest.fixture(scope="module")
def wheels(sources):
    """Wheels of all that is needed, downloaded; pip refuses any that the lists do not name."""
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
    lists = [sources / f"requirements/locked/{name}.txt" for name in ("build", "runtime")]
    chosen = [word for one in lists for word in ("-r", one)]
    run(*pip, "--only-binary", ":all:", "--require-hashes", "-d", FOLDER / "wheels", *chosen)
    return FOLDER / "wheels"


@pytest.fixture(scope="module")
def offline():
    """The start of commands that see no network, where this process may make such a namespace."""
    command = ["unshare", "--net", "--map-root-user"]
    is_allowed = subprocess.run([*command, "true"], capture_output=True, check=False)
    return command if is_allowed.returncode == 0 else []


def test_builds_and_trains_without_a_network(sources, wheels, offline):
    environment = FOLDER / "environment"
    run(sys.executable, "-m", "venv", environment)
    variables = {
        "PATH": f"{environment}/bin:/usr/bin:/bin",
        "ONNXGRAD_DEPS": str(FOLDER / "deps"),
        # Programs that ask for a proxy find none, even where a namespace is not allowed.
        **dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9"),
        **{name: os.environ[name] for name in ("HOME", "CCACHE_DIR") if name in os.environ},
    }
    pip = [*offline, environment / "bin/python", "-m", "pip", "-q", "--disable-pip-version-check"]
    place = ["--no-index", "--find-links", wheels]
    # As in `make build`, of which ccache has the objects.
    compiler = ["-C", "cmake.define.CMAKE_CXX_COMPILER=c++"]
    run(*pip, "wheel", *place, "--no-deps", "-w", "made", *compiler, sources, env=variables)
    (made,) = (FOLDER / "made").glob("onnxgrad-*.whl")
    run(*pip, "install", *place, made, env=variables)
    smoke = sources / "tests/python/smoke.py"
    run(*offline, environment / "bin/python", smoke, "onnx,onnxgrad", env=variables)
