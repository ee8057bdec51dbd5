"""Prints size, times of import and of a first step for each environment of `make wheel-test`.

    make wheel-test && python benchmarks/wheel.py

Times are minima over five processes, from their start: of `import onnxgrad`, and until the digits
network (64-64-32-10, batch 32, Adam) has done one step; "nothing" is a process without imports.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST_STEP = """
import numpy as np
import onnxgrad as og
model = {model!r}
session = og.TrainingSession(model, "softmax_cross_entropy", "adam")
session.step({{"X": np.zeros((32, 64), np.float32), "label": np.zeros(32, np.int64)}})
"""


def seconds(*command: str) -> float:
    """Return the least time of five runs."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Print the table."""
    sys.path.insert(0, str(ROOT / "tests/python"))
    import onnx

    from support import mlp_proto

    folder = ROOT / "build/wheel-test"
    onnx.save(mlp_proto([64, 64, 32, 10]), folder / "digits.onnx")
    program = FIRST_STEP.format(model=str(folder / "digits.onnx"))
    (wheel,) = (ROOT / "dist").glob("onnxgrad-*.whl")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB\n")
    print(
        "| environment | NumPy, onnx | nothing | import | first step |\n"
        "| --- | --- | --- | --- | --- |"
    )
    for environment in sorted(path for path in folder.iterdir() if (path / "bin/python").exists()):
        python = str(environment / "bin/python")
        command = [python, "-c", "import numpy, onnx; print(numpy.__version__, onnx.__version__)"]
        versions = subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.split()
        nothing = seconds(python, "-c", "pass")
        imported = seconds(python, "-c", "import onnxgrad")
        step = seconds(python, "-c", program)
        name = re.sub("-", ", ", environment.name)
        print(
            f"| {name} | {', '.join(versions)} "
            f"| {nothing:.3f} s | {imported:.3f} s | {step:.3f} s |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
