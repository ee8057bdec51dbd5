"""Optimizers, as plain descriptions, and groups of weights.

Where ``torch.optim`` has the optimizer, formula and defaults are torch's. w is a weight, g its
gradient, lr the learning rate, t the number of the step from 1. Wherever an optimizer is asked for,
its name does too: ``"adamw"``, ``"nesterov"``, ... (see `names`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from onnxgrad import _core
from onnxgrad._optimizer_base import Optimizer
from onnxgrad._user_optimizers import User, traced
from onnxgrad.base.checks import patterns as pattern_list
from onnxgrad.base.checks import positive_int, real_number, unknown_name
from onnxgrad.base.description import Description
from onnxgrad.errors import OptionError

__all__ = [
    "LAMB",
    "LBFGS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Lion",
    "Optimizer",
    "OptimizerLike",
    "ParameterGroup",
    "RMSProp",
    "User",
    "from_name",
    "names",
    "traced",
]


class SGD(Optimizer):
    """Stochastic gradient descent.

    Without momentum w -= lr * g. With it b = g at the first step, then
    b = momentum * b + (1 - dampening) * g, and w -= lr * b, or with Nesterov's correction
    w -= lr * (g + momentum * b).

    Parameters
    ----------
    lr : float, default=0.01
        Learning rate.
    momentum, dampening : float, default=0
    nesterov : bool, default=False
        Needs momentum above 0 and no dampening.
    weight_decay : float, default=0
        Before all that, g += weight_decay * w.
    decoupled_weight_decay : bool, default=False
        Instead, w *= 1 - lr * weight_decay.
    rate_in_velocity : bool, default=False
        As scikit-learn, the velocity holds the rates of its steps: v = momentum * v - lr * g, then
        w += v, or with Nesterov's correction w += momentum * v - lr * g. The same while lr does
        not change. Needs momentum above 0 and no dampening.
    """

    momentum: float
    dampening: float
    nesterov: bool
    weight_decay: float
    decoupled_weight_decay: bool
    rate_in_velocity: bool

    _native_type = _core.Sgd

    def __init__(
        self,
        lr: float = 0.01,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        rate_in_velocity: bool = False,
    ) -> None:
        super().__init__(
            lr=real_number("lr", lr),
            momentum=real_number("momentum", momentum),
            dampening=real_number("dampening", dampening),
            nesterov=bool(nesterov),
            weight_decay=real_number("weight_decay", weight_decay),
            decoupled_weight_decay=bool(decoupled_weight_decay),
            rate_in_velocity=bool(rate_in_velocity),
        )
        for name in ("nesterov", "rate_in_velocity"):
            if getattr(self, name) and (momentum == 0 or dampening != 0):
                raise OptionError(
                    what=f"{name} needs a momentum above 0 and no dampening",
                    value=name,
                    hint=f"SGD(momentum=0.9, {name}=True) is a common choice.",
                )


class _Moments(Optimizer):
    """Optimizers with averages of g and g^2."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float

    def __init__(
        self,
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
        **flags: bool,
    ) -> None:
        super().__init__(
            lr=real_number("lr", lr),
            beta1=real_number("beta1", beta1, 0.0, 1.0),
            beta2=real_number("beta2", beta2, 0.0, 1.0),
            epsilon=real_number("epsilon", epsilon),
            weight_decay=real_number("weight_decay", weight_decay),
            **flags,
        )


