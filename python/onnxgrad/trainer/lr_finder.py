"""Finding a learning rate in a short trial."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxgrad.base.optional import import_optional
from onnxgrad.callbacks.base import Callback, Logs, RunningTrainer

__all__ = ["LrFinder"]

_SMOOTHING = 0.9  # decay of the running mean of losses
_DIVERGED = 4.0  # multiple of the smallest smoothed loss at which the trial ends


class LrFinder(Callback):
    """Losses over increasing learning rates; the result of `Trainer.lr_find`.

    Attributes
    ----------
    lrs : list of float
        Rates that were tried, in geometric progression.
    losses : list of float
        The smoothed loss at each rate, before its step.
    suggestion : float or None
        A tenth of the rate with the smallest loss; None if the loss never falls by more than 1 %
        and more than it varies between batches.
    """

    every_n_steps = 1

    def __init__(self, min_lr: float, max_lr: float, steps: int) -> None:
        self._plan = np.geomspace(min_lr, max_lr, steps).tolist()
        self._mean = 0.0
        self.lrs: list[float] = []
        self.losses: list[float] = []
        self._raw: list[float] = []

    def __repr__(self) -> str:
        return f"LrFinder({len(self.lrs)} rates, suggestion={self.suggestion})"

    def on_train_begin(self, trainer: RunningTrainer) -> None:
        """Set the first rate."""
        trainer.session.lr = self._plan[0]

    def on_step_end(self, trainer: RunningTrainer, logs: Logs) -> bool:
        """Record the loss and set the next rate; True after the last one, or if it diverges."""
        loss = logs["train_loss"]
        if not math.isfinite(loss):
            return True
        count = len(self.lrs)
        self._mean = _SMOOTHING * self._mean + (1 - _SMOOTHING) * loss
        self.lrs.append(self._plan[count])
        self._raw.append(loss)
        self.losses.append(self._mean / (1 - _SMOOTHING ** (count + 1)))
        if count + 1 == len(self._plan) or self.losses[-1] > _DIVERGED * min(self.losses):
            return True
        trainer.session.lr = self._plan[count + 1]
        return False

    @property
    def suggestion(self) -> float | None:
        """A tenth of the rate with the smallest loss; None if the loss never falls."""
        # At the first rates nothing is learned yet: their losses vary only between batches.
        first = max(2, len(self._plan) // 5)
        if len(self.losses) <= first:
            return None
        before = float(np.mean(self._raw[:first]))
        smallest = min(self.losses[first:])
        best = self.losses.index(smallest, first)
        near = self._raw[max(0, best - first) : best + 1]
        smoothed = math.sqrt((1 - _SMOOTHING) / (1 + _SMOOTHING))
        errors = np.std(self._raw[:first]) / math.sqrt(first), np.std(near) * smoothed
        if before - smallest < max(0.01 * abs(before), 2.5 * float(sum(errors))):
            return None
        return self.lrs[best] / 10

    def plot(self, ax: Any = None) -> Any:
        """Draw the losses over the rates; return the matplotlib axes."""
        if ax is None:
            ax = import_optional("matplotlib.pyplot", "a plot").subplots()[1]
        ax.semilogx(self.lrs, self.losses)
        if self.suggestion is not None:
            ax.axvline(self.suggestion, linestyle="--", label=f"suggestion: {self.suggestion:.3g}")
            ax.legend()
        ax.set_xlabel("learning rate")
        ax.set_ylabel("smoothed training loss")
        return ax
