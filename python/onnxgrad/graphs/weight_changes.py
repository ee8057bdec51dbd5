"""Differences between the weights of two versions of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onnxgrad.base.models import ModelLike, to_core_model
from onnxgrad.base.values import weight_infos
from onnxgrad.data.arrays import from_native
from onnxgrad.errors import ModelError
from onnxgrad.graphs.tables import Column, Table, html_table, text_table

__all__ = ["WeightChange", "WeightChanges", "weight_change"]


class WeightChange(NamedTuple):
    """Difference of a weight between two files.

    Attributes
    ----------
    name : str
    shape : tuple of int
    norm_before, norm_after : float
        Euclidean norm.
    relative : float
        The norm of the difference divided by `norm_before`; infinity for a weight that was 0.
    """

    name: str
    shape: tuple[int, ...]
    norm_before: float
    norm_after: float
    relative: float


class WeightChanges(list[WeightChange]):
    """The changes of all floating weights; prints as a table, which notebooks render."""

    def __str__(self) -> str:
        return "\n".join(text_table(_table(self))) + "\n"

    def _repr_html_(self) -> str:
        return html_table(_table(self))


def weight_change(before: ModelLike, after: ModelLike) -> WeightChanges:
    """Return how much each floating weight differs between two versions of a model.

    Parameters
    ----------
    before, after : path, bytes or onnx.ModelProto
        The same model with different weights.

    Returns
    -------
    WeightChanges
        A list of `WeightChange`, in the order of the file.

    Raises
    ------
    ModelError
        The models do not have the same weights; the message names the first that differs.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> after = og.set_weights(linear_model, {"intercept": np.array([0.25], np.float32)})
    >>> [(change.name, change.relative) for change in og.weight_change(linear_model, after)]
    [('coef', 0.0), ('intercept', 1.0)]
    """
    first, second = to_core_model(before), to_core_model(after)
    others = {weight.name: weight for weight in weight_infos(second.weights)}
    changes = WeightChanges()
    for weight in weight_infos(first.weights):
        if not weight.is_floating:
            continue
        other = others.get(weight.name)
        if other is None or other.shape != weight.shape:
            found = "is missing" if other is None else f"is {list(other.shape)}"
            raise ModelError(
                what=f"weight '{weight.name}' {list(weight.shape)} {found} in the second model",
                value=weight.name,
                hint="Give two versions of the same model.",
            )
        old, new = (
            from_native(model.weight(weight.name)).astype(np.float64) for model in (first, second)
        )
        norm, distance = float(np.linalg.norm(old)), float(np.linalg.norm(new - old))
        relative = distance / norm if norm else (math.inf if distance else 0.0)
        norm_after = float(np.linalg.norm(new))
        changes.append(WeightChange(weight.name, weight.shape, norm, norm_after, relative))
    return changes


def _table(changes: Sequence[WeightChange]) -> Table:
    columns = [
        Column("weight", None),
        Column("shape", 16),
        Column("norm before", 12, is_number=True),
        Column("norm after", 12, is_number=True),
        Column("change", 8, is_number=True),
    ]
    rows = [
        (
            change.name,
            str(list(change.shape)),
            f"{change.norm_before:.6g}",
            f"{change.norm_after:.6g}",
            f"{change.relative:.2%}" if change.relative < 10 else f"{change.relative:.3g}",
        )
        for change in changes
    ]
    return Table(columns, rows)
