"""Options of a single run: those that would change it are refused, the others change nothing."""

from __future__ import annotations

from typing import Any

__all__ = ["check_run_options"]

_REFUSED = {
    "terminate": "a run is not stopped by its options; leave the loop instead",
    "only_execute_path_to_fetches": "a step is one compiled plan and is always done as a whole",
}


def check_run_options(run_options: Any) -> None:
    """Refuse what a run here does not do.

    Names and levels of logs, `training_mode` and `synchronize_execution_providers` are taken: there
    is nothing to log, passes and steps say themselves what they are for, and the host waits.

    Parameters
    ----------
    run_options : RunOptions or None
        Stock onnxruntime's or the one that stands for it.

    Raises
    ------
    NotImplementedError
        Names the option.
    """
    for name, reason in _REFUSED.items():
        if getattr(run_options, name, False):
            raise NotImplementedError(f"run_options.{name}=True is not supported: {reason}.")
