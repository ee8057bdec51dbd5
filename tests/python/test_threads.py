"""The number of threads of a session: all cores, OMP_NUM_THREADS, or the option."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Trains a model whose products are worth several threads, and prints how many threads that took:
# those of the process that came with the first step, and the one that was there.
SCRIPT = """
import os, sys
import numpy as np
import onnxgrad as og
from support import mlp_proto

def count():
    return len(os.listdir("/proc/self/task"))

threads = int(sys.argv[1]) if len(sys.argv) > 1 else None
session = og.TrainingSession(mlp_proto([512, 512, 512]), "squared_error", threads=threads)
before = count()
rows = np.ones((512, 512), np.float32)
session.step({"X": rows, "label": rows})
print(1 + count() - before)
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="counts threads in /proc"
)


def threads_of_a_step(variable, *arguments):
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    if variable is not None:
        environment["OMP_NUM_THREADS"] = variable
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
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
