"""Base class of optimizers."""

from __future__ import annotations

from onnxgrad.base.described import Described

__all__ = ["Optimizer"]


class Optimizer(Described):
    """Base class of optimizers."""

    lr: float

    _family = "optimizer"
