"""Running a model with inputs and outputs by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import onnxgrad as og
from onnxgrad.compat.models import load_proto

__all__ = ["OnnxInference"]

_OWN = ("python", "python_compiled", "onnxgrad", None)
_STOCK = ("onnxruntime1", "onnxruntime2", "onnxruntime")


class OnnxInference:
    """Runs a model on a dictionary of inputs, and returns a dictionary of outputs.

    Parameters
    ----------
    onnx_or_bytes_or_stream : onnx.ModelProto, bytes or path
    runtime : str, default=None
        None and ``"python"`` mean onnxgrad's engine; ``"onnxruntime1"`` means stock onnxruntime, or
        onnxgrad's engine if that is not installed.
    """

    def __init__(self, onnx_or_bytes_or_stream: Any, runtime: str | None = None) -> None:
        if runtime not in (*_OWN, *_STOCK):
            raise ValueError(f"Unexpected runtime {runtime!r}, expected one of {_OWN + _STOCK}.")
        self.obj = onnx_or_bytes_or_stream
        self.runtime = runtime
        self._session: Any = None
        if runtime in _STOCK:
            self._session = _stock_session(self.obj)
        if self._session is None:
            self._session = og.InferenceSession(self.obj)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return [value.name for value in self._session.get_inputs()]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return [value.name for value in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, Any], clean_right_away: bool = False) -> dict[str, Any]:
        """Return the outputs by name for inputs by name."""
        del clean_right_away
        return dict(zip(self.output_names, self._session.run(None, dict(inputs)), strict=True))

    def __repr__(self) -> str:
        return f"OnnxInference(..., runtime={self.runtime!r})"


def _stock_session(model: Any) -> Any:
    try:
        import onnxruntime
    except ImportError:
        return None
    is_read = isinstance(model, (str, os.PathLike, bytes))
    data = model if is_read else load_proto(model).SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
