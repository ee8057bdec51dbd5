"""Hooks that a training calls between its steps and epochs.

The loop itself runs in C++ and does not stop for Python; callbacks are called at the end of an
epoch and, where they ask for it, every `every_n_steps` steps.
"""

from onnxgrad.callbacks.base import Callback, CallbackLike, Logs
from onnxgrad.callbacks.loggers import CSVLogger, OptunaPruning, TensorBoard
from onnxgrad.callbacks.progress import Progress
from onnxgrad.callbacks.stopping import Checkpoint, CheckpointWarning, EarlyStopping

__all__ = [
    "CSVLogger",
    "Callback",
    "CallbackLike",
    "Checkpoint",
    "CheckpointWarning",
    "EarlyStopping",
    "Logs",
    "OptunaPruning",
    "Progress",
    "TensorBoard",
]
