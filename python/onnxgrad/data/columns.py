"""Which columns of a table or file feed which input of a model, and their names in messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import nearest_or
from onnxgrad.errors import DataError

__all__ = ["ColumnPlan", "Feeds", "name_list", "plan_columns"]


class ColumnPlan(NamedTuple):
    """The columns of each input.

    Attributes
    ----------
    named : list of str
        Inputs that have a column of their name.
    stacked_input : str or None
        The input [N, C] that the columns `stacked` make up.
    stacked : list of str
    """

    named: list[str]
    stacked_input: str | None
    stacked: list[str]

    def names(self) -> list[tuple[str, list[str]]]:
        """Return the names of the columns of each input."""
        rest = [] if self.stacked_input is None else [(self.stacked_input, self.stacked)]
        return [*((name, [name]) for name in self.named), *rest]


def plan_columns(
    columns: Sequence[str],
    inputs: Sequence[str],
    taken: Sequence[str] = (),
    *,
    path: str = "",
    stacks: bool = True,
) -> ColumnPlan:
    """Return which columns feed the inputs of a model.

    Columns are matched by name first. What is left makes up the rows [N, C] of the one input that
    has no column of its name. Where other inputs have columns of their names, a single
    column that is left is not used for an input without one: more likely it has another meaning.

    Parameters
    ----------
    columns, inputs : list of str
        Names.
    taken : list of str
        Columns that are used otherwise.
    path : str
        The file they are from, for messages; empty: a table.
    stacks : bool, default=True
        Whether several columns can make up an input.

    Raises
    ------
    DataError
        An input has no columns.
    """
    free = {*columns} - {*taken}
    named = [name for name in inputs if name in free]
    missing = [name for name in inputs if name not in free]
    used = {*taken, *named}
    left = [name for name in columns if name not in used]
    if not missing:
        return ColumnPlan(named, None, [])
    by_name = bool(named) and len(left) == 1
    if len(missing) > 1 or not left or by_name or (len(left) > 1 and not stacks):
        raise DataError(
            what=f"{path or 'the table'}{':' if path else ' has'} no column for the model's input "
            f"'{missing[0]}'",
            file=path,
            value=missing[0],
            detail=f"The model reads {name_list(inputs)}; the {'file' if path else 'table'} has "
            f"{name_list(columns)}.",
            hint=nearest_or(missing[0], left, "Name columns (or arrays) like the inputs."),
        )
    return ColumnPlan(named, missing[0], left)


def name_list(names: Sequence[str], most: int = 8) -> str:
    """Return names in quotes, the first ones of many."""
    shown = ", ".join(f"'{name}'" for name in list(names)[:most])
    return shown + (f", ... ({len(names)} in total)" if len(names) > most else "")


class Feeds(dict[str, np.ndarray[Any, Any]]):
    """Arrays by input, made of columns with names.

    Attributes
    ----------
    plan : ColumnPlan
    origin : _core.DataOrigin
        What messages call their rows and columns.
    line_of : function or None
        The line of the file that a row is on.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        plan: ColumnPlan,
        *,
        targets: Mapping[str, str] | None = None,
        sample_weight: str | None = None,
        path: str = "",
        line_of: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(arrays)
        self.plan = plan
        self.line_of = line_of
        named = [(output, [name]) for output, name in (targets or {}).items()]
        self.origin = _core.DataOrigin(path, line_of, plan.names(), named, sample_weight or "")

    def row(self, row: int) -> str:
        """Return what messages call a row."""
        return f"row {row}" if self.line_of is None else f"line {self.line_of(row)}"
