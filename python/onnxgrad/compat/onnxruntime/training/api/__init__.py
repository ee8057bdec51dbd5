"""Training with the files that `generate_artifacts` writes."""

from onnxgrad.compat.onnxruntime.training.api.checkpoint_state import CheckpointState, Parameter
from onnxgrad.compat.onnxruntime.training.api.lr_scheduler import LinearLRScheduler
from onnxgrad.compat.onnxruntime.training.api.module import Module
from onnxgrad.compat.onnxruntime.training.api.optimizer import Optimizer

__all__ = ["CheckpointState", "LinearLRScheduler", "Module", "Optimizer", "Parameter"]
