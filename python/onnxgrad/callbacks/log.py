"""The course of a training as messages of Python's logging."""

from __future__ import annotations

from onnxgrad.base.messages import log, logger
from onnxgrad.callbacks.base import Callback, Logs, RunningTrainer

__all__ = ["LogMessages", "messages"]


class LogMessages(Callback):
    """The course of a training as messages.

    ``INFO``: the loss that was chosen, each epoch, the end. ``DEBUG``: the trained weights,
    checkpoints and models that were written. ``WARNING``: what ended it, if that is an exception.
    """

    def on_train_begin(self, trainer: RunningTrainer) -> None:
        """Log what is trained."""
        log("info", trainer.session.loss_line)
        for weight in trainer.session.trained_weights:
            log("debug", f"trained: {weight.name} {list(weight.shape)}")

    def on_epoch_end(self, trainer: RunningTrainer, logs: Logs) -> None:
        """Log the numbers of the epoch."""
        numbers = ", ".join(
            f"{name} {value:.6g}" for name, value in logs.items() if name != "epoch"
        )
        log("info", f"epoch {int(logs['epoch'])} of {trainer.epochs}: {numbers}")

    def on_checkpoint(self, trainer: RunningTrainer, path: str) -> None:  # noqa: ARG002 (interface)
        """Log what was written."""
        log("debug", f"wrote {path}")

    def on_exception(self, trainer: RunningTrainer, error: BaseException) -> None:  # noqa: ARG002
        """Log what ended the training."""
        log("warning", f"{type(error).__name__}: {error}")

    def on_train_end(self, trainer: RunningTrainer) -> None:
        """Log how many epochs were done."""
        done = int(trainer.history["epoch"][-1]) if trainer.history else 0
        why = f" ({trainer.stop_reason})" if trainer.stop_reason else ""
        log("info", f"end after {done} of {trainer.epochs} epochs{why}")


def messages() -> list[LogMessages]:
    """Return the callback that logs a training, or nothing where no one has asked for logs."""
    target = logger()
    return [LogMessages()] if target is not None and target.isEnabledFor(20) else []  # INFO
