"""Options of a single run: those that would change it are refused, others have no effect."""

from __future__ import annotations

from typing import Any

__all__ = ["check_run_options"]

_REFUSED = {
    "terminate": "options cannot stop a run; leave the loop instead",
    "only_execute_path_to_fetches": "a step is one compiled plan, which always runs completely",
}


def check_run_options(run_options: Any) -> None:
    """Refuse unsupported options of a run.

    Options for logging, `training_mode` and `synchronize_execution_providers` are accepted: nothing
    is logged, the mode depends on the method that is called, and runs are synchronous.

    Parameters
    ----------
    run_options : RunOptions or None
        Stock onnxruntime's, or its replacement.

    Raises
    ------
    NotImplementedError
        An unsupported option, which the message names.
    """
    for name, reason in _REFUSED.items():
        if getattr(run_options, name, False):
            raise NotImplementedError(f"run_options.{name}=True is not supported: {reason}.")
