"""Exit statuses of the command line."""

from __future__ import annotations

from onnxgrad import errors

__all__ = ["EXIT_REQUEUE", "EXIT_STATUS", "UNCAUGHT", "status_of"]

UNCAUGHT = 1  # Python's own for an exception that nothing catches

EXIT_STATUS: dict[type[BaseException], int] = {
    errors.InternalError: UNCAUGHT,
    errors.OptionError: 2,
    errors.ModelError: 3,
    errors.UnsupportedOperatorError: 3,
    errors.GradientError: 3,
    errors.ShapeError: 3,
    errors.DataError: 4,
    errors.ConvergenceError: 5,
    errors.CheckpointError: 6,
    errors.DeviceError: 7,
    KeyboardInterrupt: 130,
}


def status_of(error: BaseException) -> int:
    """Return the exit status for an exception, by the nearest of its classes."""
    return next((EXIT_STATUS[one] for one in type(error).__mro__ if one in EXIT_STATUS), UNCAUGHT)


EXIT_REQUEUE = 75  # EX_TEMPFAIL: ended after a checkpoint, to be started again
