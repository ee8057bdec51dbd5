"""Training."""

from onnxgrad.compat.onnxcustom.training.excs import (
    ConvergenceError,
    ConvergenceWarning,
    EvaluationError,
    ProviderError,
)

__all__ = ["ConvergenceError", "ConvergenceWarning", "EvaluationError", "ProviderError"]
