"""Weights by their distance from the end of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

__all__ = ["LeveledWeight", "blocks_of"]


class LeveledWeight(Protocol):
    """The attributes of a `WeightInfo` that are read here."""

    @property
    def name(self) -> str:
        """In the file."""
        ...

    @property
    def aliases(self) -> Sequence[str]:
        """In the program that wrote the file."""
        ...

    @property
    def level(self) -> int:
        """Layers behind it."""
        ...


def blocks_of(weights: Iterable[LeveledWeight]) -> list[list[str]]:
    """Return the names of weights by block, those of the head first.

    A block is the layers whose names have the same number in the same place (``encoder.layer.3``),
    else the layers of one level.
    """
    members: dict[object, list[str]] = {}
    levels: dict[object, int] = {}
    for weight in weights:
        if weight.level < 0:
            continue
        key: object = _numbered(weight.aliases[0] if weight.aliases else weight.name)
        if key is None:
            key = weight.level
        members.setdefault(key, []).append(weight.name)
        levels[key] = min(levels.get(key, weight.level), weight.level)
    return [members[key] for key in sorted(members, key=lambda key: levels[key])]


def _numbered(name: str) -> str | None:
    """Return a name up to its first part that is a number."""
    parts = name.replace("/", ".").split(".")
    for index, part in enumerate(parts[:-1]):
        if part.isdigit():
            return ".".join(parts[: index + 1])
    return None
