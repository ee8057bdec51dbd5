"""Profiles of Python code as trees of calls, from the standard library's profiler.

The time inside `fit` is the engine's: `onnxgrad.TrainingSession.profiling` has it by kernel.
"""

from __future__ import annotations

import cProfile
import io
import pstats
from collections.abc import Callable
from typing import Any

__all__ = ["ProfileNode", "profile", "profile2graph"]

_Key = tuple[str, int, str]


def profile(fct: Callable[[], Any], sort: str = "cumulative") -> tuple[cProfile.Profile, str]:
    """Run a function under the profiler and return the profile, and its table as text."""
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        fct()
    finally:
        profiler.disable()
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).strip_dirs().sort_stats(sort).print_stats()
    return profiler, text.getvalue()


class ProfileNode:
    """A function in a profile.

    Attributes
    ----------
    func_name, filename : str
    line : int
    nc1, nc2 : int
        Calls without recursive ones, and all.
    tin, tall : float
        Seconds in the function itself, and with what it calls.
    called_by, calls_to : list of ProfileNode
    """

    def __init__(
        self, filename: str, line: int, func_name: str, numbers: tuple[int, int, float, float]
    ) -> None:
        self.filename, self.line, self.func_name = filename, line, func_name
        self.nc1, self.nc2, self.tin, self.tall = numbers
        self.called_by: list[ProfileNode] = []
        self.calls_to: list[ProfileNode] = []

    def __repr__(self) -> str:
        return f"ProfileNode({self.filename!r}, {self.line!r}, {self.func_name!r})"

    def to_text(
        self,
        clean_text: Callable[[str], str] | None = None,
        fct_width: int = 60,
        with_file: bool = True,
    ) -> str:
        """Return the tree below this function, two spaces more for each level.

        A function that has been shown already is marked ``+++``, and what it calls is left out.

        Parameters
        ----------
        clean_text : callable, default=None
            Applied to the names of files.
        fct_width : int, default=60
            Width of the column of names.
        with_file : bool, default=True
            False leaves the files out.
        """
        clean = clean_text or getattr(self, "_clean", None) or (lambda text: text)
        lines: list[str] = []
        shown: set[int] = set()

        def visit(node: ProfileNode, depth: int) -> None:
            name = "    " * depth + _short(node.func_name)
            line = (
                f"{name:<{fct_width}} -- {node.nc1: 6d} {node.nc2: 6d} -- "
                f"{node.tin:1.5f} {node.tall:1.5f} --"
            )
            if with_file:
                line += f" {clean(node.filename)}:{node.line}:{_short(node.func_name)}"
                line += f" ({node.func_name})"
            again = id(node) in shown
            lines.append(line + (" +++" if again else ""))
            if again:
                return
            shown.add(id(node))
            for child in node.calls_to:
                visit(child, depth + 1)

        visit(self, 0)
        return "\n".join(lines)


def profile2graph(
    ps: cProfile.Profile | pstats.Stats, clean_text: Callable[[str], str] | None = None
) -> tuple[ProfileNode, dict[_Key, ProfileNode]]:
    """Return a profile as a tree: its root, and all functions by (file, line, name).

    Parameters
    ----------
    ps : cProfile.Profile or pstats.Stats
    clean_text : callable, default=None
        Applied to the names of files.
    """
    table: Any = getattr(ps, "stats", None) if isinstance(ps, pstats.Stats) else None
    if table is None:
        table = pstats.Stats(ps).stats  # type: ignore[arg-type,attr-defined]
    clean = clean_text or (lambda text: text)
    nodes = {
        key: ProfileNode(clean(key[0].replace("\\", "/")), key[1], key[2], numbers[:4])
        for key, numbers in table.items()
    }
    for key, numbers in table.items():
        for caller in numbers[4]:
            if caller in nodes and caller != key:
                nodes[caller].calls_to.append(nodes[key])
                nodes[key].called_by.append(nodes[caller])
    roots = [
        node
        for node in nodes.values()
        if not node.called_by and "_lsprof.Profiler" not in node.func_name
    ]
    if not roots:
        raise RuntimeError("The profile has no function that nothing calls.")
    return max(roots, key=lambda node: node.tall), nodes


def _short(name: str, width: int = 28) -> str:
    return name if len(name) <= width else f"{name[: width // 2]}...{name[-width // 2 + 3 :]}"
