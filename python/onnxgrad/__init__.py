"""onnxgrad trains ONNX models."""

from onnxgrad._core import version as _version

__all__ = ["__version__"]

__version__: str = _version()
