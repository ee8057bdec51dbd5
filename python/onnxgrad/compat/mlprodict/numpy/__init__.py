"""NumPy-like functions as ONNX models, traced with ndonnx."""

from onnxgrad.compat.mlprodict.numpy.onnx_numpy import NDArray, onnxnumpy, onnxnumpy_default

__all__ = ["NDArray", "onnxnumpy", "onnxnumpy_default"]
