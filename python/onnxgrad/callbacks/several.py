"""Several callbacks as one, as a fit calls them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Any

from onnxgrad import _core
from onnxgrad.base.checks import path_text
from onnxgrad.callbacks.base import Callback, CallbackLike, Logs
from onnxgrad.callbacks.progress import Progress
from onnxgrad.callbacks.stopping import Checkpoint, EarlyStopping
from onnxgrad.errors import OptionError

__all__ = ["CallbackList", "stopping_of"]


class _Function(Callback):
    """A bare function, called at the end of every epoch."""

    def __init__(self, function: Callable[[Any, Logs], bool | None]) -> None:
        self._function = function

    def on_epoch_end(self, trainer: Any, logs: Logs) -> bool | None:
        return self._function(trainer, logs)


class CallbackList(Callback):
    """Several callbacks as one, called in order; used by the Trainer."""

    def __init__(self, callbacks: Iterable[CallbackLike] | CallbackLike) -> None:
        several: Any = callbacks if hasattr(callbacks, "__iter__") else [callbacks]
        self.callbacks = [_as_callback(callback) for callback in several]
        others = [c.every_n_steps for c in self.callbacks if not isinstance(c, Progress)]
        often = math.gcd(*(steps for steps in others if steps))
        for callback in self.callbacks:
            if often and isinstance(callback, Progress) and callback.every_n_steps:
                # A multiple of it: the loop need not stop more often than others ask for.
                callback.every_n_steps = often * max(1, callback.every_n_steps // often)

    def early_stopping(self) -> _core.EarlyStopping | None:
        """Return the early stopping among them as the extension takes it.

        Raises
        ------
        OptionError
            There are several.
        """
        found = [c for c in self.callbacks if isinstance(c, EarlyStopping)]
        if len(found) > 1:
            raise OptionError(
                what=f"early stopping is given {len(found)} times; there can be one",
                value="early_stopping",
                hint="Give early_stopping or one callbacks.EarlyStopping; stop for other reasons "
                "in a callback that returns True.",
            )
        return found[0].native() if found else None

    def set_checkpoints(
        self, options: _core.FitOptions, resume: bool | str | os.PathLike[str]
    ) -> None:
        """Put the `Checkpoint` among them, and what to resume from, into `options`.

        Raises
        ------
        OptionError
            There are several, that of a run folder included; or nothing to resume from.
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
            options.resume = path_text("resume", resume)
        elif resume and not options.resume:
            raise OptionError(
                what="resume=True, but there is neither callbacks.Checkpoint nor run_dir",
                value="resume",
                hint="Add one, or give the path of a checkpoint.",
            )

    def handlers(self, hook: str) -> list[Callback]:
        """Return those that override the method `hook`."""
        base = getattr(Callback, hook)
        return [c for c in self.callbacks if getattr(type(c), hook, base) is not base]

    def call(self, hook: str, *arguments: Any) -> bool:
        """Call the method `hook` of each; True if one asked to stop."""
        stop = False
        for callback in self.handlers(hook):
            stop = getattr(callback, hook)(*arguments) is True or stop
        return stop


def stopping_of(early_stopping: Any) -> list[CallbackLike]:
    """Return the callback that the option `early_stopping` stands for, or nothing."""
    if early_stopping is False or early_stopping is None:
        return []
    if early_stopping is True:
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
    if isinstance(callback, type) or not callable(callback):
        raise OptionError(
            what=f"callbacks: {callback!r} is neither a Callback nor a function",
            hint="Give objects of classes derived from onnxgrad.callbacks.Callback, or functions "
            "of (trainer, logs).",
        )
    return _Function(callback)
