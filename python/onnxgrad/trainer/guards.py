"""Guards around a fit: one at a time, and signals with Python handlers."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from onnxgrad.errors import Error

__all__ = ["handled_signals", "one_at_a_time"]


class _Fitting(Protocol):
    _fitting_thread: int


_P = ParamSpec("_P")
_R = TypeVar("_R")
_taking = threading.Lock()  # of any trainer: trainers are pickled, locks are not
TrainerT = TypeVar("TrainerT", bound=_Fitting)


def one_at_a_time(
    fit: Callable[Concatenate[TrainerT, _P], _R],
) -> Callable[Concatenate[TrainerT, _P], _R]:
    """Refuse a second call while the first one is running, before it changes anything."""

    @functools.wraps(fit)
    def guarded(self: TrainerT, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _taking:
            fitting_thread = self._fitting_thread
            if not fitting_thread:
                self._fitting_thread = threading.get_ident()
        if fitting_thread:
            is_callback = fitting_thread == threading.get_ident()
            who = "the callback that makes this call" if is_callback else "fit in another thread"
            raise Error(
                what=f"the trainer is busy: it is running {who}",
                hint="Wait until the training has ended, or use another trainer.",
            )
        try:
            return fit(self, *args, **kwargs)
        finally:
            self._fitting_thread = 0

    return guarded


def handled_signals() -> list[int]:
    """Return the signals that have a Python handler; none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [int(n) for n in signal.valid_signals() if callable(signal.getsignal(n))]
