"""Training a model over a dataset."""

from onnxgrad.trainer.trainer import Trainer

__all__ = ["Trainer"]
