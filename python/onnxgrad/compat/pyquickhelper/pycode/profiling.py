"""Profiles of Python code as call trees, from the standard library's profiler.

For the time inside `fit`, by kernel, see `onnxgrad.TrainingSession.profiling`.
"""

from __future__ import annotations

import cProfile
import io
import pstats
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = ["ProfileNode", "profile", "profile2graph"]

_Key = tuple[str, int, str]
_Numbers = tuple[int, int, float, float]

# Files of the interpreter and its library, whose fast functions are left out of the text.
_LIBRARY = frozenset(
    (
        *("~", "_collections_abc.py", "abc.py", "contextlib.py", "functools.py", "inspect.py"),
        *("os.py", "posixpath.py", "threading.py", "types.py", "typing.py", "warnings.py"),
    )
)


def profile(fct: Callable[[], Any], sort: str = "cumulative") -> tuple[pstats.Stats, str]:
    """Run a function under the profiler and return the profile, and its table as text.

    Parameters
    ----------
    fct : callable
    sort : str, default="cumulative"
        Order of the table.
    """
    profiler = cProfile.Profile()
    profiler.runcall(fct)
    text = io.StringIO()
    stats = pstats.Stats(profiler, stream=text)
    stats.sort_stats(sort).print_stats()
    return stats, text.getvalue()


class _Line(NamedTuple):
    """A line of the text; the numbers are those of the call, or for a root of the function."""

    node: ProfileNode
    depth: int
    numbers: _Numbers
    again: bool


class ProfileNode:
    """A function in a profile.

    Attributes
    ----------
    func_name, filename : str
    line : int
    nc1, nc2 : int
        Number of calls without recursive ones, and of all calls.
    tin, tall : float
        Seconds in the function itself, and including the functions it calls.
    called_by, calls_to : list of ProfileNode
    calls_to_elements : list of (nc1, nc2, tin, tall)
        The numbers of calls of each function in `calls_to` from this one.
    """

    def __init__(
        self,
        filename: str,
        line: int,
        func_name: str,
        nc1: int,
        nc2: int,
        tin: float,
        tall: float,
    ) -> None:
        self.filename, self.line, self.func_name = filename, line, func_name
        self.nc1, self.nc2, self.tin, self.tall = nc1, nc2, tin, tall
        self.called_by: list[ProfileNode] = []
        self.calls_to: list[ProfileNode] = []
        self.calls_to_elements: list[_Numbers] = []

    def add_called_by(self, pnode: ProfileNode) -> None:
        """Add a function that calls this one."""
        self.called_by.append(pnode)

    def add_calls_to(self, pnode: ProfileNode, time_elements: _Numbers) -> None:
        """Add a function that this one calls, and the numbers of these calls."""
        self.calls_to.append(pnode)
        self.calls_to_elements.append(time_elements)

    @property
    def key(self) -> str:
        """``file:line:name``."""
        return f"{self.filename}:{self.line}:{self.func_name}"

    @property
    def numbers(self) -> _Numbers:
        """Calls and times of the function, from all callers."""
        return self.nc1, self.nc2, self.tin, self.tall

    def __iter__(self) -> Iterator[ProfileNode]:
        """Iterate over this function and all below it, each once."""
        found, stack = {self.key: self}, [self]
        while stack:
            node = stack.pop(0)
            yield node
            new = [child for child in node.calls_to if child.key not in found]
            found |= {child.key: child for child in new}
            stack += [child for i, child in enumerate(new) if child not in new[:i]]

    def __repr__(self) -> str:
        return f"ProfileNode({self.filename!r}, {self.line!r}, {self.func_name!r})"

    def to_text(self, fct_width: int = 60, with_file: bool = True) -> str:
        """Return the call tree of this function, indented by four spaces per level.

        Numbers are those of the calls from the parent line. A function with several callers is
        marked ``+++`` there and has a separate tree below, with all of its calls; without files it
        is expanded everywhere instead, except below itself. Fast functions of Python's library are
        left out.

        Parameters
        ----------
        fct_width : int, default=60
            Width of the column of names.
        with_file : bool, default=True
            Whether to include file names.
        """
        lines = [*(_forest if with_file else _expanded)(self)]
        digits = 1 + max(len(str(count)) for line in lines for count in line.numbers[:2])
        return "\n".join(_format(line, digits, fct_width, with_file) for line in lines)


