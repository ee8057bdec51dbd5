"""Batches of consecutive rows that start at random rows, for custom training loops.

The optimizers pass whole arrays to the engine's training loop, which draws batches in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from onnxgrad.compat.onnxcustom.training.fitting import new_seed
from onnxgrad.compat.onnxcustom.utils.onnxruntime_helper import (
    get_ort_device,
    numpy_to_ort_value,
    ort_device_to_string,
)
from onnxgrad.compat.onnxruntime.values import OrtValue, array_of
from onnxgrad.data import window_starts

__all__ = ["OrtDataLoader"]


class OrtDataLoader:
    """Draws ``ceil(N / batch_size)`` windows of consecutive rows in each iteration.

    Parameters
    ----------
    X, y : array or OrtValue
        Arrays with N rows; a one-dimensional target becomes a column.
    sample_weight : array [N] or [N, 1], default=None
    batch_size : int, default=20
        0, or N or more, means all rows.
    device : str, default="cpu"
    random_iter : bool, default=True
        False iterates over the rows in order.

    Attributes
    ----------
    desc : list of (shape, dtype)
        Shapes and dtypes of X, y and the sample weights, if any.
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        batch_size: int = 20,
        device: str = "cpu",
        random_iter: bool = True,
    ) -> None:
        self.X, self.y = array_of(X), array_of(y)
        self.sample_weight = None if sample_weight is None else array_of(sample_weight)
        if self.y.ndim == 1:
            self.y = self.y.reshape((-1, 1))
        if self.X.shape[0] != self.y.shape[0]:
            raise ValueError(f"Shape mismatch X.shape={self.X.shape!r}, y.shape={self.y.shape!r}.")
        if self.sample_weight is not None:
            if self.sample_weight.size != len(self.X):
                raise ValueError(
                    f"Shape mismatch X.shape={self.X.shape!r}, "
                    f"sample_weight.shape={self.sample_weight.shape!r}."
                )
            self.sample_weight = self.sample_weight.reshape(-1)
        self.desc = [(array.shape, array.dtype) for array in self.data_np]
        self.batch_size = batch_size
        self.device = get_ort_device(device)
        self.random_iter = random_iter

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        yield from self.iter_numpy()

    def __repr__(self) -> str:
        device = ort_device_to_string(self.device)
        return f"OrtDataLoader(..., ..., batch_size={self.batch_size!r}, device={device!r})"

    def _windows(self) -> Iterator[slice]:
        rows = len(self)
        size = min(self.batch_size, rows) if self.batch_size > 0 else rows
        ordered = range(0, rows, size)
        starts = window_starts(rows, size, new_seed()) if self.random_iter else ordered
        for start in starts:
            yield slice(start, min(start + size, rows))

    def iter_numpy(self) -> Iterator[tuple[Any, ...]]:
        """Yield (X, y) or (X, y, sample_weight) as views of the arrays."""
        for rows in self._windows():
            yield tuple(array[rows] for array in self.data_np)

    def iter_ortvalue(self) -> Iterator[tuple[OrtValue, ...]]:
        """Yield the batches as OrtValues that share the memory of the arrays."""
        for batch in self.iter_numpy():
            yield tuple(numpy_to_ort_value(array, self.device) for array in batch)

    def iter_bind(self, bind: Any, names: list[str]) -> Iterator[int]:
        """Bind each batch to the inputs `names` of an IO binding, and yield its number of rows."""
        for batch in self.iter_numpy():
            for name, array in zip(names, batch, strict=False):
                bind.bind_cpu_input(name, np.ascontiguousarray(array))
            yield len(batch[0])

    def data(self) -> tuple[Any, ...]:
        """Return all data."""
        return self.data_np

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "device": ort_device_to_string(self.device)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.device = get_ort_device(state["device"])

    @property
    def data_np(self) -> tuple[Any, ...]:
        """The arrays: (X, y) or (X, y, sample_weight)."""
        weight = () if self.sample_weight is None else (self.sample_weight,)
        return (self.X, self.y, *weight)

    @property
    def data_ort(self) -> tuple[OrtValue, ...]:
        """The arrays as OrtValues that share their memory."""
        return tuple(numpy_to_ort_value(array, self.device) for array in self.data_np)
