"""Training a model over a dataset."""

from onnxgrad.trainer.described import FitOptions
from onnxgrad.trainer.trainer import Trainer

__all__ = ["FitOptions", "Trainer"]
