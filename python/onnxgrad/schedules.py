"""Schedules of the learning rate, as plain descriptions.

r is the learning rate of the optimizer and t the time from 0: the number of updates done in this
fit, or of epochs where ``unit="epoch"``. A `length` is a number of updates or epochs; below 1 it is
that share of the fit, and None is what is left of it. Where ``torch.optim.lr_scheduler`` has the
schedule, the formula is torch's, with factors of r where torch takes absolute rates.

``warm_up + cosine`` runs one after the other, ``exponential * plateau`` both at once. Wherever a
schedule is asked for, its name does too: ``"cosine"``, ``"warmup_cosine"``, ... (see `names`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from onnxgrad import _core
from onnxgrad.base.checks import positive_int, real_number, unknown_name
from onnxgrad.base.description import Description
from onnxgrad.errors import OptionError

__all__ = [
    "Chain",
    "Constant",
    "Cosine",
    "CosineRestarts",
    "Exponential",
    "InverseScaling",
    "Linear",
    "MultiStep",
    "OneCycle",
    "Optimal",
    "Plateau",
    "Polynomial",
    "Product",
    "Schedule",
    "ScheduleLike",
    "Step",
    "from_name",
    "names",
    "warm_up",
]

Unit = Literal["step", "epoch"]


class Schedule(Description):
    """What all schedules have in common."""

    _native_type: Any
    _native_names: ClassVar[dict[str, str]] = {}

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
        """Return the learning rate of each update of a fit, to look at or to draw.

        Parameters
        ----------
        lr : float, default=1
            Of the optimizer.
        epochs : int, default=1
        steps_per_epoch : int, default=100
        losses : sequence of float, default=()
            One for each epoch, for plateaus.

        Examples
        --------
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

    def _native(self) -> _core.Schedule:
        native = self._native_type()
        for name, value in vars(self).items():
            if name == "unit":
                value = _core.ScheduleUnit.epoch if value == "epoch" else _core.ScheduleUnit.step
            setattr(native, self._native_names.get(name, name), value)
        return _core.Schedule(native)


class Constant(Schedule):
    """r * factor.

    Parameters
    ----------
    factor : float, default=1
    """

    factor: float

    _native_type = _core.ConstantRate

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__(factor=real_number("factor", factor))


class InverseScaling(Schedule):
    """r / (t + 1)^power, scikit-learn's ``"invscaling"``.

    Parameters
    ----------
    power : float, default=0.25
        As in SGDRegressor; MLPRegressor and MLPClassifier have 0.5.
    unit : {"step", "epoch"}, default="step"
    """

    power: float
    unit: Unit

    _native_type = _core.InverseScaling

    def __init__(self, power: float = 0.25, unit: Unit = "step") -> None:
        super().__init__(power=real_number("power", power), unit=_unit(unit))


class Optimal(Schedule):
    """The ``"optimal"`` of scikit-learn's SGD estimators, by Bottou.

    1 / (alpha * (t0 + t)) with t0 = 1 / (alpha * e) and e = alpha^(-1/4), the rate at t = 0; r is
    not used.

    Parameters
    ----------
    alpha : float, default=1e-4
        The strength of the penalty.
    first_is_lr : bool, default=False
        As in onnxcustom: e = a / max(1, 2 * (1 + a)) with a = alpha^(-1/4), and all rates are
        multiplied by r / e, so that the first is r.
    unit : {"step", "epoch"}, default="step"
    """

    alpha: float
    first_is_lr: bool
    unit: Unit

    _native_type = _core.OptimalRate
    _native_names: ClassVar[dict[str, str]] = {"first_is_lr": "first_is_rate"}

    def __init__(self, alpha: float = 1e-4, first_is_lr: bool = False, unit: Unit = "step") -> None:
        super().__init__(
            alpha=real_number("alpha", alpha, open_minimum=True),
            first_is_lr=bool(first_is_lr),
            unit=_unit(unit),
        )


