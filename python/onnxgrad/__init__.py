"""onnxgrad trains ONNX models.

Three lines train a model exported from scikit-learn, PyTorch or Keras, and write the same file with
new weights:

>>> import onnxgrad as og
>>> trainer = og.Trainer("model.onnx", loss="auto", optimizer="adam")  # doctest: +SKIP
>>> trainer.fit(X, y, validation=0.1, epochs=20, batch_size=32)        # doctest: +SKIP
>>> trainer.save("trained.onnx")                                       # doctest: +SKIP

Models are given as a path, bytes, an ``onnx.ModelProto``, or as exporters return them; arrays as
those of NumPy or another library. All exceptions derive from `onnxgrad.Error`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from onnxgrad import callbacks, data, errors, losses, metrics, optimizers, schedules
from onnxgrad._core import set_image_decoder as _set_image_decoder
from onnxgrad._core import version as _version
from onnxgrad.base.amx import apply_environment as _apply_amx_environment
from onnxgrad.base.amx import use_amx_for_float32
from onnxgrad.data.images import decode_image as _decode_image
from onnxgrad.errors import (
    CheckpointError,
    ConvergenceError,
    DataError,
    DeviceError,
    Error,
    GradientError,
    InternalError,
    ModelError,
    OptionError,
    ShapeError,
    UnsupportedOperatorError,
)
from onnxgrad.history import History
from onnxgrad.precision import Precision
from onnxgrad.sessions import Evaluation, InferenceSession, NodeArg, TrainingSession, WeightInfo
from onnxgrad.trainer import Trainer

__all__ = [
    "CheckpointError",
    "ConvergenceError",
    "DataError",
    "DeviceError",
    "Error",
    "Evaluation",
    "ForwardBackward",
    "GradientCheck",
    "GradientError",
    "Gradients",
    "History",
    "InferenceSession",
    "InternalError",
    "ModelError",
    "NodeArg",
    "OptionError",
    "Precision",
    "Registration",
    "Report",
    "ShapeError",
    "Trainer",
    "TrainingSession",
    "UnsupportedOperatorError",
    "WeightInfo",
    "__version__",
    "add_loss",
    "add_training_info",
    "callbacks",
    "check_gradients",
    "data",
    "errors",
    "features",
    "gradient",
    "hessian",
    "hvp",
    "initialize",
    "jvp",
    "load_state_dict",
    "losses",
    "metrics",
    "open_batch",
    "optimizers",
    "register_gradient",
    "register_operator",
    "replace_head",
    "report",
    "schedules",
    "set_weights",
    "show_versions",
    "state_dict",
    "to_inference",
    "training_step",
    "unfold_batch_norm",
    "use_amx_for_float32",
    "vjp",
    "weight_change",
]

__version__: str = _version()

_set_image_decoder(_decode_image)
_apply_amx_environment()

if _TYPE_CHECKING:
    from onnxgrad.base.versions import show_versions
    from onnxgrad.gradient_checks import GradientCheck, check_gradients
    from onnxgrad.graphs import (
        add_loss,
        add_training_info,
        features,
        gradient,
        hessian,
        hvp,
        initialize,
        jvp,
        load_state_dict,
        open_batch,
        replace_head,
        set_weights,
        state_dict,
        to_inference,
        training_step,
        unfold_batch_norm,
        vjp,
    )
    from onnxgrad.graphs.operators import Registration, register_gradient, register_operator
    from onnxgrad.graphs.reports import Report, report
    from onnxgrad.graphs.weight_changes import weight_change
    from onnxgrad.sessions.forward_backward import ForwardBackward, Gradients

# Imported at the first use: they are not needed for training, which starts faster without them.
_LAZY = {
    "ForwardBackward": "sessions.forward_backward",
    "GradientCheck": "gradient_checks",
    "Gradients": "sessions.forward_backward",
    "Registration": "graphs.operators",
    "Report": "graphs.reports",
    "add_loss": "graphs",
    "check_gradients": "gradient_checks",
    "add_training_info": "graphs",
    "features": "graphs",
    "gradient": "graphs",
    "hessian": "graphs",
    "hvp": "graphs",
    "initialize": "graphs",
    "jvp": "graphs",
    "load_state_dict": "graphs",
    "open_batch": "graphs",
    "register_gradient": "graphs.operators",
    "register_operator": "graphs.operators",
    "replace_head": "graphs",
    "report": "graphs.reports",
    "set_weights": "graphs",
    "show_versions": "base.versions",
    "state_dict": "graphs",
    "to_inference": "graphs",
    "training_step": "graphs",
    "unfold_batch_norm": "graphs",
    "vjp": "graphs",
    "weight_change": "graphs.weight_changes",
}


_LAZY_MODULES = (
    "adapters",
    "distributed",
    "graph_pictures",
    "graphs",
    "plotting",
    "ray",
    "sklearn",
)


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _LAZY_MODULES:
        return import_module(f"onnxgrad.{name}")
    if name in _LAZY:
        return getattr(import_module(f"onnxgrad.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'onnxgrad' has no attribute '{name}'")
