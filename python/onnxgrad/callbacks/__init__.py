"""Callbacks that a training calls between its steps and epochs.

The loop itself runs in C++. It calls Python at the end of an epoch and, for callbacks that set
`every_n_steps`, after that many steps.
"""

from onnxgrad.callbacks.base import Callback, CallbackLike, Logs
from onnxgrad.callbacks.loggers import CSVLogger, OptunaPruning, TensorBoard
from onnxgrad.callbacks.progress import Progress
from onnxgrad.callbacks.sampling import SampleText
from onnxgrad.callbacks.stopping import Checkpoint, CheckpointWarning, EarlyStopping
from onnxgrad.callbacks.unfreezing import GradualUnfreezing

__all__ = [
    "CSVLogger",
    "Callback",
    "CallbackLike",
    "Checkpoint",
    "CheckpointWarning",
    "EarlyStopping",
    "GradualUnfreezing",
    "Logs",
    "OptunaPruning",
    "Progress",
    "SampleText",
    "TensorBoard",
]
