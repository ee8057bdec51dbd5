"""The options of sessions, which trainers, passes and functions that write models take too.

The typed dictionaries are for functions that pass options on:
``def fine_tune(model, **options: Unpack[SessionOptions])``.
"""

from onnxgrad.session_options.described import (
    DerivativeOptions,
    LossOptions,
    PassOptions,
    SessionOptions,
    StepOptions,
    TrainerOptions,
)

__all__ = [
    "DerivativeOptions",
    "LossOptions",
    "PassOptions",
    "SessionOptions",
    "StepOptions",
    "TrainerOptions",
]