class Step(Schedule):
    """r * factor^floor(t / every). torch: StepLR.

    Parameters
    ----------
    every : int, default=10
    factor : float, default=0.1
    unit : {"step", "epoch"}, default="epoch"
    """

    every: int
    factor: float
    unit: Unit

    _native_type = _core.StepDecay

    def __init__(self, every: int = 10, factor: float = 0.1, unit: Unit = "epoch") -> None:
        super().__init__(
            every=positive_int("every", every),
            factor=real_number("factor", factor),
            unit=_unit(unit),
        )


class MultiStep(Schedule):
    """r * factor^(number of milestones up to t). torch: MultiStepLR.

    Parameters
    ----------
    milestones : list of int, default=(30, 60, 90)
        In increasing order.
    factor : float, default=0.1
    unit : {"step", "epoch"}, default="epoch"
    """

    milestones: tuple[int, ...]
    factor: float
    unit: Unit

    _native_type = _core.MultiStepDecay

    def __init__(
        self,
        milestones: Sequence[int] = (30, 60, 90),
        factor: float = 0.1,
        unit: Unit = "epoch",
    ) -> None:
        times = tuple(positive_int("milestones", milestone, 0) for milestone in milestones)
        if list(times) != sorted(times):
            raise OptionError(
                what=f"milestones: {list(times)} are not in increasing order",
                value="milestones",
                hint=f"Give {sorted(times)}.",
            )
        super().__init__(milestones=times, factor=real_number("factor", factor), unit=_unit(unit))


class Exponential(Schedule):
    """r * factor^t. torch: ExponentialLR.

    Parameters
    ----------
    factor : float, default=0.95
    unit : {"step", "epoch"}, default="epoch"
    """

    factor: float
    unit: Unit

    _native_type = _core.ExponentialDecay

    def __init__(self, factor: float = 0.95, unit: Unit = "epoch") -> None:
        super().__init__(factor=real_number("factor", factor), unit=_unit(unit))


class Cosine(Schedule):
    """From r down to r * minimum_factor along half a cosine. torch: CosineAnnealingLR.

    r * (m + (1 - m) * (1 + cos(pi * t / length)) / 2) with m = minimum_factor; then r * m.

    Parameters
    ----------
    length : float, default=None
    minimum_factor : float, default=0
    unit : {"step", "epoch"}, default="step"
    """

    length: float
    minimum_factor: float
    unit: Unit

    _native_type = _core.CosineDecay

    def __init__(
        self, length: float | None = None, minimum_factor: float = 0.0, unit: Unit = "step"
    ) -> None:
        super().__init__(
            length=_length(length),
            minimum_factor=real_number("minimum_factor", minimum_factor),
            unit=_unit(unit),
        )


class CosineRestarts(Schedule):
    """The cosine again and again (Loshchilov and Hutter, 2016). torch: CosineAnnealingWarmRestarts.

    Parameters
    ----------
    length : float, default=0.25
        Of the first round.
    length_factor : float, default=1
        By this each round is longer than the one before.
    restart_factor : float, default=1
        Times this, each round begins with the highest rate of the one before.
    minimum_factor : float, default=0
    unit : {"step", "epoch"}, default="step"
    """

    length: float
    length_factor: float
    restart_factor: float
    minimum_factor: float
    unit: Unit

    _native_type = _core.CosineRestarts

    def __init__(
        self,
        length: float = 0.25,
        length_factor: float = 1.0,
        restart_factor: float = 1.0,
        minimum_factor: float = 0.0,
        unit: Unit = "step",
    ) -> None:
        super().__init__(
            length=real_number("length", length, open_minimum=True),
            length_factor=real_number("length_factor", length_factor, 1.0),
            restart_factor=real_number("restart_factor", restart_factor),
            minimum_factor=real_number("minimum_factor", minimum_factor),
            unit=_unit(unit),
        )