class Adam(_Moments):
    """Adam (Kingma and Ba, 2014).

    m = beta1 * m + (1 - beta1) * g, v = beta2 * v + (1 - beta2) * g^2, and at step t
    w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon).

    Parameters
    ----------
    lr : float, default=0.001
        Learning rate.
    beta1 : float, default=0.9
    beta2 : float, default=0.999
    epsilon : float, default=1e-8
    weight_decay : float, default=0
        g += weight_decay * w.
    amsgrad : bool, default=False
        The largest v so far stands in place of v (Reddi, Kale and Kumar, 2018).
    """

    amsgrad: bool

    _native_type = _core.Adam

    def __init__(
        self,
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(lr, beta1, beta2, epsilon, weight_decay, amsgrad=bool(amsgrad))


class AdamW(_Moments):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2017): w *= 1 - lr * weight_decay.

    Parameters
    ----------
    lr : float, default=0.001
        Learning rate.
    beta1 : float, default=0.9
    beta2 : float, default=0.999
    epsilon : float, default=1e-8
    weight_decay : float, default=0.01
    amsgrad : bool, default=False
        As for `Adam`.
    """

    amsgrad: bool

    _native_type = _core.AdamW

    def __init__(
        self,
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(lr, beta1, beta2, epsilon, weight_decay, amsgrad=bool(amsgrad))


class LAMB(_Moments):
    """LAMB (You et al., 2019, algorithm 2).

    m and v as Adam's; u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)
    + weight_decay * w; w -= lr * |w| / |u| * u with Euclidean norms over each weight (the factor is
    1 where one of them is 0).

    Parameters
    ----------
    lr : float, default=0.001
        Learning rate.
    beta1 : float, default=0.9
    beta2 : float, default=0.999
    epsilon : float, default=1e-6
    weight_decay : float, default=0.01
    """

    _native_type = _core.Lamb

    def __init__(
        self,
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(lr, beta1, beta2, epsilon, weight_decay)


class Lion(Optimizer):
    """Lion (Chen et al., 2023, algorithm 2).

    w = w * (1 - lr * weight_decay) - lr * sign(beta1 * m + (1 - beta1) * g), then
    m = beta2 * m + (1 - beta2) * g.

    Parameters
    ----------
    lr : float, default=1e-4
        Learning rate.
    beta1 : float, default=0.9
    beta2 : float, default=0.99
    weight_decay : float, default=0
    """

    beta1: float
    beta2: float
    weight_decay: float

    _native_type = _core.Lion

    def __init__(
        self,
        lr: float = 1e-4,
        beta1: float = 0.9,
        beta2: float = 0.99,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            lr=real_number("lr", lr),
            beta1=real_number("beta1", beta1, 0.0, 1.0),
            beta2=real_number("beta2", beta2, 0.0, 1.0),
            weight_decay=real_number("weight_decay", weight_decay),
        )


class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan and Singer, 2011).

    s += g^2; w -= lr / (1 + (t - 1) * rate_decay) * g / (sqrt(s) + epsilon).

    Parameters
    ----------
    lr : float, default=0.01
        Learning rate.
    rate_decay : float, default=0
    weight_decay : float, default=0
        g += weight_decay * w.
    initial_accumulator : float, default=0
        What s starts as.
    epsilon : float, default=1e-10
    """

    rate_decay: float
    weight_decay: float
    initial_accumulator: float
    epsilon: float

    _native_type = _core.Adagrad

    def __init__(
        self,
        lr: float = 0.01,
        rate_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator: float = 0.0,
        epsilon: float = 1e-10,
    ) -> None:
        super().__init__(
            lr=real_number("lr", lr),
            rate_decay=real_number("rate_decay", rate_decay),
            weight_decay=real_number("weight_decay", weight_decay),
            initial_accumulator=real_number("initial_accumulator", initial_accumulator),
            epsilon=real_number("epsilon", epsilon),
        )


class RMSProp(Optimizer):
    """RMSProp (Hinton, 2012).

    s = alpha * s + (1 - alpha) * g^2; r = sqrt(s) + epsilon; w -= lr * g / r, or with momentum
    b = momentum * b + g / r and w -= lr * b. Centered (Graves, 2013):
    a = alpha * a + (1 - alpha) * g and r = sqrt(s - a^2) + epsilon.

    Parameters
    ----------
    lr : float, default=0.01
        Learning rate.
    alpha : float, default=0.99
    epsilon : float, default=1e-8
    weight_decay : float, default=0
        g += weight_decay * w.
    momentum : float, default=0
    centered : bool, default=False
    """

    alpha: float
    epsilon: float
    weight_decay: float
    momentum: float
    centered: bool

    _native_type = _core.RmsProp

    def __init__(
        self,
        lr: float = 0.01,
        alpha: float = 0.99,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            lr=real_number("lr", lr),
            alpha=real_number("alpha", alpha, 0.0, 1.0),
            epsilon=real_number("epsilon", epsilon),
            weight_decay=real_number("weight_decay", weight_decay),
            momentum=real_number("momentum", momentum),
            centered=bool(centered),
        )


