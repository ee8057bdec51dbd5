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

from _thread import RLock as _RLock  # not from threading, which need not be imported

from onnxgrad._core import set_image_decoder as _set_image_decoder
from onnxgrad._core import version as _version
from onnxgrad.base.amx import apply_environment as _apply_amx_environment
from onnxgrad.base.amx import use_amx_for_float32
from onnxgrad.base.images import decode_image as _decode_image

TYPE_CHECKING = False  # not from typing, whose import takes as long as that of the extension
if TYPE_CHECKING:
    from onnxgrad import callbacks, data, devices, errors, losses, metrics, optimizers, schedules
    from onnxgrad.base.versions import show_versions
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
    from onnxgrad.gradient_checks import GradientCheck, check_gradients
    from onnxgrad.graphs import (
        add_loss,
        add_training_info,
        dequantize_weights,
        features,
        gradient,
        hessian,
        hvp,
        initialize,
        jvp,
        load_state_dict,
        open_batch,
        quantize_weights,
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
    from onnxgrad.history import History
    from onnxgrad.precision import Precision
    from onnxgrad.quantization import quantize
    from onnxgrad.sessions import Evaluation, InferenceSession, NodeArg, TrainingSession, WeightInfo
    from onnxgrad.sessions.forward_backward import ForwardBackward, Gradients
    from onnxgrad.trainer import Trainer
    from onnxgrad.trainer.cross_validation import CrossValidation, cross_validate

__all__ = [
    "CheckpointError",
    "ConvergenceError",
    "CrossValidation",
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
    "cross_validate",
    "data",
    "dequantize_weights",
    "devices",
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
    "quantization",
    "quantize",
    "quantize_weights",
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

# Modules and the public names that are theirs, imported at the first use of a name, and NumPy with
# them: a program that asks onnxgrad for little, or only later, starts fast.
_NAMES = {
    "base.versions": "show_versions",
    "errors": (
        "CheckpointError ConvergenceError DataError DeviceError Error GradientError InternalError"
        " ModelError OptionError ShapeError UnsupportedOperatorError"
    ),
    "gradient_checks": "GradientCheck check_gradients",
    "graphs": (
        "add_loss add_training_info dequantize_weights features gradient hessian hvp initialize jvp"
        " load_state_dict open_batch quantize_weights replace_head set_weights state_dict"
        " to_inference training_step"
        " unfold_batch_norm vjp"
    ),
    "graphs.operators": "Registration register_gradient register_operator",
    "graphs.reports": "Report report",
    "graphs.weight_changes": "weight_change",
    "history": "History",
    "precision": "Precision",
    "quantization": "quantize",
    "sessions": "Evaluation InferenceSession NodeArg TrainingSession WeightInfo",
    "sessions.forward_backward": "ForwardBackward Gradients",
    "trainer": "Trainer",
    "trainer.cross_validation": "CrossValidation cross_validate",
}
_IMPORTING = _RLock()
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
_SUBPACKAGES = {
    *(
        "adapters",
        "callbacks",
        "data",
        "devices",
        "distributed",
        "embeddings",
        "errors",
        "files",
        "graph_pictures",
        "graphs",
        "history",
    ),
    *(
        "losses",
        "metrics",
        "optimizers",
        "plotting",
        "precision",
        "profiles",
        "quantization",
        "ray",
    ),
    *("schedules", "session_options", "sessions", "sklearn", "trainer"),
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _SUBPACKAGES and name not in _MODULES:
        raise AttributeError(f"module 'onnxgrad' has no attribute '{name}'")
    # Threads that import modules of one package in different orders wait for each other; Python
    # then gives one of them a module that is not complete. So one thread imports at a time, unless
    # it waits for a module whose importer is waiting here.
    is_alone = _IMPORTING.acquire(timeout=5)
    try:
        if name in _SUBPACKAGES:
            return import_module(f"onnxgrad.{name}")
        found = getattr(import_module(f"onnxgrad.{_MODULES[name]}"), name)
        globals()[name] = found
        return found
    finally:
        if is_alone:
            _IMPORTING.release()


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_SUBPACKAGES})


_set_image_decoder(_decode_image)
_apply_amx_environment()
