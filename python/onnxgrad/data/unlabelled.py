"""Files of rows without labels: for a teacher alone, or pairs of a contrastive loss."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxgrad import _core
from onnxgrad.data.maps import columns_of_maps
from onnxgrad.data.shards import is_pattern
from onnxgrad.data.tables import Table, read_npy, read_table

__all__ = ["inputs_of_table", "read_if_unlabelled"]


def read_if_unlabelled(session: _core.TrainingSession, views: int, X: Any, y: Any) -> Any:
    """Return the rows of a file if `X` is the path of one and the loss has no target, else `X`.

    The file is read into memory.

    Raises
    ------
    DataError
    """
    is_file = isinstance(X, (str, os.PathLike)) and not is_pattern(X)
    if y is not None or not is_file or session.loss.target.name:
        return X
    path = os.fspath(X)
    if Path(path).suffix.lower() == ".npy":
        return read_npy(path)
    return inputs_of_table(session, views, read_table(path))


def inputs_of_table(
    session: _core.TrainingSession, views: int, table: Table, without: Sequence[str] = ()
) -> Any:
    """Return the inputs of a model in a table, with the siblings of several views.

    A sibling has a column of its name, or those of its input with the same ending: ``a_2`` and
    ``b_2`` for an input that is made of ``a`` and ``b``.
    """
    inputs = session.inputs
    maps = columns_of_maps(inputs)
    texts = {value.name for value in inputs if value.dtype == "string"}
    names = [value.name for value in inputs]
    if views == 1 or all(name in table.columns for name in names):
        return table.inputs(names, without, maps=maps, texts=texts)
    endings = [""] + [f"_{view}" for view in range(2, views + 1)]
    firsts = [name for name in table.columns if name not in without]
    stems = [name for name in firsts if all(name + ending in firsts for ending in endings)]
    count = len(names) // views
    arrays: dict[str, Any] = {}
    for view, ending in enumerate(endings):
        columns = {name: table.columns[name + ending] for name in stems}
        part = Table(table.path, columns, table.is_csv, table.delimiter)
        found = part.inputs(names[:count], (), maps=maps, texts=texts)
        own = names[view * count : (view + 1) * count]
        arrays |= {one: found[name] for one, name in zip(own, names[:count], strict=True)}
    return arrays