class OneCycle(Schedule):
    """Up to r, then down to next to nothing (Smith and Topin, 2017). torch: OneCycleLR.

    From r / start_divisor up to r in the first `rise` of the length, then down to
    r / (start_divisor * end_divisor). Momentum is not changed.

    Parameters
    ----------
    length : float, default=None
    rise : float, default=0.3
    start_divisor : float, default=25
    end_divisor : float, default=1e4
    linear : bool, default=False
        Along lines instead of cosines.
    """

    length: float
    rise: float
    start_divisor: float
    end_divisor: float
    linear: bool

    _native_type = _core.OneCycle

    def __init__(
        self,
        length: float | None = None,
        rise: float = 0.3,
        start_divisor: float = 25.0,
        end_divisor: float = 1e4,
        linear: bool = False,
    ) -> None:
        super().__init__(
            length=_length(length),
            rise=real_number("rise", rise),
            start_divisor=real_number("start_divisor", start_divisor, open_minimum=True),
            end_divisor=real_number("end_divisor", end_divisor, open_minimum=True),
            linear=bool(linear),
        )


class Linear(Schedule):
    """From r * start_factor to r * end_factor along a line. torch: LinearLR.

    Parameters
    ----------
    length : float, default=None
    start_factor : float, default=1
    end_factor : float, default=0
    unit : {"step", "epoch"}, default="step"
    """

    length: float
    start_factor: float
    end_factor: float
    unit: Unit

    _native_type = _core.LinearRate

    def __init__(
        self,
        length: float | None = None,
        start_factor: float = 1.0,
        end_factor: float = 0.0,
        unit: Unit = "step",
    ) -> None:
        super().__init__(
            length=_length(length),
            start_factor=real_number("start_factor", start_factor),
            end_factor=real_number("end_factor", end_factor),
            unit=_unit(unit),
        )


class Polynomial(Schedule):
    """r * (e + (1 - e) * (1 - t / length)^power) with e = end_factor. torch: PolynomialLR.

    Parameters
    ----------
    length : float, default=None
    power : float, default=1
    end_factor : float, default=0
    unit : {"step", "epoch"}, default="step"
    """

    length: float
    power: float
    end_factor: float
    unit: Unit

    _native_type = _core.PolynomialDecay

    def __init__(
        self,
        length: float | None = None,
        power: float = 1.0,
        end_factor: float = 0.0,
        unit: Unit = "step",
    ) -> None:
        super().__init__(
            length=_length(length),
            power=real_number("power", power),
            end_factor=real_number("end_factor", end_factor),
            unit=_unit(unit),
        )


class Plateau(Schedule):
    """Lower the rate where the loss no longer falls. torch: ReduceLROnPlateau.

    Looks at the validation loss (without validation the training loss) of each epoch. Where it was
    not below (1 - threshold) * best for more than `patience` epochs, the rate is multiplied by
    `factor`. scikit-learn's ``"adaptive"`` has factor 0.2.

    Parameters
    ----------
    factor : float, default=0.1
    patience : int, default=10
    threshold : float, default=1e-4
    cooldown : int, default=0
        Epochs after a change that are not counted.
    minimum_factor : float, default=0
        The rate does not fall below r * minimum_factor.
    """

    factor: float
    patience: int
    threshold: float
    cooldown: int
    minimum_factor: float

    _native_type = _core.Plateau

    def __init__(
        self,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        cooldown: int = 0,
        minimum_factor: float = 0.0,
    ) -> None:
        super().__init__(
            factor=real_number("factor", factor, 0.0, 1.0, open_minimum=True),
            patience=positive_int("patience", patience, 0),
            threshold=real_number("threshold", threshold, 0.0, 1.0),
            cooldown=positive_int("cooldown", cooldown, 0),
            minimum_factor=real_number("minimum_factor", minimum_factor),
        )


