"""Messages about a training for Python's logging."""

from __future__ import annotations

from onnxgrad.base.messages import log, logger
from onnxgrad.callbacks.base import Callback, Logs, RunningTrainer
from onnxgrad.callbacks.displays import straggler

__all__ = ["LogMessages", "messages"]


class LogMessages(Callback):
    """Logs a training.

    ``INFO``: the loss, each epoch, the end. ``DEBUG``: the trained weights, and checkpoints and
    models that were written. ``WARNING``: an exception that ended the training.
    """

    first_worker_only = True

    def on_train_begin(self, trainer: RunningTrainer) -> None:
        """Log the loss and the trained weights."""
        log("info", trainer.session.loss_line)
        if line := trainer.session.quantization_line:
            log("info", line)
        for weight in trainer.session.trained_weights:
            log("debug", f"trained: {weight.name} {list(weight.shape)}")

    def on_epoch_end(self, trainer: RunningTrainer, logs: Logs) -> None:
        """Log the numbers of the epoch."""
        numbers = ", ".join(
            f"{name} {value:.6g}" for name, value in logs.items() if name != "epoch"
        )
        log("info", f"epoch {int(logs['epoch'])} of {trainer.epochs}: {numbers}")
        if who := straggler(trainer, logs):
            log("info", who)

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
        kept = f"; {trainer.history.kept_line}" if trainer.history.kept_line else ""
        log("info", f"ended after {done} of {trainer.epochs} epochs{why}{kept}")


def messages() -> list[LogMessages]:
    """Return the callback that logs a training, or nothing if logging is not enabled."""
    target = logger()
    return [LogMessages()] if target is not None and target.isEnabledFor(20) else []  # INFO
