"""Exceptions and warnings of training."""

from onnxgrad import ConvergenceError

__all__ = ["ConvergenceError", "ConvergenceWarning", "EvaluationError", "ProviderError"]


class ConvergenceWarning(UserWarning):
    """The training may not have converged."""


class EvaluationError(RuntimeError):
    """A loss could not be evaluated."""


class ProviderError(RuntimeError, ValueError):
    """An execution provider is unknown or not available."""