class _Composite(Schedule):
    """Schedules made of schedules."""

    parts: tuple[Schedule, ...]

    def __init__(self, parts: Iterable[ScheduleLike]) -> None:
        super().__init__(parts=tuple(as_schedule(part) for part in parts))
        if not self.parts:
            raise OptionError(
                what="parts: no schedules were given",
                value="parts",
                hint="Give one schedule or more.",
            )

    def _native(self) -> _core.Schedule:
        native = self._native_type()
        native.parts = [part._native() for part in self.parts]
        return _core.Schedule(native)


class Chain(_Composite):
    """One after the other, each with t from 0; ``a + b`` is short for it. torch: SequentialLR.

    Every part but the last ends after its own length (`Linear`, `Cosine`, `Polynomial`,
    `OneCycle`; the others never end).

    Parameters
    ----------
    parts : list of Schedule or str
    """

    _native_type = _core.ScheduleSequence


class Product(_Composite):
    """All at once: the rate of each part is the r of the next; ``a * b`` is short for it.

    Parameters
    ----------
    parts : list of Schedule or str
    """

    _native_type = _core.ScheduleProduct


ScheduleLike: TypeAlias = "Schedule | str"
"""A schedule or its name."""


def warm_up(length: float, then: ScheduleLike = "cosine", start_factor: float = 0.0) -> Chain:
    """Return a linear warm-up from r * start_factor, then another schedule.

    Examples
    --------
    >>> warm_up(2, "cosine").rates(lr=1.0, steps_per_epoch=6)
    [0.0, 0.5, 1.0, 0.8535533905932737, 0.5, 0.14644660940672627]
    """
    return Chain([Linear(length, start_factor, 1.0), as_schedule(then)])


def _by_name() -> dict[str, Schedule]:
    return {
        "constant": Constant(),
        "cosine": Cosine(),
        "cosine_restarts": CosineRestarts(),
        "exponential": Exponential(),
        "inverse_scaling": InverseScaling(),
        "invscaling": InverseScaling(),
        "linear": Linear(),
        "multi_step": MultiStep(),
        "one_cycle": OneCycle(),
        "optimal": Optimal(),
        "plateau": Plateau(),
        "polynomial": Polynomial(),
        "step": Step(),
        "warmup_cosine": warm_up(0.1, Cosine()),
        "warmup_linear": warm_up(0.1, Linear()),
    }


def names() -> list[str]:
    """Return the names of all schedules, sorted."""
    return sorted(name for name in _by_name() if name != "invscaling")


def from_name(name: str) -> Schedule:
    """Return the schedule of that name, with its defaults.

    Raises
    ------
    OptionError
        If there is none; names the nearest.

    Examples
    --------
    >>> from_name("exponential")
    Exponential(factor=0.95, unit='epoch')
    """
    schedule = _by_name().get(name)
    if schedule is None:
        raise unknown_name("schedule", name, names())
    return schedule


def as_schedule(schedule: ScheduleLike) -> Schedule:
    """Return the description of a schedule or a name."""
    described: Any = schedule
    if isinstance(schedule, str):  # with options as the command line has them
        from onnxgrad._specs import schedule_of

        described = schedule_of(schedule)
    if not isinstance(described, Schedule):
        raise OptionError(
            what=f"schedule: a {type(schedule).__name__} is not a schedule",
            value="schedule",
            hint=f"Give an object of onnxgrad.schedules or one of {', '.join(names())}.",
        )
    return described


def _parts(schedule: Schedule, kind: type[_Composite]) -> tuple[Schedule, ...]:
    return schedule.parts if isinstance(schedule, kind) else (schedule,)


def _length(length: float | None) -> float:
    return 0.0 if length is None else real_number("length", length, open_minimum=True)


def _unit(unit: Any) -> Unit:
    if unit not in ("step", "epoch"):
        raise unknown_name("unit", unit, ("step", "epoch"))
    return "epoch" if unit == "epoch" else "step"
