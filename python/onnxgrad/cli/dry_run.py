"""``onnxgrad train --dry-run``: a few steps, and an estimate of the whole training."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

from onnxgrad.callbacks import Callback, Logs
from onnxgrad.cli.console import out
from onnxgrad.cli.rows import TrainData
from onnxgrad.graphs.tables import size_text
from onnxgrad.trainer import Trainer

__all__ = ["dry_run"]

_MAX_STEPS = 20
_MAX_SECONDS = 2.0


class _Clock(Callback):
    """Stops a training after a few steps and measures the time of a step."""

    every_n_steps = 1

    def __init__(self) -> None:
        self._times: list[float] = []
        self.loss = math.nan

    def on_step_end(self, trainer: Trainer, logs: Logs) -> bool:  # noqa: ARG002 (interface)
        self._times.append(time.perf_counter())
        if len(self._times) == 1:
            self.loss = logs["train_loss"]
        passed = self._times[-1] - self._times[0]
        return len(self._times) >= _MAX_STEPS or passed >= _MAX_SECONDS

    @property
    def seconds(self) -> float | None:
        """Duration of a step, without the first one, which compiles."""
        steps = len(self._times) - 1
        return (self._times[-1] - self._times[0]) / steps if steps else None


def dry_run(
    trainer: Trainer, data: TrainData, options: SimpleNamespace, fit: dict[str, Any]
) -> None:
    """Do a few steps with the options `fit` of `Trainer.fit`, undo them, and print a summary.

    Raises what the training would raise in these steps. Writes no file.
    """
    clock = _Clock()
    fit = {**fit, "max_time": None, "early_stopping": False, "keep_best": False}
    trainer._is_trial = True
    try:
        trainer.fit(*data.rows, **fit, callbacks=[clock], verbose=0)
    finally:
        trainer._is_trial = False
    for name, value in [*_model_lines(trainer, options), *_work_lines(trainer, data, options)]:
        out(f"{name + ':':<13}{value}")
    if clock.seconds is not None:
        out(f"{'time:':<13}{_time_text(clock.seconds, _steps(trainer, data, options), options)}")
    out(f"{'first loss:':<13}{clock.loss:.6g}")
    out("dry run: a few steps were done and undone; nothing was written")


def _model_lines(trainer: Trainer, options: SimpleNamespace) -> list[tuple[str, str]]:
    session = trainer.session
    weights = session.trained_weights
    count = sum(math.prod(weight.shape) for weight in weights)
    shown = ", ".join(f"{weight.name} {list(weight.shape)}" for weight in weights[:4])
    more = f", ... ({len(weights)} weights)" if len(weights) > 4 else ""
    batch = session.batch_line.removeprefix("batch: ")
    return [
        ("model", options.model),
        ("loss", session.loss_line.removeprefix("loss: ")),
        ("optimizer", "as the file says" if session.optimizer is None else repr(session.optimizer)),
        ("trained", f"{count} numbers: {shown}{more}"),
        *([("batch", batch)] if batch else []),
    ]


def _work_lines(
    trainer: Trainer, data: TrainData, options: SimpleNamespace
) -> list[tuple[str, str]]:
    rows = data.num_rows
    size = "read in chunks" if rows is None else f"{rows} rows, in memory"
    lines = [("data", f"{options.data}: {size}")]
    steps = _steps(trainer, data, options)
    if steps is not None:
        lines.append(("steps", f"{steps} per epoch, {steps * options.epochs} in total"))
    memory = trainer.session.memory()
    what = f"{size_text(memory.total)} for the model's file, weights, state and inner values"
    if memory.device != "cpu":
        what += "".join(f", {size_text(n)} on {name}" for name, n in memory.by_device.items())
    if memory.recomputed_values:
        what += f"; {size_text(memory.recomputed_bytes)} of these are computed again"
    lines.append(("memory", what))
    paths = [options.output, options.history, options.run_dir or options.resume]
    lines.append(("would write", ", ".join(str(path) for path in paths if path)))
    return lines


def _steps(trainer: Trainer, data: TrainData, options: SimpleNamespace) -> int | None:
    """Return the number of steps of an epoch, or None if the number of rows is unknown."""
    if data.num_rows is None:
        return None
    rows = data.num_rows
    if isinstance(data.validation, float):
        rows -= round(rows * data.validation)
    takes_all = type(trainer.session.optimizer).__name__ == "LBFGS"
    usual = trainer.session.fixed_batch or 32
    batch = options.batch_size or (rows if takes_all else usual)
    return rows // batch if options.drop_last else math.ceil(rows / batch)


def _time_text(seconds: float, steps: int | None, options: SimpleNamespace) -> str:
    text = f"{_duration(seconds)} per step"
    if steps is not None:
        epoch = seconds * steps
        text += f", {_duration(epoch)} per epoch, {_duration(epoch * options.epochs)} in total"
    return text + " (without validation)"


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.3g} min"
