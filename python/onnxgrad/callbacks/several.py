"""The list of callbacks of a fit."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from onnxgrad import _core
from onnxgrad.base.checks import listed, path_text
from onnxgrad.callbacks.base import Callback, CallbackLike, Logs
from onnxgrad.callbacks.progress import Progress
from onnxgrad.callbacks.stopping import Checkpoint, EarlyStopping
from onnxgrad.errors import OptionError

__all__ = ["CallbackList", "stopping_of"]


class _Function(Callback):
    """A function that is called at the end of every epoch."""

    def __init__(self, function: Callable[[Any, Logs], bool | None]) -> None:
        self._function = function

    def on_epoch_end(self, trainer: Any, logs: Logs) -> bool | None:
        return self._function(trainer, logs)


class CallbackList(Callback):
    """Callbacks that are called in order; used by the Trainer."""

    def __init__(self, callbacks: Iterable[CallbackLike] | CallbackLike) -> None:
        self.callbacks = [_as_callback(callback) for callback in listed(callbacks)]
        others = [c.every_n_steps for c in self.callbacks if not isinstance(c, Progress)]
        interval = math.gcd(*(steps for steps in others if steps))
        for callback in self.callbacks:
            if interval and isinstance(callback, Progress) and callback.every_n_steps:
                # A multiple of it, so that the loop does not call Python more often.
                callback.every_n_steps = interval * max(1, callback.every_n_steps // interval)

    def early_stopping(self) -> _core.EarlyStopping | None:
        """Return the options of `EarlyStopping` for the extension, or None.

        Raises
        ------
        OptionError
            There are several.
        """
        found = [c for c in self.callbacks if isinstance(c, EarlyStopping)]
        if len(found) > 1:
            raise OptionError(
                what=f"early stopping is given {len(found)} times, expected at most once",
                value="early_stopping",
                hint="Give early_stopping or one callbacks.EarlyStopping; to stop for other "
                "reasons, return True from a callback.",
            )
        return found[0].native() if found else None

    def set_checkpoints(
        self, options: _core.FitOptions, resume: bool | str | os.PathLike[str]
    ) -> None:
        """Set the options of `Checkpoint` and what to resume from in `options`.

        Raises
        ------
        OptionError
            There are several, including that of a run folder, or there is nothing to resume from.
        """
        found = [c for c in self.callbacks if isinstance(c, Checkpoint)]
        if len(found) > 1:
            raise OptionError(
                what="checkpoints are requested in " + " and ".join(repr(c.path) for c in found),
                value="callbacks",
                detail="One training writes to one folder; run_dir has its own.",
                hint="Give one callbacks.Checkpoint without run_dir, or "
                "run_dir=run_folder.RunFolder(path, every=..., keep=...).",
            )
        for callback in found:
            options.checkpoint = _core.CheckpointOptions(
                callback.path,
                callback.every_steps,
                callback.keep,
                callback.best,
                callback.min_seconds,
            )
            if resume is True:
                options.resume, options.resume_if_any = callback.path, True
        if not isinstance(resume, bool):
            folder = Path(path_text("resume", resume))
            of_run = folder / "checkpoints"  # checkpoints of a run folder
            options.resume = str(of_run if of_run.is_dir() else folder)
        elif resume and not options.resume:
            raise OptionError(
                what="resume=True, but there is neither callbacks.Checkpoint nor run_dir",
                value="resume",
                hint="Add one of them, or give the path of a checkpoint.",
            )

    def handlers(self, hook: str) -> list[Callback]:
        """Return the callbacks that override the method `hook`."""
        base = getattr(Callback, hook)
        return [c for c in self.callbacks if getattr(type(c), hook, base) is not base]

    def call(self, hook: str, *arguments: Any) -> bool:
        """Call the method `hook` of each; return whether one returned True to stop."""
        stop = False
        for callback in self.handlers(hook):
            stop = getattr(callback, hook)(*arguments) is True or stop
        return stop


def stopping_of(early_stopping: Any) -> list[CallbackLike]:
    """Return the callback for the option `early_stopping`, or nothing."""
    if early_stopping is False or early_stopping is None:
        return []
    if early_stopping is True or early_stopping is EarlyStopping:
        return [EarlyStopping()]
    if not isinstance(early_stopping, EarlyStopping):
        raise OptionError(
            what=f"early_stopping: {early_stopping!r}",
            value="early_stopping",
            hint="Give True, False or callbacks.EarlyStopping(patience=5).",
        )
    return [early_stopping]


def _as_callback(callback: CallbackLike) -> Callback:
    if isinstance(callback, Callback):
        return callback
    if isinstance(callback, type) and issubclass(callback, Callback):
        try:
            return callback()
        except TypeError as error:
            raise OptionError(
                what=f"callbacks: the class {callback.__name__} has options without a default",
                value="callbacks",
                hint=f"Give an object: {callback.__name__}(...).",
            ) from error
    if isinstance(callback, type) or not callable(callback):
        raise OptionError(
            what=f"callbacks: {callback!r} is neither a Callback nor a function",
            hint="Give objects of classes derived from onnxgrad.callbacks.Callback, or functions "
            "of (trainer, logs).",
        )
    return _Function(callback)
