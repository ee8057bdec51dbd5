"""onnxcustom's module tree on onnxgrad's engine."""

__version__ = "0.4.344"
__max_supported_opset__ = 26


def get_max_opset() -> int:
    """Return the newest operator set that can be trained."""
    return __max_supported_opset__
