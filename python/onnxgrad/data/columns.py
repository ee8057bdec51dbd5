"""Assignment of the columns of a table or file to the inputs of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import is_number, nearest_or
from onnxgrad.errors import DataError

__all__ = ["ColumnPlan", "Feeds", "feeds_of", "name_list", "plan_columns", "without_gaps"]


class ColumnPlan(NamedTuple):
    """The columns of each input.

    Attributes
    ----------
    named : dict of str to str
        The column of each input that has one of its name.
    stacked_input : str or None
        The input [N, C] that consists of the columns `stacked`.
    stacked : list of str
    """

    named: dict[str, str]
    stacked_input: str | None
    stacked: list[str]

    def names(self) -> list[tuple[str, list[str]]]:
        """Return the names of the columns of each input."""
        rest = [] if self.stacked_input is None else [(self.stacked_input, self.stacked)]
        return [*((name, [column]) for name, column in self.named.items()), *rest]


def plan_columns(
    columns: Sequence[str],
    inputs: Sequence[str],
    taken: Sequence[str] = (),
    *,
    path: str = "",
    stacks: bool = True,
    maps: Mapping[str, Sequence[str]] | None = None,
) -> ColumnPlan:
    """Return which columns feed the inputs of a model.

    Columns are matched by name first, as they are or as exporters write them: skl2onnx calls the
    input of a column ``body mass (kg)`` ``body_mass__kg_``. The remaining ones make up the rows
    [N, C] of the only input without a column of its name. If other inputs were matched by name, a
    single remaining column is not used: it probably has another meaning.

    Parameters
    ----------
    columns, inputs : list of str
        Names.
    taken : list of str
        Columns with another use.
    path : str
        The file they are from, for messages; empty for a table.
    stacks : bool, default=True
        Whether several columns can make up an input.
    maps : dict of str to list of str, default=None
        The columns of inputs that are maps: their keys.

    Raises
    ------
    DataError
        An input has no columns.
    """
    free = {*columns} - {*taken}
    named = {name: name for name in inputs if name in free}
    missing = [name for name in inputs if name not in free]
    for name in missing:
        spelled = [one for one in columns if one in free and _plain(one) == _plain(name)]
        if len(spelled) == 1:
            named[name] = spelled[0]
    missing = [name for name in missing if name not in named]
    used = {*taken, *named.values()}
    left = [name for name in columns if name not in used]
    if not missing:
        return ColumnPlan(named, None, [])
    keys = (maps or {}).get(missing[0]) if len(missing) == 1 and stacks else None
    if keys is not None:
        absent = next((key for key in keys if key not in left), None)
        if absent is None:
            return ColumnPlan(named, missing[0], list(keys))
        raise DataError(
            what=f"{path or 'the table'}{':' if path else ' has'} no column for the key "
            f"'{absent}' of the maps '{missing[0]}'",
            file=path,
            value=absent,
            hint="Add a column of that name; its cells may be empty.",
        )
    by_name = bool(named) and len(left) == 1
    if len(missing) > 1 or not left or by_name or (len(left) > 1 and not stacks):
        raise _no_column(missing[0], columns, inputs, taken, left, path)
    return ColumnPlan(named, missing[0], left)


def _plain(name: str) -> str:
    """Return the name with an underscore in place of all but letters and digits."""
    return re.sub(r"[^0-9A-Za-z]", "_", name)


def _no_column(
    missing: str,
    columns: Sequence[str],
    inputs: Sequence[str],
    taken: Sequence[str],
    left: Sequence[str],
    path: str,
) -> DataError:
    if missing in taken:
        return DataError(
            what=f"{path or 'the table'}: column '{missing}' is an input of the model, so it "
            "cannot be the target, a weight or ignored too",
            file=path,
            value=missing,
            hint="Choose another column, or train a model without that input.",
        )
    has_no_header = bool(path) and any(is_number(name) and not name.isdigit() for name in columns)
    return DataError(
        what=f"{path or 'the table'}{':' if path else ' has'} no column for the model's input "
        f"'{missing}'",
        file=path,
        value=missing,
        detail=f"The first line has {name_list(columns)}."
        if has_no_header
        else f"The model reads {name_list(inputs)}; the {'file' if path else 'table'} has "
        f"{name_list(columns)}.",
        hint="It looks like data: write a line with the names of the columns before it."
        if has_no_header
        else nearest_or(missing, left, "Name the columns (or arrays) like the inputs."),
    )


def without_gaps(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the rows of maps with 0 for empty cells: keys that a map does not have."""
    if rows.dtype.kind != "f" or not np.isnan(rows).any():
        return rows
    return np.where(np.isnan(rows), rows.dtype.type(0), rows)


def name_list(names: Sequence[str], limit: int = 8) -> str:
    """Return names in quotes; only the first ones if there are many."""
    shown = ", ".join(f"'{name}'" for name in list(names)[:limit])
    return shown + (f", ... ({len(names)} in total)" if len(names) > limit else "")


class Feeds(dict[str, np.ndarray[Any, Any]]):
    """Arrays by input, built from named columns.

    Attributes
    ----------
    plan : ColumnPlan
    origin : _core.DataOrigin
        Names of rows and columns in messages.
    line_of : function or None
        Returns the line of a row in the file.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        plan: ColumnPlan,
        *,
        targets: Mapping[str, str | Sequence[str]] | None = None,
        sample_weight: str | None = None,
        path: str = "",
        line_of: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(arrays)
        self.plan = plan
        self.line_of = line_of
        named = [
            (output, [name] if isinstance(name, str) else list(name))
            for output, name in (targets or {}).items()
        ]
        self.origin = _core.DataOrigin(path, line_of, plan.names(), named, sample_weight or "")

    def row(self, row: int) -> str:
        """Return the name of a row in messages."""
        return f"row {row}" if self.line_of is None else f"line {self.line_of(row)}"


def feeds_of(X: Any) -> Feeds | None:
    """Return rows that have names for messages, or None for any others."""
    return X if isinstance(X, Feeds) else None
