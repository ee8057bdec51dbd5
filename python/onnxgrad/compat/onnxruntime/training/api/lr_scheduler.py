"""A learning rate with linear warm-up and linear decay."""

from __future__ import annotations

from onnxgrad.compat.onnxruntime.training.api.optimizer import Optimizer

__all__ = ["LinearLRScheduler"]


class LinearLRScheduler:
    """Sets the rate of an optimizer from the number of its steps, s.

    It is initial_lr s / warmup for s < warmup, and then
    max(0, initial_lr (total - s) / (total - warmup)).

    Parameters
    ----------
    optimizer : Optimizer
    warmup_step_count, total_step_count : int
    initial_lr : float
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
    ) -> None:
        self._optimizer = optimizer
        self._warmup, self._total = warmup_step_count, total_step_count
        self._initial_lr = initial_lr
        self.step()

    def step(self) -> None:
        """Set the rate; call it after each step of the optimizer."""
        done = self._optimizer._steps
        if done < self._warmup:
            factor = done / max(1, self._warmup)
        else:
            factor = max(0.0, (self._total - done) / max(1, self._total - self._warmup))
        self._optimizer.set_learning_rate(self._initial_lr * factor)
