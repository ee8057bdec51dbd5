"""Checkpoint files of onnxruntime-training, FlatBuffers with the identifier ODTC.

Their tables, with the numbers of their fields:

- checkpoint: version 0, module 1, optimizer groups 2, properties 3;
- module: trained 0, frozen 1, nominal 2, external data 3;
- group: name 0, step 1, learning rate 2, states 3; state: parameter 0, moments 1;
- properties: ints 0, floats 1, texts 2, each of name 0 and value 1;
- tensor: name 0, dims 2, type 3 (ONNX's numbers), bytes 4, position in the external file 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxgrad.compat.onnxruntime.training.api.flat_tables import Table, Writer, root_table

__all__ = ["FlatCheckpoint", "read", "written"]

_Array = np.ndarray[Any, Any]
_IDENTIFIER = b"ODTC"
_VERSION = 2  # of onnxruntime 1.19
_GROUP = "group0"


@dataclass
class FlatCheckpoint:
    """The contents of a file; `moments` are by parameter and by name."""

    trained: dict[str, _Array] = field(default_factory=dict)
    frozen: dict[str, _Array] = field(default_factory=dict)
    nominal: bool = False
    moments: dict[str, dict[str, _Array]] | None = None
    step: int = 0
    learning_rate: float = 0.0
    properties: dict[str, int | float | str] = field(default_factory=dict)


def read(path: Path) -> FlatCheckpoint:
    """Read a file.

    Raises
    ------
    ValueError, struct.error
        It is damaged.
    """
    root = root_table(memoryview(path.read_bytes()), _IDENTIFIER)
    module = root.table(1)
    if module is None:
        raise ValueError("the file has no parameters")
    nominal = bool(module.number(2, "?"))
    external = path.with_name(path.name + ".data") if module.number(3, "?") else None
    result = FlatCheckpoint(nominal=nominal)
    for number, values in ((0, result.trained), (1, result.frozen)):
        for table in module.tables(number):
            values[table.text(0)] = _tensor(table, external, nominal)
    for group in root.tables(2)[:1]:
        result.step = int(group.number(1, "q"))
        result.learning_rate = float(group.number(2, "f"))
        result.moments = {
            state.text(0): {m.text(0): _tensor(m, external, False) for m in state.tables(1)}
            for state in group.tables(3)
        }
    bag = root.table(3)
    for number, form in ((0, "q"), (1, "f"), (2, "")) if bag is not None else ():
        for entry in bag.tables(number) if bag is not None else ():
            value = entry.number(1, form) if form else entry.text(1)
            result.properties[entry.text(0)] = value
    return result


def _tensor(table: Table, external: Path | None, nominal: bool) -> _Array:
    dims = np.frombuffer(table.raw(2, 8), "<i8").tolist()
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(table.number(3, "i")))
    if nominal:  # without data; zeros take no memory until they are written
        return np.zeros(dims, dtype)
    data: Any = table.raw(4)
    size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
    position = int(table.number(6, "q", -1))
    if external is not None and position >= 0:
        with external.open("rb") as file:
            file.seek(position)
            data = file.read(size)
    if len(data) != size:
        raise ValueError(f"a tensor of {dims} has {len(data)} bytes, not {size}")
    return np.frombuffer(data, dtype).reshape(dims).copy()


def written(checkpoint: FlatCheckpoint) -> bytes:
    """Return the contents of the file."""
    out = Writer()
    fields: dict[int, tuple[str, Any]] = {0: ("i", _VERSION)}
    module = {
        number: ("ref", out.references(_tensors(out, values, checkpoint.nominal)))
        for number, values in ((0, checkpoint.trained), (1, checkpoint.frozen))
    }
    fields[1] = ("ref", out.table({**module, 2: ("?", checkpoint.nominal)}))
    if checkpoint.moments is not None:
        states = []
        for name, moments in checkpoint.moments.items():
            tensors = out.references(_tensors(out, moments, False))
            states.append(out.table({0: ("ref", out.text(name)), 1: ("ref", tensors)}))
        group = {
            0: ("ref", out.text(_GROUP)),
            1: ("q", checkpoint.step),
            2: ("f", checkpoint.learning_rate),
            3: ("ref", out.references(states)),
        }
        fields[2] = ("ref", out.references([out.table(group)]))
    if checkpoint.properties:
        fields[3] = ("ref", _properties(out, checkpoint.properties))
    return out.finish(out.table(fields), _IDENTIFIER)


def _tensors(out: Writer, values: Mapping[str, _Array], nominal: bool) -> Sequence[int]:
    positions = []
    for name, value in values.items():
        array = np.asarray(value, order="C")
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        dims = np.array(array.shape, "<i8").tobytes()
        table = {0: ("ref", out.text(name)), 2: ("ref", out.vector(dims, array.ndim, 8))}
        table[3] = ("i", int(kind))
        if not nominal:
            data = array.reshape(-1).view(np.uint8).data
            table[4] = ("ref", out.vector(data, len(data), 16))
        positions.append(out.table(table))
    return positions


def _properties(out: Writer, properties: Mapping[str, int | float | str]) -> int:
    fields = {}
    for number, kind, form in ((0, int, "q"), (1, float, "f"), (2, str, "ref")):
        entries = []
        for name, value in properties.items():
            if isinstance(value, kind):
                stored = out.text(value) if isinstance(value, str) else value
                entries.append(out.table({0: ("ref", out.text(name)), 1: (form, stored)}))
        if entries:
            fields[number] = ("ref", out.references(entries))
    return out.table(fields)