class LBFGS(Optimizer):
    """Limited-memory BFGS (Nocedal and Wright, 2006), for data that fit into one batch.

    A training step takes all rows and does up to `max_iterations` iterations, each with several
    evaluations of loss and gradient; the line search ends where the strong Wolfe conditions hold.

    Parameters
    ----------
    lr : float, default=1
        First length that a line search tries.
    max_iterations : int, default=20
        Of a step.
    max_evaluations : int, default=None
        Of a step; None is 1.25 * max_iterations.
    history : int, default=10
        Number of pairs of changes that are kept.
    gradient_tolerance : float, default=1e-7
        A step ends where no element of the gradient is larger.
    change_tolerance : float, default=1e-9
        A step ends where loss or weights change by less.
    line_search : bool, default=True
        False: every iteration moves by lr times the direction.
    """

    max_iterations: int
    max_evaluations: int
    history: int
    gradient_tolerance: float
    change_tolerance: float
    line_search: bool

    _native_type = _core.Lbfgs

    def __init__(
        self,
        lr: float = 1.0,
        max_iterations: int = 20,
        max_evaluations: int | None = None,
        history: int = 10,
        gradient_tolerance: float = 1e-7,
        change_tolerance: float = 1e-9,
        line_search: bool = True,
    ) -> None:
        super().__init__(
            lr=real_number("lr", lr),
            max_iterations=positive_int("max_iterations", max_iterations),
            max_evaluations=positive_int("max_evaluations", max_evaluations or 0, 0),
            history=positive_int("history", history),
            gradient_tolerance=real_number("gradient_tolerance", gradient_tolerance),
            change_tolerance=real_number("change_tolerance", change_tolerance),
            line_search=bool(line_search),
        )


class ParameterGroup(Description):
    """Weights that are updated in a way of their own.

    Parameters
    ----------
    patterns : str or list of str
        Names or glob patterns of trained weights; of several groups that match, the first counts.
    lr : float, default=None
        Learning rate of the group; None is the optimizer's. A schedule changes all in proportion.
    lr_factor : float, default=1
        The same as a factor of the optimizer's rate.
    weight_decay : float, default=None
        None is the optimizer's.
    optimizer : Optimizer or str, default=None
        Another optimizer for these weights, with its rate and decay where no others are given; not
        L-BFGS. None is that of all weights.

    Examples
    --------
    >>> import onnxgrad as og
    >>> trainer = og.Trainer(
    ...     linear_model,
    ...     optimizer=og.optimizers.AdamW(lr=1e-3),
    ...     groups=[og.optimizers.ParameterGroup("intercept", lr=1e-2, weight_decay=0)],
    ... )
    """

    patterns: tuple[str, ...]
    lr: float | None
    lr_factor: float
    weight_decay: float | None
    optimizer: Optimizer | None

    def __init__(
        self,
        patterns: str | Iterable[str],
        lr: float | None = None,
        lr_factor: float = 1.0,
        weight_decay: float | None = None,
        optimizer: OptimizerLike | None = None,
    ) -> None:
        super().__init__(
            patterns=tuple(pattern_list("patterns", patterns)),
            lr=None if lr is None else real_number("lr", lr),
            lr_factor=real_number("lr_factor", lr_factor),
            weight_decay=None
            if weight_decay is None
            else real_number("weight_decay", weight_decay),
            optimizer=None if optimizer is None else as_optimizer(optimizer),
        )
        if not self.patterns:
            raise OptionError(
                what="a group of weights needs a pattern",
                value="patterns",
                hint="Give a name, or a pattern such as 'fc*'.",
            )
        if lr is not None and lr_factor != 1:
            raise OptionError(
                what="a group takes lr or lr_factor, not both",
                value="lr_factor",
                hint="Give one of the two.",
            )

    def _native(self, lr: float) -> _core.ParameterGroup:
        native = _core.ParameterGroup()
        native.patterns = list(self.patterns)
        native.weight_decay = self.weight_decay
        native.rate_factor = self.lr_factor
        own = self.lr
        if self.optimizer is not None:
            native.optimizer = self.optimizer._native()
            if own is None and self.optimizer.lr != lr:
                own = self.optimizer.lr * self.lr_factor
        if own is not None:
            if lr == 0:
                raise OptionError(
                    what="a group with its own lr needs an optimizer with lr above 0",
                    value="lr",
                    hint="Give the optimizer a learning rate, or the group lr_factor.",
                )
            native.rate_factor = own / lr
        return native


