"""onnx, onnxruntime and onnxgrad in one process, imported in every order."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

SMOKE = Path(__file__).with_name("smoke.py")
ORDERS = [",".join(names) for names in itertools.permutations(("onnx", "onnxruntime", "onnxgrad"))]


@pytest.mark.parametrize("order", ORDERS)
def test_import_order(order):
    done = subprocess.run([sys.executable, str(SMOKE), order], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
