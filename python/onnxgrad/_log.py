"""What training tells Python's logging, under the name ``onnxgrad``.

The module `logging` is not imported for it: where no one has imported it, no one listens.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from onnxgrad.callbacks import Callback, Logs

if TYPE_CHECKING:
    import logging

    from onnxgrad.trainer import Trainer

__all__ = ["LogMessages", "log", "logger", "messages"]

Level = Literal["debug", "info", "warning"]


def logger() -> logging.Logger | None:
    """Return the logger ``onnxgrad``, which writes nowhere by itself; None if no one can listen."""
    module = sys.modules.get("logging")
    if module is None:
        return None
    found: logging.Logger = module.getLogger("onnxgrad")
    if not found.handlers:
        found.addHandler(module.NullHandler())
    return found


def log(level: Level, text: str) -> None:
    """Say `text` to those who listen."""
    target = logger()
    if target is not None:
        getattr(target, level)("%s", text)


class LogMessages(Callback):
    """The course of a training as messages.

    ``INFO``: the loss that was chosen, each epoch, the end. ``DEBUG``: the trained weights,
    checkpoints and models that were written. ``WARNING``: what ended it, if that is an exception.
    """

    def on_train_begin(self, trainer: Trainer) -> None:
        """Say what is trained."""
        log("info", trainer.session.loss_line)
        for weight in trainer.session.trained_weights:
            log("debug", f"trained: {weight.name} {list(weight.shape)}")

    def on_epoch_end(self, trainer: Trainer, logs: Logs) -> None:
        """Say the numbers of the epoch."""
        numbers = ", ".join(
            f"{name} {value:.6g}" for name, value in logs.items() if name != "epoch"
        )
        log("info", f"epoch {int(logs['epoch'])} of {trainer.epochs}: {numbers}")

    def on_checkpoint(self, trainer: Trainer, path: str) -> None:  # noqa: ARG002 (interface)
        """Say what was written."""
        log("debug", f"wrote {path}")

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:  # noqa: ARG002
        """Say what ended the training."""
        log("warning", f"{type(error).__name__}: {error}")

    def on_train_end(self, trainer: Trainer) -> None:
        """Say how many epochs were done."""
        done = int(trainer.history["epoch"][-1]) if trainer.history else 0
        why = f" ({trainer.stop_reason})" if trainer.stop_reason else ""
        log("info", f"end after {done} of {trainer.epochs} epochs{why}")


def messages() -> list[LogMessages]:
    """Return what a training tells those who listen; nothing if no one does."""
    target = logger()
    return [LogMessages()] if target is not None and target.isEnabledFor(20) else []  # INFO
