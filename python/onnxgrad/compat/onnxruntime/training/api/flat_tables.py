"""Tables of FlatBuffers: reading by offset and writing, for the checkpoints of a known schema.

A table begins with the distance to its vtable, uint16 [size, table size, offset of field 0, ...],
where 0 is an absent field. Vectors begin with their length; references are distances forwards.
Everything is little endian and aligned to its size. A file is written from its end to its beginning
here, as in Google's library, so that what a table refers to exists before it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Table", "Writer", "root_table"]


def root_table(data: memoryview, identifier: bytes) -> Table:
    """Return the root of a file.

    Raises
    ------
    ValueError
        The file has another identifier.
    """
    if bytes(data[4:8]) != identifier:
        raise ValueError(f"the file has the identifier {bytes(data[4:8])!r}, not {identifier!r}")
    return Table(data, _unpack("<I", data, 0))


def _unpack(form: str, data: memoryview, at: int) -> Any:
    if at < 0:
        raise ValueError("a position before the file")
    return struct.unpack_from(form, data, at)[0]


class Table:
    """A table at a position of a file; fields are given by number, absent ones have defaults."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - _unpack("<i", data, at)
        self._size = _unpack("<H", data, self._fields)

    def _find(self, field: int) -> int:
        """Return the position of a field, or 0."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return 0
        offset = _unpack("<H", self._data, self._fields + entry)
        return self._at + int(offset) if offset else 0

    def number(self, field: int, form: str, default: float = 0) -> Any:
        """Return a number of a type of `struct`."""
        at = self._find(field)
        return _unpack(f"<{form}", self._data, at) if at else default

    def _target(self, at: int) -> int:
        return at + int(_unpack("<I", self._data, at))

    def _span(self, field: int) -> tuple[int, int]:
        """Return start and length of a vector, or (0, 0)."""
        at = self._find(field)
        if not at:
            return 0, 0
        start = self._target(at)
        return start + 4, int(_unpack("<I", self._data, start))

    def table(self, field: int) -> Table | None:
        """Return a table that a field refers to."""
        at = self._find(field)
        return Table(self._data, self._target(at)) if at else None

    def tables(self, field: int) -> list[Table]:
        """Return the tables of a vector."""
        start, length = self._span(field)
        self._check(start, 4 * length)
        return [Table(self._data, self._target(start + 4 * i)) for i in range(length)]

    def raw(self, field: int, size: int = 1) -> memoryview:
        """Return the bytes of a vector whose elements have `size` bytes."""
        start, length = self._span(field)
        self._check(start, size * length)
        return self._data[start : start + size * length]

    def text(self, field: int) -> str:
        """Return a string."""
        return bytes(self.raw(field)).decode()

    def _check(self, start: int, size: int) -> None:
        if start + size > len(self._data):
            raise ValueError("a vector ends after the file")


# Bytes of a field by its type.
_SIZES = {"?": 1, "i": 4, "f": 4, "ref": 4, "q": 8}


class Writer:
    """Writes a file from its end to its beginning; positions are counted from the end."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []  # the last one is the first of the file
        self._size = 0

    def _push(self, part: bytes | memoryview) -> int:
        self._parts.append(part)
        self._size += len(part)
        return self._size

    def _align(self, size: int, following: int = 0) -> None:
        """Pad so that after `following` more bytes the position is a multiple of `size`."""
        self._push(bytes(-(self._size + following) % size))

    def vector(self, data: bytes | memoryview, length: int, alignment: int = 4) -> int:
        """Write a vector and return its position."""
        self._align(max(4, alignment), len(data))
        self._push(data)
        return self._push(struct.pack("<I", length))

    def text(self, value: str) -> int:
        """Write a string and return its position."""
        data = value.encode()
        return self.vector(data + b"\0" + bytes(-(len(data) + 1) % 4), len(data))

    def references(self, positions: Sequence[int]) -> int:
        """Write a vector of references and return its position."""
        self._align(4)
        for position in reversed(positions):
            self._push(struct.pack("<I", self._size + 4 - position))
        return self._push(struct.pack("<I", len(positions)))

    def table(self, fields: Mapping[int, tuple[str, Any]]) -> int:
        """Write a table and return its position.

        `fields` has (type of `struct` or ``"ref"``, number or position) by number of the field.
        """
        self._align(8)
        end = self._size
        places: dict[int, int] = {}
        sized = [(_SIZES[form], number) for number, (form, _) in fields.items()]
        for size, field in sorted(sized):  # the largest are nearest to the beginning
            form, value = fields[field]
            self._align(size, size)
            if form == "ref":
                self._push(struct.pack("<I", self._size + 4 - value))
            else:
                self._push(struct.pack(f"<{form}", value))
            places[field] = self._size
        count = max(fields, default=-1) + 1
        vtable_size = 4 + 2 * count
        self._align(4)
        at = self._push(struct.pack("<i", vtable_size + -(vtable_size) % 4))
        offsets = [at - places[f] if f in places else 0 for f in range(count)]
        head = struct.pack(f"<{2 + count}H", vtable_size, at - end, *offsets)
        self._push(head + bytes(-len(head) % 4))
        return at

    def finish(self, root: int, identifier: bytes) -> bytes:
        """Return the file."""
        self._align(16, 8)
        self._push(identifier)
        self._push(struct.pack("<I", self._size + 4 - root))
        return b"".join(reversed(self._parts))
