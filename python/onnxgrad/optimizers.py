"""Optimizers, as plain descriptions; formulas and defaults are those of ``torch.optim``.

w is a weight, g its gradient (g + weight_decay * w with a weight decay), lr the learning rate.
Wherever an optimizer is asked for, its name does too: ``"sgd"``, ``"momentum"``, ``"nesterov"``,
``"adam"``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from onnxgrad import _core
from onnxgrad._checks import real_number, unknown_name
from onnxgrad._description import Description
from onnxgrad.errors import OptionError

__all__ = ["SGD", "Adam", "Optimizer", "OptimizerLike", "from_name", "names"]


class SGD(Description):
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
    """

    lr: float
    momentum: float
    dampening: float
    nesterov: bool
    weight_decay: float

    def __init__(
        self,
        lr: float = 0.01,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            lr=real_number("lr", lr),
            momentum=real_number("momentum", momentum),
            dampening=real_number("dampening", dampening),
            nesterov=bool(nesterov),
            weight_decay=real_number("weight_decay", weight_decay),
        )
        if nesterov and (momentum == 0 or dampening != 0):
            raise OptionError(
                what="nesterov needs a momentum above 0 and no dampening",
                value="nesterov",
                mend="SGD(momentum=0.9, nesterov=True) is a common choice.",
            )

    def _native(self) -> _core.Sgd:
        return _core.Sgd(self.lr, self.momentum, self.dampening, self.nesterov, self.weight_decay)


class Adam(Description):
    """Adam (Kingma and Ba, 2014).

    m = beta1 * m + (1 - beta1) * g, v = beta2 * v + (1 - beta2) * g^2, and at step t (from 1)
    w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon).

    Parameters
    ----------
    lr : float, default=0.001
        Learning rate.
    beta1 : float, default=0.9
    beta2 : float, default=0.999
    epsilon : float, default=1e-8
    weight_decay : float, default=0
    """

    lr: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float

    def __init__(
        self,
        lr: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            lr=real_number("lr", lr),
            beta1=real_number("beta1", beta1, 0.0, 1.0),
            beta2=real_number("beta2", beta2, 0.0, 1.0),
            epsilon=real_number("epsilon", epsilon),
            weight_decay=real_number("weight_decay", weight_decay),
        )

    def _native(self) -> _core.Adam:
        return _core.Adam(self.lr, self.beta1, self.beta2, self.epsilon, self.weight_decay)


Optimizer: TypeAlias = "SGD | Adam"
OptimizerLike: TypeAlias = "SGD | Adam | str"
"""An optimizer or its name."""

_BY_NAME: dict[str, SGD | Adam] = {
    "adam": Adam(),
    "momentum": SGD(momentum=0.9),
    "nesterov": SGD(momentum=0.9, nesterov=True),
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
    >>> from_name("momentum")
    SGD(lr=0.01, momentum=0.9, dampening=0.0, nesterov=False, weight_decay=0.0)
    """
    optimizer = _BY_NAME.get(name)
    if optimizer is None:
        raise unknown_name("optimizer", name, names())
    return optimizer


def as_optimizer(optimizer: OptimizerLike, lr: float | None = None) -> Optimizer:
    """Return the description of an optimizer or a name, with another learning rate if given."""
    described: Any = from_name(optimizer) if isinstance(optimizer, str) else optimizer
    if not isinstance(described, (SGD, Adam)):
        raise OptionError(
            what=f"optimizer: a {type(optimizer).__name__} is not an optimizer",
            value="optimizer",
            mend=f"Give an object of onnxgrad.optimizers or one of {', '.join(names())}.",
        )
    return described if lr is None else described.replace(lr=lr)