OptimizerLike: TypeAlias = "Optimizer | str"
"""An optimizer or its name."""

_BY_NAME: dict[str, Optimizer] = {
    "adagrad": Adagrad(),
    "adam": Adam(),
    "adamw": AdamW(),
    "lamb": LAMB(),
    "lbfgs": LBFGS(),
    "lion": Lion(),
    "momentum": SGD(momentum=0.9),
    "nesterov": SGD(momentum=0.9, nesterov=True),
    "rmsprop": RMSProp(),
    "sgd": SGD(),
}


def names() -> list[str]:
    """Return the names of all optimizers, sorted."""
    return sorted(_BY_NAME)


def from_name(name: str) -> Optimizer:
    """Return the optimizer of that name, with its defaults.

    Raises
    ------
    OptionError
        If there is none; names the nearest.

    Examples
    --------
    >>> from_name("rmsprop")
    RMSProp(lr=0.01, alpha=0.99, epsilon=1e-08, weight_decay=0.0, momentum=0.0, centered=False)
    """
    optimizer = _BY_NAME.get(name)
    if optimizer is None:
        raise unknown_name("optimizer", name, names())
    return optimizer


def as_optimizer(optimizer: OptimizerLike, lr: float | None = None) -> Optimizer:
    """Return the description of an optimizer or a name, with another learning rate if given."""
    described: Any = optimizer
    if isinstance(optimizer, str):  # with options as the command line has them
        from onnxgrad._specs import optimizer_of

        described = optimizer_of(optimizer)
    if not isinstance(described, Optimizer):
        raise OptionError(
            what=f"optimizer: a {type(optimizer).__name__} is not an optimizer",
            value="optimizer",
            hint=f"Give an object of onnxgrad.optimizers or one of {', '.join(names())}.",
        )
    return described if lr is None else described.replace(lr=lr)


def update_options(
    lr: float,
    groups: ParameterGroup | Iterable[ParameterGroup],
    clip_value: float | None,
    clip_norm: float | None,
    accumulate: int,
) -> _core.UpdateOptions:
    """Return checked options of what is done around an optimizer's formula."""
    options = _core.UpdateOptions()
    listed = [groups] if isinstance(groups, ParameterGroup) else list(groups)
    for group in listed:
        if not isinstance(group, ParameterGroup):
            raise OptionError(
                what=f"groups: a {type(group).__name__} is not a ParameterGroup",
                value="groups",
                hint='For example groups=[optimizers.ParameterGroup("fc*", lr=1e-4)].',
            )
    options.groups = [group._native(lr) for group in listed]
    if clip_value is not None:
        options.clip_value = real_number("clip_value", clip_value, open_minimum=True)
    if clip_norm is not None:
        options.clip_norm = real_number("clip_norm", clip_norm, open_minimum=True)
    options.accumulate = positive_int("accumulate", accumulate)
    return options
