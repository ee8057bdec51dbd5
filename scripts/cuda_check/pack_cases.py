"""Writes the cases of the check of a card, from what the C++ test binary dumps and the zoo.

    python scripts/cuda_check/pack_cases.py DUMP FOLDER

DUMP is written by src/ops/testing/dump_cases_test.cpp; tests/python is on PYTHONPATH.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from cases import Array, run_session

import onnxgrad as og

# As in src/ops/testing/cuda_cases_test.cpp.
_TOLERANCE = 3e-5
# Values of a session on the CPU are expected of these: its seed is not that of the C++ tests.
_RANDOM = "random_numbers."
_OF_THE_HOST = "image_decoder."  # reads files


class _Writer:
    """Bytes behind each other, each of them once."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self._places: dict[bytes, int] = {}

    def add(self, data: bytes) -> list[int]:
        """Return the place of `data`: first byte and number of bytes."""
        if data not in self._places:
            self._places[data] = len(self.bytes)
            self.bytes += data
        return [self._places[data], len(data)]

    def array(self, array: Array) -> dict[str, Any]:
        return {
            "dtype": array.dtype.str,
            "dims": list(array.shape),
            "at": self.add(array.tobytes()),
        }


def _arrays(entry: dict[str, Any], data: bytes, *kinds: str) -> list[Array]:
    found = []
    for kind in kinds:
        for one in entry[kind]:
            flat = np.frombuffer(data, one["dtype"], math.prod(one["dims"]), one["offset"])
            found.append(flat.reshape(one["dims"]))
    return found


def _of_operators(dump: Path, writer: _Writer) -> list[dict[str, Any]]:
    """Return the cases of float32 with their results in float64."""
    data = (dump / "data.bin").read_bytes()
    entries = json.loads((dump / "manifest.json").read_text())
    wide = {entry["name"]: entry for entry in entries if entry["dtype"] == "float64"}
    packed = []
    for entry in entries:
        if entry["dtype"] != "float32":
            continue
        name = entry["name"]
        if name.startswith(_OF_THE_HOST):
            continue
        what = "gradient" if entry["gradient"] else "model"
        model = (dump / f"{name}.float32.{what}.onnx").read_bytes()
        narrow = _arrays(entry, data, "outputs", "gradients")
        if name.startswith(_RANDOM):
            narrow = run_session(model, _arrays(entry, data, "inputs", "seeds"), "cpu")
        exact = _arrays(wide.get(name, entry), data, "outputs", "gradients")
        packed.append(
            {
                "name": name,
                "model": writer.add(model),
                "inputs": [writer.array(a) for a in _arrays(entry, data, "inputs", "seeds")],
                "tolerance": _TOLERANCE,
                "float64": [writer.array(array) for array in exact],
                "float32": [writer.array(array) for array in narrow],
            }
        )
    return packed


def _of_zoo(writer: _Writer) -> list[dict[str, Any]]:
    """Return the models of tests/data/zoo: losses and gradients, or outputs, of the CPU.

    The tests of the zoo compare these with what PyTorch computed.
    """
    import zoo

    packed = []
    for name, row in zoo.ROWS.items():
        has_gradients = row["trains"] and "input_gradients" in row
        model = (zoo.gradient_model(name) if has_gradients else zoo.load(name)).SerializeToString()
        values = zoo.values(name)
        inputs = [values[one.name] for one in og.InferenceSession(model).get_inputs()]
        results = run_session(model, inputs, "cpu") if _are_numbers(inputs) else [None]
        if not _are_numbers(results):  # texts, maps and sequences are the host's
            continue
        packed.append(
            {
                "name": f"zoo.{name}",
                "model": writer.add(model),
                "inputs": [writer.array(array) for array in inputs],
                "tolerance": max(row["tolerance"], _TOLERANCE),
                "float64": [writer.array(array) for array in results],
                "float32": [],
            }
        )
    return packed


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in values)


def main() -> None:
    """Write cases.json and cases.bin to a folder."""
    dump, folder = Path(sys.argv[1]), Path(sys.argv[2])
    writer = _Writer()
    packed = _of_operators(dump, writer) + _of_zoo(writer)
    (folder / "cases.json").write_text(json.dumps(packed))
    (folder / "cases.bin").write_bytes(writer.bytes)
    print(len(packed), "cases")


if __name__ == "__main__":
    main()
