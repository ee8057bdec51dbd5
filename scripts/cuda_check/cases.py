"""The operators' cases as two files, and their comparison with what a card computes.

`cases.json` is a list of cases, `cases.bin` their models and arrays; pack_cases.py writes them.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def run_session(model: bytes, arrays: list[Array], device: str) -> list[Any]:
    """Return the results of a model for its inputs, in order."""
    import onnxgrad as og

    session = og.InferenceSession(model, device=device)
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))


def agree(given: Array, expected: Array, tolerance: float) -> bool:
    """Return whether arrays are equal to the tolerance; integers, NaN and infinities exactly."""
    if given.shape != expected.shape:
        return False
    if not np.issubdtype(expected.dtype, np.floating):
        return bool(np.array_equal(given, expected))
    wide = np.asarray(expected, np.float64)
    finite = np.abs(wide[np.isfinite(wide)])
    scale = max(1.0, float(finite.max(initial=0)))
    close = np.allclose(np.asarray(given, np.float64), wide, 0, tolerance * scale, equal_nan=True)
    return bool(close)


class Cases:
    """The cases of a folder, in an order that mixes the operators."""

    def __init__(self, folder: Path) -> None:
        self._bytes = (folder / "cases.bin").read_bytes()
        cases = json.loads((folder / "cases.json").read_text())
        self.entries = sorted(cases, key=lambda case: zlib.crc32(case["name"].encode()))

    def _array(self, place: dict[str, Any]) -> Array:
        first, size = place["at"]
        return np.frombuffer(self._bytes[first : first + size], place["dtype"]).reshape(
            place["dims"]
        )

    def check(self, entry: dict[str, Any], device: str) -> str:
        """Run a case; return what is wrong, "" for nothing."""
        first, size = entry["model"]
        try:
            arrays = [self._array(place) for place in entry["inputs"]]
            results = run_session(self._bytes[first : first + size], arrays, device)
        except Exception as error:  # any, to go on with the next case
            return f"{type(error).__name__}: {error}"[:300]
        # Some cases ask for steps in float16: there the CPU's float32 is the measure.
        choices = zip(*(entry[kind] for kind in ("float64", "float32") if entry[kind]), strict=True)
        for i, (given, places) in enumerate(zip(results, choices, strict=True)):
            expected = [self._array(place) for place in places]
            if any(agree(given, one, entry["tolerance"]) for one in expected):
                continue
            difference = np.abs(np.asarray(given, np.float64) - expected[0]).max(initial=0)
            return f"result {i} differs by {difference:g}"
        return ""
