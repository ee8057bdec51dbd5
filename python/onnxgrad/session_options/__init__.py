"""The options that sessions, trainers, passes and written steps share, from one table.

The typed dictionaries are for functions that pass options on:
``def fine_tune(model, **options: Unpack[SessionOptions])``.
"""

from onnxgrad.session_options.described import (
    LossOptions,
    PassOptions,
    SessionOptions,
    StepOptions,
    TrainerOptions,
)

__all__ = ["LossOptions", "PassOptions", "SessionOptions", "StepOptions", "TrainerOptions"]
