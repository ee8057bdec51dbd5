"""Base class of optimizers."""

from __future__ import annotations

from onnxgrad.base.described import Described

__all__ = ["Average", "Optimizer"]


class Optimizer(Described):
    """Base class of optimizers."""

    lr: float

    _family = "optimizer"


class Average(Described):
    """Base class of averages of weights."""

    _family = "average"
