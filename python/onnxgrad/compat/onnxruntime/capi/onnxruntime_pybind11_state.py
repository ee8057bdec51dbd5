"""The classes of onnxruntime's extension; see `onnxgrad.compat.onnxruntime`."""

from onnxgrad.compat.onnxruntime.capi._pybind_state import *  # noqa: F403 (the same module)
from onnxgrad.compat.onnxruntime.capi._pybind_state import (  # noqa: F401 (looked up by users)
    __all__,
    __getattr__,
)