def _children(node: ProfileNode) -> list[tuple[ProfileNode, _Numbers]]:
    """Return the functions that a function calls, in source order."""
    calls = zip(node.calls_to, node.calls_to_elements, strict=True)
    kept = [
        (child, part)
        for child, part in calls
        if child.filename not in _LIBRARY or part[1] > 10 or part[3] > 1e-4
    ]
    return sorted(kept, key=lambda call: (call[0].filename, call[0].line))


def _forest(root: ProfileNode) -> Iterator[_Line]:
    """Yield the lines of the root's tree, then a tree for each function with several callers."""
    shared = [node for node in root if node is not root and len(node.called_by) != 1]
    trees = {id(node) for node in [root, *shared]}

    def visit(node: ProfileNode, numbers: _Numbers, depth: int) -> Iterator[_Line]:
        yield _Line(node, depth, numbers, again=False)
        for child, part in _children(node):
            if id(child) in trees:
                yield _Line(child, depth + 1, part, again=True)
            else:
                yield from visit(child, part, depth + 1)

    yield from visit(root, root.numbers, 0)
    holder = ProfileNode("", 0, "", 0, 0, 0.0, 0.0)
    for node in shared:
        holder.add_calls_to(node, node.numbers)
    for node, numbers in _children(holder):
        yield from visit(node, numbers, 0)


def _expanded(root: ProfileNode) -> Iterator[_Line]:
    """Yield the lines of a single tree with every call expanded, except below itself."""

    def visit(node: ProfileNode, numbers: _Numbers, above: tuple[int, ...]) -> Iterator[_Line]:
        yield _Line(node, len(above), numbers, again=False)
        if id(node) not in above:
            for child, part in _children(node):
                yield from visit(child, part, (*above, id(node)))

    yield from visit(root, root.numbers, ())


def _format(line: _Line, digits: int, fct_width: int, with_file: bool) -> str:
    indent = 4 * line.depth
    calls, all_calls, inside, total = line.numbers
    name = line.node.func_name
    text = (
        f"{' ' * indent}{_fit(name, fct_width - indent)} -- {calls: {digits}d} "
        f"{all_calls: {digits}d} -- {inside:1.5f} {total:1.5f} --"
    )
    if with_file:
        text += f" {line.node.key} ({name})"
    return text + (" +++" if line.again else "")


def _fit(name: str, width: int) -> str:
    """Return a name padded to a width, or shortened with dots in the middle."""
    if width < 8:
        return name
    half = width // 2 - 1
    return name.ljust(width) if len(name) <= width else f"{name[:half]}...{name[1 - half :]}"


def profile2graph(
    ps: Any, clean_text: Callable[[str], str] | None = None
) -> tuple[ProfileNode, dict[str, ProfileNode]]:
    """Convert a profile to a tree: its root, and all functions by ``file:line:name``.

    Parameters
    ----------
    ps : pstats.Stats or cProfile.Profile
    clean_text : callable, default=None
        Applied to file names.
    """
    table: Any = getattr(ps, "stats", None) if not isinstance(ps, cProfile.Profile) else None
    if table is None:
        table = pstats.Stats(ps).stats  # type: ignore[attr-defined]
    table = {key: value for key, value in table.items() if "_lsprof.Profiler" not in key[2]}
    clean = clean_text or (lambda text: text)
    nodes = {
        key: ProfileNode(clean(key[0].replace("\\", "/")), key[1], key[2], *numbers[:4])
        for key, numbers in table.items()
    }
    for key, numbers in table.items():
        for caller, part in numbers[4].items():
            if caller in nodes:
                nodes[caller].add_calls_to(nodes[key], tuple(part))
                nodes[key].add_called_by(nodes[caller])
    roots = [n for n in nodes.values() if all(caller is n for caller in n.called_by)]
    if not roots:
        raise RuntimeError("Every function in the profile has a caller.")
    by_name = {node.key: node for node in nodes.values()}
    return max(roots, key=lambda node: node.tall), by_name
