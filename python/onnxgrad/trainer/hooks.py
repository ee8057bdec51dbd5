"""Events during a fit: calls of callbacks, updates of the history, warnings."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from onnxgrad import _core as native
from onnxgrad.base.checks import shown
from onnxgrad.base.messages import Verbosity, log, print_stderr
from onnxgrad.callbacks import CheckpointWarning
from onnxgrad.callbacks.unfreezing import unfreezing_among
from onnxgrad.data.notes import warn
from onnxgrad.data.rows import NativeRows, as_pair
from onnxgrad.errors import OptionError
from onnxgrad.history import History, log_of
from onnxgrad.schedules import Schedule
from onnxgrad.trainer.guards import handled_signals
from onnxgrad.trainer.model import TrainedModel
from onnxgrad.trainer.row_checks import warn_if_nothing_counted

__all__ = ["FitHooks"]


class FitHooks(TrainedModel):
    """The part of `Trainer` that the loop in C++ calls."""

    seed: int
    epochs: int
    checkpoint_problem: str
    skipped_steps: int
    schedule: Schedule | None
    _earlier: list[dict[str, float]]  # epochs of earlier stages
    _num_notes = 0  # notes of the loop that have been issued as warnings
    _is_streamed = False  # rows of the current fit are read in chunks
    _is_weighted = False  # the current fit draws rows by weight
    _row_weights: np.ndarray[Any, Any] | None = None
    _has_new_weights = False
    _monitor = ""  # EarlyStopping.monitor of the current fit

    @property
    def row_weights(self) -> np.ndarray[Any, Any] | None:
        """Weights of the rows, with ``sampling="weighted"``; callbacks may set others."""
        return self._row_weights

    @row_weights.setter
    def row_weights(self, weights: Any) -> None:
        if weights is None:
            self._row_weights, self._has_new_weights = None, False
            return
        if not self._is_weighted:
            raise OptionError(
                what="row_weights have no effect without sampling='weighted'",
                value="row_weights",
                hint="Give sampling='weighted' to fit, or leave them out.",
            )
        try:
            self._row_weights = np.asarray(weights, np.float64).reshape(-1)
        except (TypeError, ValueError) as error:
            raise OptionError(
                what=f"row_weights: {shown(weights)}, expected a number for each row",
                value="row_weights",
                hint="Give an array [N] of numbers.",
            ) from error
        self._has_new_weights = True

    def _take_row_weights(self, _epoch: int = 0) -> list[float]:
        """Return the weights of the rows if they were set anew, else nothing."""
        if self._row_weights is None or not self._has_new_weights:
            return []
        self._has_new_weights = False
        weights: list[float] = self._row_weights.tolist()
        return weights

    def _run(
        self,
        rows: NativeRows,
        options: native.FitOptions,
        held_out: NativeRows | None,
        verbose: Verbosity,
    ) -> None:
        self.history = History()
        self.stop_reason = ""
        self._num_notes = 0
        self._is_streamed = as_pair(rows)[1] is not None
        self._earlier = []
        stopping = options.early_stopping
        self._monitor = "" if stopping is None else stopping.monitor
        if verbose != 0:
            session = self.session
            lines = (session.loss_line, session.weights_line, session.quantization_line)
            print_stderr(*filter(None, (*lines, session.batch_line)), f"seed: {self.seed}")
        if verbose == 2:
            for weight in self.session.trained_weights:
                print_stderr(f"trained: {weight.name} {list(weight.shape)}")
        callbacks = self._callbacks
        steps = [c.every_n_steps for c in callbacks.handlers("on_step_end") if c.every_n_steps]
        options.every_n_steps = math.gcd(*steps)
        has_epoch_hooks = any(
            callbacks.handlers(hook)
            for hook in ("on_epoch_begin", "on_epoch_end", "on_validation_end")
        )
        saves = options.checkpoint is not None or options.resume
        try:
            if self._call("on_train_begin") or self._call("on_epoch_begin"):
                return
            if self._is_weighted and self._row_weights is None:
                raise OptionError(
                    what="sampling='weighted' needs a weight for each row",
                    value="row_weights",
                    hint="Give row_weights=, or a callback that sets trainer.row_weights in "
                    "on_epoch_begin.",
                )
            hooks = (
                self._on_epoch_end if has_epoch_hooks else None,
                self._on_step_end if steps else None,
                self._on_checkpoint if saves else None,
                self._take_row_weights if self._is_weighted else None,
            )
            for stage in self._stages(options):
                self._core.fit(*as_pair(rows), stage, *as_pair(held_out), *hooks, handled_signals())
        except BaseException as error:
            self._collect()
            if isinstance(error, KeyboardInterrupt):
                self.stop_reason = "interrupted"
            self._call("on_exception", error)
            raise
        else:
            self._collect()
            warn_if_nothing_counted(self.session._core, self.history)
        finally:
            self._call("on_train_end")
        if verbose == 2:
            print_stderr(self.session.plan_summary())

    def _stages(self, options: native.FitOptions) -> Iterator[native.FitOptions]:
        """Yield the options of each fit that a fit consists of: one, but for GradualUnfreezing."""
        unfreezing = unfreezing_among(self._callbacks.callbacks)
        if unfreezing is None:
            yield options
            return
        if options.early_stopping is not None or options.checkpoint is not None or options.resume:
            raise OptionError(
                what="GradualUnfreezing is given with early stopping, a checkpoint or a run folder",
                value="callbacks",
                hint="Train the last stage in a fit of its own.",
            )
        if self.schedule is not None:
            raise OptionError(
                what="GradualUnfreezing is given with a schedule, which would begin anew in each "
                "stage",
                value="callbacks",
                hint="Leave out schedule=.",
            )
        try:
            for number, epochs in enumerate(unfreezing.begin(self.session, self.epochs)):
                if number > 0:
                    found = self._core.history
                    self._earlier += [self._log_of(epoch) for epoch in found.epochs]
                    self.stop_reason = self.stop_reason or found.stop_reason
                    if self.stop_reason:
                        return
                    unfreezing.advance(self.session)
                options.epochs = epochs
                options.seed = self.seed + number  # other batches
                yield options
        finally:
            unfreezing.end(self.session)

    def _log_of(self, epoch: native.EpochLog) -> dict[str, float]:
        log = log_of(epoch, is_streamed=self._is_streamed)
        log["epoch"] += len(self._earlier)
        return log

    def _collect(self) -> None:
        self._issue_warnings()
        found = self._core.history
        logs = [self._log_of(epoch) for epoch in found.epochs]
        self.history = History.from_logs([*self._earlier, *logs])
        if found.best_epoch is not None:
            self.history.best_epoch = found.best_epoch + len(self._earlier)
        self.history.kept_epoch = found.kept_epoch
        self.history.monitor = self._monitor
        self.stop_reason = self.stop_reason or found.stop_reason
        self.skipped_steps = found.skipped_steps
        self.checkpoint_problem = found.checkpoint_problem

    def _issue_warnings(self) -> None:
        """Issue a warning for each new note of the loop."""
        for note in self._core.history.notes[self._num_notes :]:
            self._num_notes += 1
            if not self._is_trial:
                log("warning", note)
                warn(note)

    def _on_epoch_end(self, epoch: native.EpochLog) -> bool:
        self._issue_warnings()
        logs = self._log_of(epoch)
        self.is_best = epoch.is_best
        kept = self._core.history.num_epochs + len(self._earlier)
        if kept - 1 <= len(self.history.get("epoch", ())) <= kept:
            self.history.replace_from(kept - 1, logs)
        else:  # the fit was resumed, or the history was thinned out
            self._collect()
        stop = "val_loss" in logs and self._call("on_validation_end", logs)
        stop = self._call("on_epoch_end", logs) or stop
        if not stop and logs["epoch"] < self.epochs and not self.stop_reason:
            stop = self._call("on_epoch_begin")
        return stop or bool(self.stop_reason)

    def _on_step_end(self, step: native.StepLog) -> bool:
        logs = {
            "epoch": float(step.epoch),
            "step": float(step.step),
            "train_loss": step.loss,
        }
        if step.total_steps > 0:
            logs["total_steps"] = float(step.total_steps)
        if step.grad_norm is not None:
            logs["grad_norm"] = step.grad_norm
        stop = False
        for callback in self._callbacks.handlers("on_step_end"):
            if callback.every_n_steps and step.step % callback.every_n_steps == 0:
                stop = callback.on_step_end(self, logs) is True or stop
        if stop and not self.stop_reason:
            self.stop_reason = "requested by on_step_end of a callback"
        return stop or bool(self.stop_reason)

    def _on_checkpoint(self, path: str, problem: str) -> None:
        if problem:
            warnings.warn(f"checkpoint '{path}': {problem}", CheckpointWarning, stacklevel=2)
        else:
            self._call("on_checkpoint", path)
