"""Schedules of the learning rate, as immutable descriptions.

r is the learning rate of the optimizer and t the time from 0: the number of updates done in this
fit, or of epochs if ``unit="epoch"``. A `length` is a number of updates or epochs; below 1 it is
that fraction of the fit, and None means the rest of it. Formulas are those of
``torch.optim.lr_scheduler`` if it has the schedule, with factors of r in place of absolute rates.

``warm_up + cosine`` applies one after the other, ``exponential * plateau`` both at once. A schedule
can also be given by its name: ``"cosine"``, ``"warmup_cosine"``, ... (see `names`).
"""

from __future__ import annotations

from onnxgrad.schedules import described
from onnxgrad.schedules.base import FAMILY, Chain, Product, Schedule, ScheduleLike
from onnxgrad.schedules.described import *  # noqa: F403
from onnxgrad.schedules.described import Cosine, Linear

__all__ = [
    "Chain",
    "Product",
    "Schedule",
    "ScheduleLike",
    "from_name",
    "names",
    "warm_up",
]
__all__ += described.__all__


def warm_up(length: float, then: ScheduleLike = "cosine", start_factor: float = 0.0) -> Chain:
    """Return a linear warm-up from r * start_factor, then another schedule.

    Examples
    --------
    >>> warm_up(2, "cosine").rates(lr=1.0, steps_per_epoch=6)
    [0.0, 0.5, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627]
    """
    return Chain([Linear(length, start_factor, 1.0), then])


def names() -> list[str]:
    """Return the names of all schedules, sorted."""
    return FAMILY.names()


def from_name(name: str) -> Schedule:
    """Return the schedule of that name, with its defaults.

    Raises
    ------
    OptionError
        An unknown name; the message suggests the nearest one.

    Examples
    --------
    >>> from_name("exponential")
    Exponential(factor=0.95, unit='epoch')
    """
    return FAMILY.from_name(name)


FAMILY.fill(globals())
FAMILY.add("warmup_cosine", warm_up(0.1, Cosine()))
FAMILY.add("warmup_linear", warm_up(0.1, Linear()))
as_schedule, from_text, to_text = FAMILY.take, FAMILY.from_text, FAMILY.to_text
