"""Quantization of models, and the rows to calibrate it with."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from onnxgrad import _core
from onnxgrad.base.checks import several
from onnxgrad.base.models import ModelLike, deliver, kind_if, to_core_model
from onnxgrad.data.arrays import ArrayLike, as_numpy, from_native
from onnxgrad.errors import DataError
from onnxgrad.quantization.described import Quantization, QuantizeLike, as_quantization

if TYPE_CHECKING:
    import onnx

__all__ = ["CalibrationLike", "first_rows", "quantize", "quantized"]

_BATCH = 32

CalibrationLike: TypeAlias = "ArrayLike | Mapping[str, ArrayLike] | Iterable[Any]"
"""An array [N, ...], a dictionary of arrays by input, or several of these, a batch each."""


def quantize(
    model: ModelLike,
    data: CalibrationLike | None = None,
    quantize: QuantizeLike = "int8",
    *,
    path: str | os.PathLike[str] | None = None,
    like: bool = False,
    **options: Any,
) -> onnx.ModelProto:
    """Return a model whose layers have integer weights and inputs, without a training.

    The result is an ordinary ONNX file with QuantizeLinear and DequantizeLinear, which any runtime
    runs; a `Trainer` trains it on.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
    data : array [N, ...], dict of str to array, or list of these, default=None
        Rows whose activations are measured; a list has a batch each. None needs
        ``activations=False``.
    quantize : {"int8", "int4"}, Quantization or dict, default="int8"
        See `quantization.Quantization`.
    path : str or path, default=None
        Where to write the result as well.
    like : bool, default=False
        As for `gradient`.
    **options
        Options of `quantization.Quantization`.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        There is no layer to quantize, or a pattern matches none.

    Examples
    --------
    >>> import numpy as np
    >>> import onnxgrad as og
    >>> small = og.quantize(linear_model, np.ones((8, 2), np.float32))
    >>> [node.op_type for node in small.graph.node][:3]
    ['DequantizeLinear', 'QuantizeLinear', 'DequantizeLinear']
    """
    kind = kind_if(like, model, path)
    described = as_quantization(quantize)
    described = described.replace(**options) if options else described
    return deliver(quantized(to_core_model(model), described, data), path, kind)


def quantized(
    model: _core.Model, described: Quantization, calibration: CalibrationLike | None
) -> _core.Model:
    """Return the model of the extension, quantized."""
    batches = (
        []
        if calibration is None or not described.needs_rows
        else _batches(model, calibration, described.rows)
    )
    return _core.quantize(model, batches, **described._native())


def _by_input(model: _core.Model, rows: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of the inputs, in their types."""
    dtypes = {value.name: value.dtype for value in model.inputs}
    if not isinstance(rows, Mapping):
        if len(dtypes) != 1:
            raise DataError(
                what=f"the model has {len(dtypes)} inputs, but the calibration is one array",
                value="calibration",
                hint="Give a dictionary of arrays by input.",
            )
        rows = dict.fromkeys(dtypes, rows)
    if missing := [name for name in dtypes if name not in rows]:
        raise DataError(
            what=f"calibration: there is no input '{missing[0]}'",
            value="calibration",
            hint="Give an array for each input of the model.",
        )
    arrays = {name: as_numpy(rows[name], name) for name in dtypes}
    return {name: _converted(name, array, dtypes[name]) for name, array in arrays.items()}


def _converted(name: str, array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return the rows of an input in its type."""
    if dtype == "string":
        return array
    try:
        return array.astype(dtype)
    except (TypeError, ValueError) as error:
        raise DataError(
            what=f"calibration: input '{name}' is {dtype}, but the rows are {array.dtype}",
            value="calibration",
            detail=str(error),
            hint="Give the rows that the model is trained on.",
        ) from error


def _batches(
    model: _core.Model, calibration: Any, most: int
) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Return batches of at most `most` rows in all, spread over the given ones."""
    is_several = isinstance(calibration, (list, tuple)) or not (
        isinstance(calibration, Mapping)
        or hasattr(calibration, "__array__")
        or hasattr(calibration, "__dlpack__")
    )
    if is_several and not _is_row_list(calibration):
        return [_by_input(model, one) for one in several("calibration", calibration, "arrays")]
    arrays = _by_input(model, calibration)
    count = max((len(array) for array in arrays.values() if array.ndim), default=0)
    fixed = {
        value.shape[0] for value in model.inputs if value.shape and isinstance(value.shape[0], int)
    }
    size = min(fixed) if fixed else _BATCH
    chosen = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
    batches = []
    for start in range(0, len(chosen), size):
        rows = chosen[start : start + size]
        if fixed and len(rows) < size:
            break
        batches.append(
            {
                name: array[rows] if array.ndim and len(array) == count else array
                for name, array in arrays.items()
            }
        )
    return batches


def _is_row_list(calibration: Any) -> bool:
    """Return whether a list has rows of numbers, not batches."""
    return isinstance(calibration, (list, tuple)) and not any(
        isinstance(one, Mapping) or getattr(one, "ndim", 1) > 1 for one in calibration
    )


def first_rows(source: _core.DataSource, inputs: Iterable[Any], most: int) -> dict[str, Any]:
    """Return the first rows of a source by input, at most `most`."""
    names = [value.name for value in inputs]
    source.start()
    parts: list[dict[str, np.ndarray[Any, Any]]] = []
    count = 0
    while count < most and (chunk := source.next()) is not None:
        arrays = {
            name or names[0]: from_native(value)[: most - count]
            for name, value in chunk.inputs.items()
        }
        count += len(next(iter(arrays.values())))
        parts.append(arrays)
    if not parts:
        return {}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
