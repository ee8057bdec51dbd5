"""Losses, optimizers and whole models built node by node, for `artifacts.generate_artifacts`.

A block adds nodes to the model that `base` or `empty_base` opened and returns the names of their
outputs. Formulas are standard operators; only optimizers are nodes of com.microsoft, as in files of
onnxruntime-training.
"""

from onnxgrad.compat.onnxruntime.training.onnxblock import blocks, loss, optim
from onnxgrad.compat.onnxruntime.training.onnxblock.blocks import Block
from onnxgrad.compat.onnxruntime.training.onnxblock.checkpoint_utils import (
    load_checkpoint_to_model,
    save_checkpoint,
)
from onnxgrad.compat.onnxruntime.training.onnxblock.model_accessor import (
    base,
    custom_op_library,
    empty_base,
)
from onnxgrad.compat.onnxruntime.training.onnxblock.onnxblock import ForwardBlock, TrainingBlock

__all__ = [
    "Block",
    "ForwardBlock",
    "TrainingBlock",
    "base",
    "blocks",
    "custom_op_library",
    "empty_base",
    "load_checkpoint_to_model",
    "loss",
    "optim",
    "save_checkpoint",
]
