"""Base class of schedules, and composite schedules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import positive_int, real_number, several
from onnxgrad.base.described import Described
from onnxgrad.base.description import Description
from onnxgrad.base.family import Family
from onnxgrad.errors import OptionError

__all__ = ["Chain", "Product", "Schedule", "ScheduleLike"]


class Schedule(Described):
    """Base class of schedules."""

    _family = "schedule"

    def __add__(self, after: Schedule) -> Chain:
        return Chain([*_parts(self, Chain), *_parts(after, Chain)])

    def __mul__(self, other: Schedule) -> Product:
        return Product([*_parts(self, Product), *_parts(other, Product)])

    def rates(
        self,
        lr: float = 1.0,
        epochs: int = 1,
        steps_per_epoch: int = 100,
        losses: Iterable[float] = (),
    ) -> list[float]:
        """Return the learning rate of each update of a fit.

        Parameters
        ----------
        lr : float, default=1
            Learning rate of the optimizer.
        epochs : int, default=1
        steps_per_epoch : int, default=100
        losses : sequence of float, default=()
            Loss of each epoch, for `Plateau`.

        Examples
        --------
        >>> from onnxgrad.schedules import Linear
        >>> Linear(start_factor=1, end_factor=0).rates(steps_per_epoch=4)
        [1.0, 0.75, 0.5, 0.25]
        """
        return _core.schedule_rates(
            self._native(),
            real_number("lr", lr),
            positive_int("epochs", epochs),
            positive_int("steps_per_epoch", steps_per_epoch),
            [float(loss) for loss in losses],
        )


FAMILY = Family(Schedule)  # filled by the package's __init__


class _Composite(Schedule):
    """Base class of schedules that combine others."""

    parts: tuple[Schedule, ...]

    def __init__(self, parts: Iterable[ScheduleLike]) -> None:
        taken = tuple(FAMILY.take(part) for part in several("parts", parts, "schedules"))
        Description.__init__(self, parts=taken)
        if not self.parts:
            raise OptionError(
                what="parts: no schedules were given",
                value="parts",
                hint="Give at least one schedule.",
            )

    def _text_options(self) -> list[str]:
        return []


class Chain(_Composite):
    """Schedules one after the other, each with t from 0; also ``a + b`` (torch: SequentialLR).

    Every part except the last ends after its own length (`Linear`, `Cosine`, `Polynomial`,
    `OneCycle`; the others never end).

    Parameters
    ----------
    parts : list of Schedule or str
    """

    def _native(self) -> _core.Schedule:
        return _core.schedule_sequence([part._native() for part in self.parts])


class Product(_Composite):
    """Schedules all at once: the rate of each part is the r of the next; also ``a * b``.

    Parameters
    ----------
    parts : list of Schedule or str
    """

    def _native(self) -> _core.Schedule:
        return _core.schedule_product([part._native() for part in self.parts])


ScheduleLike: TypeAlias = "Schedule | str"
"""A schedule or its name."""


def _parts(schedule: Schedule, kind: type[_Composite]) -> tuple[Schedule, ...]:
    return schedule.parts if isinstance(schedule, kind) else (schedule,)
