"""onnxcustom's module tree on onnxgrad's engine."""

from typing import Any

__all__ = ["__version__", "get_max_opset"]

__version__ = "0.4.344"

_NEWEST = 26  # trainable


def get_max_opset() -> int:
    """Return the newest operator set that can be trained and, if installed, skl2onnx supports."""
    try:
        from skl2onnx import __max_supported_opset__ as newest
    except ImportError:
        return _NEWEST
    return min(_NEWEST, int(newest))


def __getattr__(name: str) -> Any:
    if name == "__max_supported_opset__":  # imports skl2onnx, which takes a second
        return get_max_opset()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
